//! Optional traits, for a store that keeps its data in the data folder: opening it, reading it beside a running server,
//! and copying it. A store on another host has its own tools for these.

use std::path::Path;
use std::sync::Arc;

use job::{Event, JobId, JobView, StoredFile};

use crate::Store;
use crate::error::StoreError;
use crate::evidence::check::JobAudit;
use crate::evidence::file_digests::NetworkFile;
use crate::evidence::head::SignedHead;
use crate::evidence::tombstone::Tombstone;
use crate::evidence::trust::TrustedKeys;

/// A database in the data folder. Except for [`LocalDatabase::open`], a server may be using the folder.
pub trait LocalDatabase: Send + Sync {
    /// Opens the database or creates it. The caller holds the lock on the folder.
    ///
    /// # Errors
    /// The database cannot be opened, or has a version that this program does not know.
    fn open(&self, data: &Path) -> Result<Arc<dyn Store>, StoreError>;

    /// Opens the database to read its logs.
    ///
    /// # Errors
    /// There is no database, or it has a version that this program does not check.
    fn audit_reader(&self, data: &Path) -> Result<Box<dyn AuditReader>, StoreError>;

    /// Whether the database has any API keys; `false` if there is no database.
    fn has_keys(&self, data: &Path) -> bool;

    /// All keys named in the signed heads of the database, and in its statements about dropped payloads and deleted
    /// jobs.
    fn signing_keys(&self, data: &Path) -> Result<Vec<String>, StoreError>;

    /// Copies a consistent snapshot of the database without blocking writers. `target` must not exist.
    fn copy(&self, data: &Path, target: &Path) -> Result<(), StoreError>;

    /// Checks that a copy is an intact database.
    fn check_copy(&self, copy: &Path) -> Result<(), StoreError>;

    /// The jobs in a copy, without their steps.
    fn jobs_in_copy(&self, copy: &Path) -> Result<Vec<JobView>, StoreError>;
}

/// Reads from a database what the verification of logs needs.
pub trait AuditReader {
    fn jobs(&self) -> Result<Vec<JobId>, StoreError>;

    fn has(&self, job: JobId) -> Result<bool, StoreError>;

    /// The statement that the job was deleted.
    fn tombstone(&self, job: JobId) -> Result<Option<Tombstone>, StoreError>;

    /// The deletion statements of all deleted jobs, oldest first.
    fn tombstones(&self) -> Result<Vec<Tombstone>, StoreError>;

    /// The files beside the log whose digests are in the job's log; `None` while the job may still change them.
    fn stored_files(&self, job: JobId) -> Result<Option<Vec<StoredFile>>, StoreError>;

    /// What users did to a job over the API, oldest first: the events with an actor.
    fn user_actions(&self, job: JobId) -> Result<Vec<Event>, StoreError>;

    /// The signed heads of a job, oldest first.
    fn heads(&self, job: JobId) -> Result<Vec<SignedHead>, StoreError>;

    /// Verifies a job. The list of connections must be read before: lines are written to the log first.
    fn check(
        &self,
        job: JobId,
        kept: &[SignedHead],
        trusted: &TrustedKeys,
        network: NetworkFile,
    ) -> Result<JobAudit, StoreError>;
}
