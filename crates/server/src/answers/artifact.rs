//! API answers that describe the artifacts of a job.

use job::{Artifact, JobId};
use serde::Serialize;
use utoipa::ToSchema;

/// The artifacts of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArtifactListAnswer {
    /// Empty until the job has been collected.
    pub(crate) artifacts: Vec<ArtifactAnswer>,
}

/// One finished artifact.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArtifactAnswer {
    /// Its file name.
    #[schema(example = "output.zip")]
    name: String,
    /// Size in bytes.
    bytes: u64,
    /// Number of files in it.
    files: u64,
    /// SHA-256 in hexadecimal.
    sha256: String,
    /// Where it comes from: `workspace`, or `checkpoint` when the sandbox was lost for good.
    source: String,
    /// URL of the artifact.
    url: String,
}

impl ArtifactAnswer {
    pub(crate) fn new(job: JobId, artifact: Artifact) -> Self {
        Self {
            url: artifact_path(job)(&artifact),
            name: artifact.name,
            bytes: artifact.bytes,
            files: artifact.files,
            sha256: artifact.sha256,
            source: artifact.source,
        }
    }
}

pub(super) fn artifact_path(job: JobId) -> impl Fn(&Artifact) -> String {
    move |artifact| format!("/jobs/{job}/{}", artifact.name)
}
