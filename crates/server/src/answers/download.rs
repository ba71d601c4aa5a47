//! API answers that describe the files beside the result of a job.

use job::JobId;
use orchestrator::ResultFile;
use serde::Serialize;
use utoipa::ToSchema;

/// A file that a finished job has left beside its result.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DownloadAnswer {
    /// Its path in the job's folder.
    #[schema(example = "audit/files.jsonl")]
    name: String,
    /// Size in bytes.
    bytes: u64,
    /// URL of the file.
    #[schema(example = "/v1/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/downloads/audit/files.jsonl")]
    url: String,
}

impl DownloadAnswer {
    pub(crate) fn new(job: JobId, file: ResultFile) -> Self {
        // The names need no escaping: they have only letters, digits and a few signs.
        let url = format!("/v1/jobs/{job}/downloads/{}", file.name);
        Self { name: file.name, bytes: file.bytes, url }
    }
}
