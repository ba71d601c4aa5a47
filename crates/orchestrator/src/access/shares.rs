//! Links that give anyone who has them access to one view of one job. Each valid link is on record, so that it can be
//! listed and revoked.

use job::{JobId, NewSharedLink, ShareId, SharedLink};
use uuid::Uuid;

use crate::clock::now_ms;
use crate::core::Orchestrator;
use crate::error::OrchestratorError;

/// Maximum number of valid links per job.
const MAX_LINKS_PER_JOB: usize = 200;

impl Orchestrator {
    /// Puts a link on record.
    ///
    /// # Errors
    /// The job has too many links, or the store fails.
    pub async fn add_share(&self, new: NewSharedLink) -> Result<SharedLink, OrchestratorError> {
        let NewSharedLink { job, view, may_use, by, session, until_ms } = new;
        if self.core.shares.of_job(job, now_ms()).len() >= MAX_LINKS_PER_JOB {
            return Err(OrchestratorError::TooManyShares { job, most: MAX_LINKS_PER_JOB });
        }
        let id = ShareId(Uuid::new_v4().simple().to_string());
        let link = SharedLink { id, job, view, may_use, by, session, created_ms: now_ms(), until_ms };
        self.core.store.put_share(link.clone()).await?;
        self.core.shares.add(link.clone(), now_ms());
        Ok(link)
    }

    /// Whether a link is on record and its login has not ended. The caller must check the expiry and the key of the
    /// creator.
    #[must_use]
    pub fn share_holds(&self, id: &ShareId) -> bool {
        let link = self.core.shares.get(id);
        link.is_some_and(|link| link.session.is_none_or(|session| self.session_holds(&session)))
    }

    /// The links of a job that are valid according to [`Orchestrator::share_holds`], newest first.
    #[must_use]
    pub fn shares(&self, job: JobId) -> Vec<SharedLink> {
        let mut links = self.core.shares.of_job(job, now_ms());
        links.retain(|link| self.share_holds(&link.id));
        links
    }

    /// Revokes a link and closes what was opened with it.
    ///
    /// # Errors
    /// The job has no such link, or the store fails; in that case the link stays valid.
    pub async fn revoke_share(&self, job: JobId, id: &ShareId) -> Result<(), OrchestratorError> {
        if self.core.shares.get(id).is_none_or(|link| link.job != job) {
            return Err(OrchestratorError::NoShare(id.as_str().to_owned()));
        }
        self.core.store.remove_share(id.clone()).await?;
        self.core.shares.remove(id);
        self.core.keys.changed();
        Ok(())
    }
}
