//! Reports what a store does, for metrics.

use std::time::Duration;

use job::Event;

/// Receives what a store has made durable. The methods run on the writer's path and must not block.
pub trait StoreObserver: Send + Sync {
    /// A job was stored with this number of first events.
    fn job_created(&self, events: usize);

    /// These events were appended to the log of a job.
    fn events_appended(&self, events: &[Event]);

    /// A group of writes was committed.
    fn committed(&self, took: Duration);
}
