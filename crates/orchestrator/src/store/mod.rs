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

use crate::access::{Actor, Key, KeyId, KeyUse, Role, SessionId, ShareId, SharedLink};
use crate::answers::JobFilter;
use crate::audit::{JobAudit, SignedHead};
use crate::error::OrchestratorError;
use crate::event::{Event, Fence, NewEvent};
use crate::ids::{Generation, JobId, Sequence};
use crate::request::JobSpec;
use crate::state::JobState;
use crate::view::JobView;

pub(crate) use chain::{Link, digest};
pub use sqlite::SqliteStore;
pub(crate) use sqlite::{AuditReader, check_copy, copy_database, has_keys, jobs_in_copy, keys_of_heads};

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

/// A job that may be removed: little enough to look at hundreds of thousands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removable {
    /// Which.
    pub job: JobId,
    /// Whether it was never started; it is over otherwise.
    pub is_draft: bool,
    /// When it ended; when it was made, where it was never started.
    pub since_ms: i64,
}

/// A part of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// In the order of the log.
    pub events: Vec<Event>,
    /// Whether nothing followed when it was read.
    pub is_last: bool,
}

/// Which events are wanted, by the names of their kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// All of them.
    All,
    /// These.
    Only(&'static [&'static str]),
    /// All but these.
    Except(&'static [&'static str]),
}

/// What calls have printed and shown: most of a long log.
pub(crate) const OUTPUT: Kinds = Kinds::Only(&OUTPUT_KINDS);
/// What happened, without what was printed.
pub(crate) const WITHOUT_OUTPUT: Kinds = Kinds::Except(&OUTPUT_KINDS);
/// Where calls begin and end.
pub(crate) const CALLS: Kinds = Kinds::Only(&["call_started", "call_ended"]);
const OUTPUT_KINDS: [&str; 3] = ["call_output", "call_output_dropped", "call_display"];

