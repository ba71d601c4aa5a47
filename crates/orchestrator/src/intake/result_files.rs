//! The files that a finished job leaves beside its `output.zip`.

use std::path::PathBuf;

use job::{JobId, JobView};

use crate::core::Orchestrator;
use crate::data_folder::result_files::{self, ResultFile};
use crate::error::OrchestratorError;

impl Orchestrator {
    /// The result files of a job; none until it has ended.
    ///
    /// # Errors
    /// The server is shutting down.
    pub async fn result_files(&self, view: &JobView) -> Result<Vec<ResultFile>, OrchestratorError> {
        if !view.state.is_over() {
            return Ok(Vec::new());
        }
        let folder = self.core.folder.job(view.job_id);
        tokio::task::spawn_blocking(move || result_files::list(&folder))
            .await
            .map_err(|error| OrchestratorError::io("listing result files")(std::io::Error::other(error)))
    }

    /// The path of a result file.
    ///
    /// # Errors
    /// The job has none of this name, or has not ended.
    pub async fn result_file(&self, id: JobId, name: &str) -> Result<PathBuf, OrchestratorError> {
        let missing = |why: &str| OrchestratorError::NoResultFile {
            job: id,
            name: name.to_owned(),
            why: why.to_owned(),
        };
        if !self.core.store.job(id).await?.state.is_over() {
            return Err(missing("the job has not ended"));
        }
        let folder = self.core.folder.job(id);
        let found = result_files::find(&folder, name);
        found
            .map(|file| folder.join(file.name))
            .ok_or_else(|| missing("`downloads` of the job lists its files"))
    }
}
