//! Where jobs and their events are kept.
//!
//! [`Store`] is the one interface; [`SqliteStore`] the one implementation so far, PostgreSQL will be the second. Only
//! this folder knows SQL. An event is durable before anybody is shown it. The hash of each event covers the one
//! before, and of a payload its digest, so that old payloads may be dropped without breaking the chain.

mod chain;
#[cfg(test)]
mod conformance;
mod sqlite;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::answers::JobFilter;
use crate::error::OrchestratorError;
use crate::event::{Event, Fence, NewEvent};
use crate::ids::{Generation, JobId, Sequence};
use crate::request::JobSpec;
use crate::state::JobState;
use crate::view::JobView;

pub(crate) use chain::{Link, digest};
pub use sqlite::SqliteStore;
pub(crate) use sqlite::{check_copy, copy_database, jobs_in_copy};

/// A job to be stored.
#[derive(Debug, Clone)]
pub struct NewRecord {
    /// Its name.
    pub id: JobId,
    /// What it shall do.
    pub spec: JobSpec,
    /// What has happened already, after the creation.
    pub events: Vec<NewEvent>,
    /// The key under which it may be sent again, and a digest of what was sent.
    pub idempotency: Option<(String, Vec<u8>)>,
}

/// What came of storing a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Created {
    /// It is new.
    New(Box<JobView>),
    /// The same key and body came before.
    Repeated(JobId),
    /// The same key came before with another body.
    Mismatch,
}

/// Keeps jobs and their events.
#[async_trait]
pub trait Store: Send + Sync {
    /// Stores a job with its first events.
    async fn create(&self, record: NewRecord) -> Result<Created, OrchestratorError>;

    /// Appends events; they are durable when this returns. A stale owner is refused.
    async fn append(
        &self,
        job: JobId,
        fence: Fence,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Event>, OrchestratorError>;

    /// Takes a job over until the lease ends, where nobody holds it.
    async fn claim(&self, job: JobId, lease_ms: i64) -> Result<Option<Generation>, OrchestratorError>;

    /// Makes the leases of all jobs that this server holds last longer.
    async fn renew_leases(&self, lease_ms: i64) -> Result<(), OrchestratorError>;

    /// Gives a job back.
    async fn release(&self, job: JobId, generation: Generation) -> Result<(), OrchestratorError>;

    /// What is known of a job.
    async fn job(&self, job: JobId) -> Result<JobView, OrchestratorError>;

    /// What a job shall do.
    async fn spec(&self, job: JobId) -> Result<JobSpec, OrchestratorError>;

    /// Jobs, newest first, without their steps.
    async fn jobs(&self, filter: JobFilter) -> Result<Vec<JobView>, OrchestratorError>;

    /// The jobs whose turn is next: highest priority, then oldest.
    async fn next_queued(&self, limit: usize) -> Result<Vec<JobId>, OrchestratorError>;

    /// How many jobs wait.
    async fn count_queued(&self) -> Result<usize, OrchestratorError>;

    /// How many jobs there are in each state; states without jobs may be missing.
    async fn count_by_state(&self) -> Result<Vec<(JobState, u64)>, OrchestratorError>;

    /// Jobs that are neither waiting nor over, and those with a wish that nobody has acted on.
    async fn unfinished(&self) -> Result<Vec<JobId>, OrchestratorError>;

    /// Events after a sequence number.
    async fn events(
        &self,
        job: JobId,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, OrchestratorError>;

    /// The newest sequence number of a job; changes when there is more.
    fn watch(&self, job: JobId) -> watch::Receiver<Sequence>;

    /// Removes a job that is over, with all its events.
    async fn delete(&self, job: JobId) -> Result<(), OrchestratorError>;

    /// Jobs that are over, oldest first.
    async fn over(&self, limit: usize) -> Result<Vec<JobView>, OrchestratorError>;

    /// Checks that the store can be written to.
    async fn check(&self) -> Result<(), OrchestratorError>;
}
