//! Jobs that are submitted with their files in one request. They are drafts until the last file has arrived.
//!
//! Such a draft is useless if its request breaks off. The server that received the request removes it; if that server
//! was killed, the next one does.

use std::sync::Arc;

use job::{Actor, EventBody, Fence, JobId, JobState, JobView};

use crate::core::Core;
use crate::core::Orchestrator;
use crate::error::OrchestratorError;

/// Reason code of a draft whose files are being received.
const RECEIVING: &str = "receiving_files";

/// What happens to the draft once its files have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// The job starts.
    Start,
    /// The draft stays and accepts more files.
    Keep,
}

/// The first state of a job whose files follow.
pub(crate) fn first_state() -> (JobState, Option<String>, Option<String>) {
    (JobState::Draft, Some(RECEIVING.into()), Some("its files are being received".into()))
}

/// Whether the request with the files of a draft has not finished.
pub(crate) fn is_receiving(view: &JobView) -> bool {
    view.state == JobState::Draft && view.code.as_deref() == Some(RECEIVING)
}

/// Removes drafts whose request was cut off when an earlier server process ended.
pub(crate) async fn remove_abandoned(core: &Arc<Core>) -> Result<(), OrchestratorError> {
    for job in core.store.jobs_with_code(JobState::Draft, RECEIVING).await? {
        core.store.delete(job, Actor::named("server")).await?;
        core.folder.remove_job(job)?;
        tracing::info!(%job, "removed a draft whose files never came");
    }
    Ok(())
}

impl Orchestrator {
    /// Called when all files of a form have arrived. Stores their digest, to compare repeated requests.
    ///
    /// # Errors
    /// The job is not a draft.
    pub async fn finish_form_upload(
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
                Ok(self.core.store.job(id).await?)
            }
        }
    }

    /// Compares a form with the one for which an idempotency key was first used.
    ///
    /// # Errors
    /// The files differ, or the first request is still being received.
    pub async fn check_repeated_form(&self, id: JobId, digest: &str) -> Result<(), OrchestratorError> {
        if is_receiving(&self.core.store.job(id).await?) {
            return Err(OrchestratorError::IdempotencyPending);
        }
        let path = self.core.folder.upload_digest(id);
        let first = std::fs::read_to_string(&path)
            .map_err(OrchestratorError::io(format!("reading {}", path.display())))?;
        if first == digest { Ok(()) } else { Err(OrchestratorError::IdempotencyMismatch) }
    }
}
