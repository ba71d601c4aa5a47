//! What holds the log: signed heads of its chain of hashes, and the check of both.
//!
//! Every event's hash covers the one before (`store/chain.rs`). A [`SignedHead`] is the hash of one event with a signature; one that
//! was kept elsewhere pins everything up to it, also against who can write to the database and has the key. Heads name the one
//! before, so that none is missing between others. The store signs (`store/sqlite/heads.rs`) at intervals and with the end of a job;
//! [`check`] compares, and `store/sqlite/derived.rs` what was computed from the log.

mod check;
mod dropped;
mod head;
mod kept;
mod key;
mod stored;
mod tombstone;
mod trust;

pub use check::{AuditReport, HeadsChecked, JobAudit};
pub(crate) use check::{Checker, End, Row};
pub(crate) use dropped::{DerivedDigests, DropStatement};
pub(crate) use head::MAX_UNSIGNED_MS;
pub use head::SignedHead;
pub use kept::Kept;
pub use key::PUBLIC_KEY_FILE;
pub(crate) use key::SigningKey;
pub(crate) use stored::{FILE_LIST, NETWORK_LIST, NetworkCheck, NetworkFile};
pub use stored::{FileAudit, FileState, StoredFile};
pub use tombstone::Tombstone;
pub use trust::TrustedKeys;
pub(crate) use trust::trust_old_keys;

use std::collections::BTreeSet;
use std::path::Path;

use crate::driver::copy_covered;
use crate::error::OrchestratorError;
use crate::event::Event;
use crate::folder::DataFolder;
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::store::AuditReader;

/// Checks the logs of a data folder, of one job or of all, the files beside them, and what was kept elsewhere. Heads of the database
/// and statements about deleted jobs count where one of the trusted keys has signed them. A server may be using the folder meanwhile.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn verify_audit(
    data: &Path,
    job: Option<JobId>,
    kept: &Kept,
    trusted: &TrustedKeys,
) -> Result<AuditReport, OrchestratorError> {
    let reader = AuditReader::open(data)?;
    let jobs = match job {
        Some(job) => vec![job],
        None => reader.jobs()?,
    };
    let mut report = AuditReport::default();
    for job in &jobs {
        report.jobs.push(verify_job((data, &reader), *job, kept, trusted)?);
    }
    if job.is_none() {
        let gone: BTreeSet<JobId> = kept.jobs().filter(|job| !jobs.contains(job)).collect();
        for job in &gone {
            report.jobs.push(verify_job((data, &reader), *job, kept, trusted)?);
        }
        for tombstone in reader.tombstones()? {
            report.deleted += 1;
            let is_new = !jobs.contains(&tombstone.deleted_job) && !gone.contains(&tombstone.deleted_job);
            if is_new && tombstone.fault(trusted).is_some() {
                report.jobs.push(JobAudit::gone(tombstone.deleted_job, &[], Some(tombstone), trusted));
            }
        }
    }
    report.is_sound = report.jobs.iter().all(|job| job.faults.is_empty());
    Ok(report)
}

fn verify_job(
    (data, reader): (&Path, &AuditReader),
    job: JobId,
    kept: &Kept,
    trusted: &TrustedKeys,
) -> Result<JobAudit, OrchestratorError> {
    let heads = kept.of(job);
    if reader.has(job)? {
        let folder = DataFolder::job_in(data, job);
        let audit = reader.check(job, &heads, trusted, NetworkFile::of(&folder))?;
        // A log that cannot be read says so itself.
        let stored = reader.stored_files(job).ok().flatten();
        return Ok(stored.map_or(audit.clone(), |stored| audit.with_files(stored::look(&folder, &stored))));
    }
    // The database's own, where there is one; who has taken that away as well has not taken what was kept elsewhere.
    let deletion = reader.tombstone(job)?.or_else(|| kept.tombstone(job).cloned());
    if deletion.is_none() && heads.is_empty() {
        return Err(OrchestratorError::NoJob(job));
    }
    Ok(JobAudit::gone(job, &heads, deletion, trusted))
}

