//! The audit of a job over the API: the verification of its log, which `store` does, its signed heads, and the list of
//! files that it touched.

pub(crate) mod user_actions;

use job::JobId;
use store::{JobAudit, SignedHead};

use crate::core::Orchestrator;
use crate::driver::copy_redacted;
use crate::error::OrchestratorError;

impl Orchestrator {
    /// Verifies the log of a job against its hash chain and its signed heads.
    pub async fn audit(&self, id: JobId) -> Result<JobAudit, OrchestratorError> {
        Ok(self.core.store.verify(id).await?)
    }

    /// The signed heads of a job, oldest first. Signs the end of its log first.
    pub async fn heads(&self, id: JobId) -> Result<Vec<SignedHead>, OrchestratorError> {
        self.core.store.job(id).await?;
        self.core.store.sign_heads().await?;
        Ok(self.core.store.heads(id).await?)
    }

    /// The list of files that a job has touched so far: from the job's folder if the job is over, otherwise the one
    /// the backend is writing.
    ///
    /// # Errors
    /// There is no such job, or no list yet.
    pub async fn file_list(&self, id: JobId) -> Result<std::path::PathBuf, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        let kept = self.core.folder.file_log(id);
        let live = match (view.sandbox, self.core.backend.file_audit()) {
            (Some(sandbox), Some(audit)) if !view.state.is_over() => audit.open(sandbox).await?,
            _ => None,
        };
        match live {
            Some(mut live) => {
                let redactor = self.redactor_of(id);
                let copy = kept.with_extension("live");
                let copied = tokio::task::spawn_blocking(move || {
                    copy_redacted(&mut live, &copy, &redactor).map(|()| copy)
                });
                copied
                    .await
                    .unwrap_or_else(|error| Err(std::io::Error::other(error)))
                    .map_err(OrchestratorError::io("copying the list of files"))
            }
            _ if kept.exists() => Ok(kept),
            _ => Err(OrchestratorError::NoFileList(id)),
        }
    }
}
