//! A file beside the log, as the log vouches for it.

use serde::{Deserialize, Serialize};

/// Size and digest of a file beside the log, as recorded in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Path relative to the job's folder.
    pub name: String,
    pub bytes: u64,
    /// In hexadecimal.
    pub sha256: String,
}
