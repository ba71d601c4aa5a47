//! Jobs that come with their files in one request: drafts until the last file is there.
//!
//! Such a draft whose request was broken off is of no use to anybody. The server that received it removes it; where that
//! one was killed, the next one does.

use std::sync::Arc;

use crate::access::Actor;
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::event::{EventBody, Fence};
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::state::JobState;
use crate::view::JobView;

/// The code of a draft whose files are being received.
const RECEIVING: &str = "receiving_files";

/// What is done with the draft once its files are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// It starts.
    Start,
    /// It waits for more files.
    Keep,
}

/// Where a job begins whose files follow.
pub(crate) fn first_state() -> (JobState, Option<String>, Option<String>) {
    (JobState::Draft, Some(RECEIVING.into()), Some("its files are being received".into()))
}

/// Whether the request that brings the files of a draft is not over.
pub(crate) fn is_receiving(view: &JobView) -> bool {
    view.state == JobState::Draft && view.code.as_deref() == Some(RECEIVING)
}

/// Removes the drafts whose request ended with an earlier server.
pub(crate) async fn remove_abandoned(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    for job in core.store.standing(JobState::Draft, RECEIVING).await? {
        core.store.delete(job, Actor::named("server")).await?;
        core.folder.remove_job(job)?;
        tracing::info!(%job, "removed a draft whose files never came");
    }
    Ok(())
}

impl Orchestrator {
    /// All files of a form are there. Remembers what they were, for those who send the same again.
    ///
    /// # Errors
    /// The job is no draft.
    pub async fn complete_form(
        &self,
        id: JobId,
        digest: &str,
        afterwards: Afterwards,
    ) -> Result<JobView, OrchestratorError> {
        let _alone = self.core.uploads.of(id).await;
        let view = self.draft(id).await?;
        let path = self.core.folder.upload_digest(id);
        self.core.folder.make_job(id)?;
        std::fs::write(&path, digest)
            .map_err(OrchestratorError::io(format!("writing {}", path.display())))?;
        match afterwards {
            Afterwards::Start => self.begin(&view).await,
            Afterwards::Keep => {
                let kept = EventBody::StateChanged { state: JobState::Draft, code: None, reason: None };
                self.core.store.append(id, Fence::Anybody, vec![kept.into()]).await?;
                self.core.store.job(id).await
            }
        }
    }

    /// Compares a form with the one that an idempotency key was first used for.
    ///
    /// # Errors
    /// It has other files, or the first one is still being received.
    pub async fn compare_form(&self, id: JobId, digest: &str) -> Result<(), OrchestratorError> {
        if is_receiving(&self.core.store.job(id).await?) {
            return Err(OrchestratorError::IdempotencyPending);
        }
        let path = self.core.folder.upload_digest(id);
        let first = std::fs::read_to_string(&path)
            .map_err(OrchestratorError::io(format!("reading {}", path.display())))?;
        if first == digest { Ok(()) } else { Err(OrchestratorError::IdempotencyMismatch) }
    }
}
