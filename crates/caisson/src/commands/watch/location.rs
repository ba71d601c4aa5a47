//! Where a job runs that a command watches.

/// Where the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobLocation {
    /// On a server, where it goes on without this process.
    Server,
    /// In this process, and ends with it.
    ThisProcess,
}
