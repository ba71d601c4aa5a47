//! Background tasks that keep a server healthy: reconcile, retention, backup, watching the disk, the clock, the backend
//! and the models, recording resource usage.

pub(crate) mod backend_watch;
pub(crate) mod backup;
#[cfg(test)]
pub(crate) mod backup_tests;
pub(crate) mod clock_watch;
pub(crate) mod host_disk;
pub(crate) mod metrics;
pub(crate) mod model_watch;
pub(crate) mod reconcile;
pub(crate) mod restore;
pub(crate) mod retention;
pub(crate) mod usage;
