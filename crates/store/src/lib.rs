//! Storage of jobs and their events.
//!
//! [`Store`] is the interface; [`SqliteStore`] is the only implementation so far, and PostgreSQL is meant to be the
//! second. Only this crate contains SQL. An event is durable before anyone sees it. The hash of each event covers
//! the previous hash and the digest of its payload, so that old payloads can be dropped without breaking the chain.
//!
//! Modules use only modules further up in this list:
//!
//! - `clock`, `error`, `chain`, `observer`
//! - `evidence`: tamper evidence for the log: signed heads of its hash chain, digests of files beside it
//! - `database`: optional traits of stores that keep their data in the data folder
//! - `audit`: verifies a data folder
//! - `sqlite`: the implementation; `conformance`: what every implementation must pass

mod audit;
mod chain;
mod clock;
#[cfg(test)]
mod conformance;
mod database;
mod error;
mod evidence;
mod observer;
mod sqlite;

use std::sync::Arc;

use async_trait::async_trait;
use job::{
    Actor, Event, Fence, Generation, JobFilter, JobId, JobSpec, JobState, JobView, Key, KeyId, KeyUse, Kinds,
    NewEvent, Role, Sequence, SessionId, ShareId, SharedLink,
};
use tokio::sync::watch;

pub use audit::{export_deletions, export_heads, find_job_id, user_actions_of, verify_audit};
pub use chain::digest;
pub use clock::now_ms;
pub use database::{AuditReader, LocalDatabase};
pub use error::StoreError;
pub use evidence::check::{AuditReport, HeadsChecked, JobAudit};
pub use evidence::external_records::ExternalRecords;
pub use evidence::file_digests::{
    FILE_LIST, FileAudit, FileState, NETWORK_LIST, NetworkFile, job_folder, measure_file,
};
pub use evidence::head::SignedHead;
pub use evidence::key::PUBLIC_KEY_FILE;
pub use evidence::tombstone::Tombstone;
pub use evidence::trust::{TrustedKeys, trust_old_keys};
pub use observer::StoreObserver;
pub use sqlite::{DATABASE_FILE, Sqlite, SqliteStore};

#[derive(Debug, Clone)]
pub struct NewRecord {
    pub id: JobId,
    pub spec: JobSpec,
    /// Events that have already happened, to follow the creation event.
    pub events: Vec<NewEvent>,
    /// Idempotency key, and a digest of the request body.
    pub idempotency: Option<(String, Vec<u8>)>,
}

/// Result of storing a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Created {
    /// The job is new.
    New(Box<JobView>),
    /// A job with the same idempotency key and body exists.
    Repeated(JobId),
    /// A job with the same idempotency key but another body exists.
    Mismatch,
}

/// A job that may be removed. Small, because hundreds of thousands are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removable {
    pub job: JobId,
    /// Whether the job was never started; otherwise it is over.
    pub is_draft: bool,
    /// When the job ended; for a draft, when it was created.
    pub since_ms: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// In log order.
    pub events: Vec<Event>,
    /// Whether no event followed at the time of reading.
    pub is_last: bool,
}

/// Page size when reading all events.
pub(crate) const PAGE: usize = 1000;

#[async_trait]
pub trait Store: Send + Sync {
    /// Stores a job with its first events.
    async fn create(&self, record: NewRecord) -> Result<Created, StoreError>;

    /// Appends events. They are durable when this returns. An owner whose lease has passed to another one is refused.
    async fn append(&self, job: JobId, fence: Fence, events: Vec<NewEvent>)
    -> Result<Vec<Event>, StoreError>;

    /// Claims a job until the lease ends; `None` if another owner holds it.
    async fn claim(&self, job: JobId, lease_ms: i64) -> Result<Option<Generation>, StoreError>;

    /// Extends the leases of all jobs that this server holds.
    async fn renew_leases(&self, lease_ms: i64) -> Result<(), StoreError>;

    /// Releases a claimed job.
    async fn release(&self, job: JobId, generation: Generation) -> Result<(), StoreError>;

    async fn job(&self, job: JobId) -> Result<JobView, StoreError>;

    async fn spec(&self, job: JobId) -> Result<JobSpec, StoreError>;

    /// Lists jobs, newest first, without their steps.
    async fn jobs(&self, filter: JobFilter) -> Result<Vec<JobView>, StoreError>;

    /// The next jobs in the queue: highest priority first, then oldest. Jobs of the keys in `except` are skipped.
    async fn next_queued(&self, limit: usize, except: Vec<KeyId>) -> Result<Vec<JobId>, StoreError>;

    /// The number of queued jobs.
    async fn count_queued(&self) -> Result<usize, StoreError>;

    /// The number of queued jobs, including drafts that still accept files.
    async fn count_waiting(&self) -> Result<usize, StoreError>;

    /// The number of jobs in each state, without bare sandboxes. States without jobs may be missing.
    async fn count_by_state(&self) -> Result<Vec<(JobState, u64)>, StoreError>;

    /// Jobs in this state with this reason code.
    async fn jobs_with_code(&self, state: JobState, code: &str) -> Result<Vec<JobId>, StoreError>;

    /// Jobs that are neither queued nor over and have or need a sandbox, and jobs with a control request that has not
    /// been handled.
    async fn unfinished(&self) -> Result<Vec<JobId>, StoreError>;

