//! The resource limits of a sandbox.

use serde::{Deserialize, Serialize};

/// What one sandbox may use at most; the disk's limit is its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchLimits {
    pub memory_bytes: u64,
    /// Thousandths of a CPU.
    pub cpu_millis: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Open files per process.
    pub open_files: u64,
}