/// The job of a data folder, or of what was kept, whose id begins or ends so; also one that was deleted.
///
/// # Errors
/// None has such an id, or more than one.
pub fn find_audited(data: &Path, typed: &str, kept: &Kept) -> Result<JobId, OrchestratorError> {
    let typed = typed.to_ascii_lowercase();
    let fits = |job: &JobId| {
        let id = job.to_string();
        !typed.is_empty() && (id.starts_with(&typed) || id.ends_with(&typed))
    };
    let reader = AuditReader::open(data)?;
    let deleted = reader.tombstones()?.into_iter().map(|tombstone| tombstone.deleted_job);
    let all: BTreeSet<JobId> =
        reader.jobs()?.into_iter().chain(deleted).chain(kept.jobs()).filter(fits).collect();
    let mut all = all.into_iter();
    match (all.next(), all.next()) {
        (Some(job), None) => Ok(job),
        (None, _) => {
            Err(OrchestratorError::Audit(format!("there is no job `{typed}` in {}", data.display())))
        }
        (Some(_), Some(_)) => Err(OrchestratorError::Audit(format!(
            "more than one job has an id that begins or ends with `{typed}`"
        ))),
    }
}

/// The signed heads of a job in a data folder, oldest first; of one that was deleted, the statement of that.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn export_heads(data: &Path, job: JobId) -> Result<Kept, OrchestratorError> {
    let reader = AuditReader::open(data)?;
    if reader.has(job)? {
        return Ok(Kept { heads: reader.heads(job)?, tombstones: Vec::new() });
    }
    match reader.tombstone(job)? {
        Some(tombstone) => Ok(Kept { heads: Vec::new(), tombstones: vec![tombstone] }),
        None => Err(OrchestratorError::NoJob(job)),
    }
}

/// The statements about all jobs of a data folder that were deleted, oldest first.
///
/// # Errors
/// The database cannot be read.
pub fn export_deletions(data: &Path) -> Result<Vec<Tombstone>, OrchestratorError> {
    AuditReader::open(data)?.tombstones()
}

/// What people did to a job over the API, oldest first: the events of its log that say who did it.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn deeds_of(data: &Path, job: JobId) -> Result<Vec<Event>, OrchestratorError> {
    let reader = AuditReader::open(data)?;
    if reader.has(job)? { reader.deeds(job) } else { Err(OrchestratorError::NoJob(job)) }
}

impl Orchestrator {
    /// Checks the log of a job against its own chain and its signed heads.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn audit(&self, id: JobId) -> Result<JobAudit, OrchestratorError> {
        self.core.store.verify(id).await
    }

    /// The signed heads of a job, oldest first; its end is signed now.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn heads(&self, id: JobId) -> Result<Vec<SignedHead>, OrchestratorError> {
        self.core.store.job(id).await?;
        self.core.store.sign_heads().await?;
        self.core.store.heads(id).await
    }

    /// The list of files that a job has touched so far: of its folder where it is over, else as the backend writes it.
    ///
    /// # Errors
    /// There is no such job, or no list yet.
    pub async fn file_list(&self, id: JobId) -> Result<std::path::PathBuf, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        let kept = self.core.folder.file_log(id);
        let live = view.sandbox.and_then(|sandbox| self.core.backend.file_list(sandbox));
        match live {
            Some(live) if !view.state.is_over() => {
                if let Some(sandbox) = view.sandbox {
                    self.core.backend.settle_file_list(sandbox).await;
                }
                let redactor = self.redactor_of(id);
                if redactor.is_idle() {
                    return Ok(live);
                }
                let copy = kept.with_extension("live");
                let copied =
                    tokio::task::spawn_blocking(move || copy_covered(&live, &copy, &redactor).map(|()| copy));
                copied
                    .await
                    .unwrap_or_else(|error| Err(std::io::Error::other(error)))
                    .map_err(OrchestratorError::io("copying the list of files"))
            }
            _ if kept.exists() => Ok(kept),
            _ => Err(OrchestratorError::NoFileList(id)),
        }
    }
}