    /// One page of events of some kinds after a sequence number. A page is also limited by size, so it may be shorter
    /// than `limit` although more events follow.
    async fn page(
        &self,
        job: JobId,
        kinds: Kinds,
        after: Sequence,
        limit: usize,
    ) -> Result<EventPage, StoreError>;

    /// The events of one page. Only an empty result reliably marks the end.
    async fn events(&self, job: JobId, after: Sequence, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.events_of(job, Kinds::All, after, limit).await
    }

    /// Like [`Store::events`], for some kinds only.
    async fn events_of(
        &self,
        job: JobId,
        kinds: Kinds,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        Ok(self.page(job, kinds, after, limit).await?.events)
    }

    /// All events of some kinds after a sequence number. If these include output, all of it is held in memory.
    async fn all_events(&self, job: JobId, kinds: Kinds, after: Sequence) -> Result<Vec<Event>, StoreError> {
        let mut all = Vec::new();
        self.each_page(job, kinds, after, &mut |events| all.extend(events)).await?;
        Ok(all)
    }

    /// Reads all events of some kinds after a sequence number, page by page.
    async fn each_page(
        &self,
        job: JobId,
        kinds: Kinds,
        mut after: Sequence,
        take: &mut (dyn FnMut(Vec<Event>) + Send),
    ) -> Result<(), StoreError> {
        loop {
            let EventPage { events, is_last } = self.page(job, kinds, after, PAGE).await?;
            after = events.last().map_or(after, |last| last.sequence);
            take(events);
            if is_last {
                return Ok(());
            }
        }
    }

    /// Stores bytes that an event will refer to. They are durable when this returns. Returns their digest.
    async fn put_blob(&self, job: JobId, bytes: Vec<u8>) -> Result<String, StoreError>;

    /// The stored bytes with this digest; `None` if the job has none.
    async fn blob(&self, job: JobId, digest: String) -> Result<Option<Vec<u8>>, StoreError>;

    /// Watches the newest sequence number of a job.
    fn watch(&self, job: JobId) -> watch::Receiver<Sequence>;

    /// Deletes a job that has no driver, with all its events. A signed statement of who deleted it remains.
    async fn delete(&self, job: JobId, by: Actor) -> Result<(), StoreError>;

    /// Jobs that ended before a point in time and still have their payloads, oldest first, starting after `after`.
    async fn with_old_payloads(
        &self,
        ended_before_ms: i64,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<JobId>, StoreError>;

    /// Drops the payloads of a job's events, except for those that show how the job went. The hash chain stays
    /// intact.
    async fn drop_payloads(&self, job: JobId) -> Result<(), StoreError>;

    /// Finished jobs and drafts, oldest first, starting after `after`.
    async fn removable(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Removable>, StoreError>;

    /// Stores a key under the digest of its secret.
    async fn put_key(&self, digest: [u8; 32], key: Key) -> Result<(), StoreError>;

    async fn remove_key(&self, id: KeyId) -> Result<(), StoreError>;

    /// All keys, with the digests of their secrets.
    async fn keys(&self) -> Result<Vec<([u8; 32], Key)>, StoreError>;

    /// Stores the role of an OIDC user.
    async fn put_oidc_user(&self, id: KeyId, role: Role) -> Result<(), StoreError>;

    /// All OIDC users and their roles.
    async fn people(&self) -> Result<Vec<(KeyId, Role)>, StoreError>;

    /// Records that a login was ended early, until its expiry.
    async fn end_session(&self, id: SessionId, until_ms: i64) -> Result<(), StoreError>;

    /// All logins that were ended early, with their expiry.
    async fn ended_sessions(&self) -> Result<Vec<(SessionId, i64)>, StoreError>;

    async fn put_share(&self, link: SharedLink) -> Result<(), StoreError>;

    async fn remove_share(&self, id: ShareId) -> Result<(), StoreError>;

    async fn shares(&self) -> Result<Vec<SharedLink>, StoreError>;

    /// The key that a job was submitted with.
    async fn submitter(&self, job: JobId) -> Result<Option<KeyId>, StoreError>;

    /// Current usage of the jobs of a key, and what its jobs, including deleted ones, have spent since a point in
    /// time.
    async fn key_use(&self, id: KeyId, since_ms: i64) -> Result<KeyUse, StoreError>;

    /// Signs the end of every log that has grown since it was last signed; returns their number.
    async fn sign_heads(&self) -> Result<usize, StoreError>;

    /// The signed heads of a job, oldest first.
    async fn heads(&self, job: JobId) -> Result<Vec<SignedHead>, StoreError>;

    /// Verifies the hash chain of a job, its signed heads, and what was derived from the log.
    async fn verify(&self, job: JobId) -> Result<JobAudit, StoreError>;

    /// Jobs that ended shortly before the newest head was signed, whose files a killed server may not have finished.
    async fn recently_ended(&self) -> Result<Vec<JobId>, StoreError>;

    /// Size of the stored data in bytes, without freed space that was not returned to the file system.
    async fn used_bytes(&self) -> Result<u64, StoreError>;

    /// Returns some freed space to the file system; `true` if there is more. Other writes may run between two calls.
    async fn shrink(&self) -> Result<bool, StoreError>;

    /// Reports to `observer` what is stored from now on. Only the first observer is used.
    fn observe(&self, observer: Arc<dyn StoreObserver>);

    /// Checks that the store is writable.
    async fn check(&self) -> Result<(), StoreError>;
}
