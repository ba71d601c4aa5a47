//! Verifies the logs of a data folder, and exports what shows later that they were not changed.
//!
//! The hash of each event covers the one before (`chain.rs`). A [`SignedHead`](crate::SignedHead) is the signed hash of
//! one event. A head that was kept elsewhere pins everything up to that event, even against someone who can write to the
//! database and has the signing key. Each head names the one before, so that none can be removed from between others.
//! The store signs heads at intervals and at the end of a job (`sqlite/heads.rs`). `evidence/check.rs` verifies the log;
//! `sqlite/derived.rs` verifies what was derived from it.

use std::collections::BTreeSet;
use std::path::Path;

use job::{Event, JobId};

use crate::database::{AuditReader, LocalDatabase};
use crate::error::StoreError;
use crate::evidence::check::{AuditReport, JobAudit};
use crate::evidence::external_records::ExternalRecords;
use crate::evidence::file_digests::{self, NetworkFile, job_folder};
use crate::evidence::tombstone::Tombstone;
use crate::evidence::trust::TrustedKeys;

/// Verifies the logs of a data folder (one job or all), the files beside them, and what was kept elsewhere. Heads and
/// deletion statements in the database count only if one of the trusted keys signed them. A server may be using the
/// folder at the same time.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn verify_audit(
    database: &dyn LocalDatabase,
    data: &Path,
    job: Option<JobId>,
    kept: &ExternalRecords,
    trusted: &TrustedKeys,
) -> Result<AuditReport, StoreError> {
    let reader = database.audit_reader(data)?;
    let jobs = match job {
        Some(job) => vec![job],
        None => reader.jobs()?,
    };
    let mut report = AuditReport::default();
    for job in &jobs {
        report.jobs.push(verify_job((data, &*reader), *job, kept, trusted)?);
    }
    if job.is_none() {
        let gone: BTreeSet<JobId> = kept.jobs().filter(|job| !jobs.contains(job)).collect();
        for job in &gone {
            report.jobs.push(verify_job((data, &*reader), *job, kept, trusted)?);
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
    (data, reader): (&Path, &dyn AuditReader),
    job: JobId,
    kept: &ExternalRecords,
    trusted: &TrustedKeys,
) -> Result<JobAudit, StoreError> {
    let heads = kept.of(job);
    if reader.has(job)? {
        let folder = job_folder(data, job);
        let audit = reader.check(job, &heads, trusted, NetworkFile::of(&folder))?;
        // An unreadable log is already reported as a fault.
        let stored = reader.stored_files(job).ok().flatten();
        return Ok(
            stored.map_or(audit.clone(), |stored| audit.with_files(file_digests::look(&folder, &stored)))
        );
    }
    // Prefer the statement in the database. Someone who removed that one as well could not remove what was kept
    // elsewhere.
    let deletion = reader.tombstone(job)?.or_else(|| kept.tombstone(job).cloned());
    if deletion.is_none() && heads.is_empty() {
        return Err(StoreError::NoJob(job));
    }
    Ok(JobAudit::gone(job, &heads, deletion, trusted))
}

/// Finds the job, in a data folder or in what was kept, whose id begins or ends with `typed`; finds deleted jobs,
/// too.
///
/// # Errors
/// No job matches, or more than one does.
pub fn find_job_id(
    database: &dyn LocalDatabase,
    data: &Path,
    typed: &str,
    kept: &ExternalRecords,
) -> Result<JobId, StoreError> {
    let typed = typed.to_ascii_lowercase();
    let fits = |job: &JobId| {
        let id = job.to_string();
        !typed.is_empty() && (id.starts_with(&typed) || id.ends_with(&typed))
    };
    let reader = database.audit_reader(data)?;
    let deleted = reader.tombstones()?.into_iter().map(|tombstone| tombstone.deleted_job);
    let all: BTreeSet<JobId> =
        reader.jobs()?.into_iter().chain(deleted).chain(kept.jobs()).filter(fits).collect();
    let mut all = all.into_iter();
    match (all.next(), all.next()) {
        (Some(job), None) => Ok(job),
        (None, _) => Err(StoreError::Audit(format!("there is no job `{typed}` in {}", data.display()))),
        (Some(_), Some(_)) => {
            Err(StoreError::Audit(format!("more than one job has an id that begins or ends with `{typed}`")))
        }
    }
}

/// The signed heads of a job in a data folder, oldest first; for a deleted job, its deletion statement.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn export_heads(
    database: &dyn LocalDatabase,
    data: &Path,
    job: JobId,
) -> Result<ExternalRecords, StoreError> {
    let reader = database.audit_reader(data)?;
    if reader.has(job)? {
        return Ok(ExternalRecords { heads: reader.heads(job)?, tombstones: Vec::new() });
    }
    match reader.tombstone(job)? {
        Some(tombstone) => Ok(ExternalRecords { heads: Vec::new(), tombstones: vec![tombstone] }),
        None => Err(StoreError::NoJob(job)),
    }
}

/// The deletion statements of all deleted jobs in a data folder, oldest first.
///
/// # Errors
/// The database cannot be read.
pub fn export_deletions(database: &dyn LocalDatabase, data: &Path) -> Result<Vec<Tombstone>, StoreError> {
    database.audit_reader(data)?.tombstones()
}

/// What users did to a job over the API, oldest first: the events of its log that have an actor.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn user_actions_of(
    database: &dyn LocalDatabase,
    data: &Path,
    job: JobId,
) -> Result<Vec<Event>, StoreError> {
    let reader = database.audit_reader(data)?;
    if reader.has(job)? { reader.user_actions(job) } else { Err(StoreError::NoJob(job)) }
}