/// So many events are read at once where all are wanted.
pub(crate) const PAGE: usize = 1000;

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

    /// The jobs whose turn is next: highest priority, then oldest. Those of some keys are passed over.
    async fn next_queued(&self, limit: usize, except: Vec<KeyId>) -> Result<Vec<JobId>, OrchestratorError>;

    /// How many jobs wait.
    async fn count_queued(&self) -> Result<usize, OrchestratorError>;

    /// How many jobs wait, those that still take files included.
    async fn count_waiting(&self) -> Result<usize, OrchestratorError>;

    /// How many jobs there are in each state, without bare sandboxes; states without jobs may be missing.
    async fn count_by_state(&self) -> Result<Vec<(JobState, u64)>, OrchestratorError>;

    /// Jobs that stand there for this reason.
    async fn standing(&self, state: JobState, code: &str) -> Result<Vec<JobId>, OrchestratorError>;

    /// Jobs that are neither queued nor over and have a sandbox or want one, and those with a wish that nobody has
    /// acted on.
    async fn unfinished(&self) -> Result<Vec<JobId>, OrchestratorError>;

    /// Events of some kinds after a sequence number: a page, which may be shorter than the limit although more follows,
    /// because it is bounded by its bytes too.
    async fn page(
        &self,
        job: JobId,
        kinds: Kinds,
        after: Sequence,
        limit: usize,
    ) -> Result<EventPage, OrchestratorError>;

    /// The events of a page. Only an empty one is surely the end.
    async fn events(
        &self,
        job: JobId,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, OrchestratorError> {
        self.events_of(job, Kinds::All, after, limit).await
    }

    /// The same of some kinds.
    async fn events_of(
        &self,
        job: JobId,
        kinds: Kinds,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, OrchestratorError> {
        Ok(self.page(job, kinds, after, limit).await?.events)
    }

    /// All events of some kinds after a sequence number. Whoever asks for output here has all of it in memory.
    async fn all_events(
        &self,
        job: JobId,
        kinds: Kinds,
        after: Sequence,
    ) -> Result<Vec<Event>, OrchestratorError> {
        let mut all = Vec::new();
        self.each_page(job, kinds, after, &mut |events| all.extend(events)).await?;
        Ok(all)
    }

    /// Reads the events of some kinds after a sequence number to their end, page by page.
    async fn each_page(
        &self,
        job: JobId,
        kinds: Kinds,
        mut after: Sequence,
        take: &mut (dyn FnMut(Vec<Event>) + Send),
    ) -> Result<(), OrchestratorError> {
        loop {
            let EventPage { events, is_last } = self.page(job, kinds, after, PAGE).await?;
            after = events.last().map_or(after, |last| last.sequence);
            take(events);
            if is_last {
                return Ok(());
            }
        }
    }

    /// Stores bytes that an event will refer to; durable when this returns. The digest that names them.
    async fn put_blob(&self, job: JobId, bytes: Vec<u8>) -> Result<String, OrchestratorError>;

    /// Bytes of a job by their digest, where there are such.
    async fn blob(&self, job: JobId, digest: String) -> Result<Option<Vec<u8>>, OrchestratorError>;

    /// The newest sequence number of a job; changes when there is more.
    fn watch(&self, job: JobId) -> watch::Receiver<Sequence>;

    /// Removes a job that nobody drives, with all its events. A signed statement of who did it stays.
    async fn delete(&self, job: JobId, by: Actor) -> Result<(), OrchestratorError>;

    /// Jobs that ended before a moment and whose events still say what they said, oldest first, those that follow a job.
    async fn with_old_payloads(
        &self,
        ended_before_ms: i64,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<JobId>, OrchestratorError>;

    /// Drops what the events of a job said, but for what shows how the job went. The chain stays whole.
    async fn drop_payloads(&self, job: JobId) -> Result<(), OrchestratorError>;

    /// Jobs that are over, and drafts, oldest first, those that follow a job.
    async fn removable(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<Removable>, OrchestratorError>;

    /// Keeps a key under the digest of its secret.
    async fn put_key(&self, digest: [u8; 32], key: Key) -> Result<(), OrchestratorError>;

    /// Forgets a key.
    async fn remove_key(&self, id: KeyId) -> Result<(), OrchestratorError>;

    /// All keys, with the digests of their secrets.
    async fn keys(&self) -> Result<Vec<([u8; 32], Key)>, OrchestratorError>;

    /// Keeps the role of somebody who logged in with an account elsewhere.
    async fn put_person(&self, id: KeyId, role: Role) -> Result<(), OrchestratorError>;

    /// All of them.
    async fn people(&self) -> Result<Vec<(KeyId, Role)>, OrchestratorError>;

    /// Remembers that a login was ended, until it would have ended by itself.
    async fn end_session(&self, id: SessionId, until_ms: i64) -> Result<(), OrchestratorError>;

    /// All of them, with when they would have ended.
    async fn ended_sessions(&self) -> Result<Vec<(SessionId, i64)>, OrchestratorError>;

    /// Keeps a shared link.
    async fn put_share(&self, link: SharedLink) -> Result<(), OrchestratorError>;

    /// Forgets a shared link.
    async fn remove_share(&self, id: ShareId) -> Result<(), OrchestratorError>;

    /// All shared links.
    async fn shares(&self) -> Result<Vec<SharedLink>, OrchestratorError>;

    /// The key that a job was handed in with.
    async fn submitter(&self, job: JobId) -> Result<Option<KeyId>, OrchestratorError>;

    /// What the jobs of a key use now, and what its jobs have spent since a moment, those that were deleted included.
    async fn key_use(&self, id: KeyId, since_ms: i64) -> Result<KeyUse, OrchestratorError>;

    /// Signs the end of every log that has grown since it was last signed; how many.
    async fn sign_heads(&self) -> Result<usize, OrchestratorError>;

    /// The signed heads of a job, oldest first.
    async fn heads(&self, job: JobId) -> Result<Vec<SignedHead>, OrchestratorError>;

    /// Checks the chain of a job, its signed heads, and what was computed from the log.
    async fn verify(&self, job: JobId) -> Result<JobAudit, OrchestratorError>;

    /// Jobs that had ended shortly before the newest head was signed: what was written last where a server was killed.
    async fn ended_lately(&self) -> Result<Vec<JobId>, OrchestratorError>;

    /// How many bytes it takes for what it keeps, those that were freed and not given back left out.
    async fn used_bytes(&self) -> Result<u64, OrchestratorError>;

    /// Gives back some of the room that was freed; whether there is more of it. Others may write between two calls.
    async fn shrink(&self) -> Result<bool, OrchestratorError>;

    /// Checks that the store can be written to.
    async fn check(&self) -> Result<(), OrchestratorError>;
}
