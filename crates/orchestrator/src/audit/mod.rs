//! Tamper evidence for the event log: signed heads of its hash chain, and the verification of both.
//!
//! The hash of each event covers the one before (`store/chain.rs`). A [`SignedHead`] is the signed hash of one event.
//! A head that was kept elsewhere pins everything up to that event, even against someone who can write to the
//! database and has the signing key. Each head names the one before, so that none can be removed from between others.
//! The store signs heads at intervals and at the end of a job (`store/sqlite/heads.rs`). [`check`] verifies the log;
//! `store/sqlite/derived.rs` verifies what was derived from it.

pub(crate) mod user_actions;

use std::collections::BTreeSet;
use std::path::Path;

use job::{Event, JobId};

use crate::core::Orchestrator;
use crate::data_folder::DataFolder;
use crate::driver::copy_redacted;
use crate::error::OrchestratorError;
use crate::store::AuditReader;
use crate::store::evidence::check::{AuditReport, JobAudit};
use crate::store::evidence::external_records::ExternalRecords;
use crate::store::evidence::file_digests::{self, NetworkFile};
use crate::store::evidence::head::SignedHead;
use crate::store::evidence::tombstone::Tombstone;
use crate::store::evidence::trust::TrustedKeys;

/// Verifies the logs of a data folder (one job or all), the files beside them, and what was kept elsewhere. Heads and
/// deletion statements in the database count only if one of the trusted keys signed them. A server may be using the
/// folder at the same time.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn verify_audit(
    data: &Path,
    job: Option<JobId>,
    kept: &ExternalRecords,
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
    kept: &ExternalRecords,
    trusted: &TrustedKeys,
) -> Result<JobAudit, OrchestratorError> {
    let heads = kept.of(job);
    if reader.has(job)? {
        let folder = DataFolder::job_in(data, job);
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
        return Err(OrchestratorError::NoJob(job));
    }
    Ok(JobAudit::gone(job, &heads, deletion, trusted))
}

/// Finds the job, in a data folder or in what was kept, whose id begins or ends with `typed`; finds deleted jobs,
/// too.
///
/// # Errors
/// No job matches, or more than one does.
pub fn find_job_id(data: &Path, typed: &str, kept: &ExternalRecords) -> Result<JobId, OrchestratorError> {
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

/// The signed heads of a job in a data folder, oldest first; for a deleted job, its deletion statement.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn export_heads(data: &Path, job: JobId) -> Result<ExternalRecords, OrchestratorError> {
    let reader = AuditReader::open(data)?;
    if reader.has(job)? {
        return Ok(ExternalRecords { heads: reader.heads(job)?, tombstones: Vec::new() });
    }
    match reader.tombstone(job)? {
        Some(tombstone) => Ok(ExternalRecords { heads: Vec::new(), tombstones: vec![tombstone] }),
        None => Err(OrchestratorError::NoJob(job)),
    }
}

/// The deletion statements of all deleted jobs in a data folder, oldest first.
pub fn export_deletions(data: &Path) -> Result<Vec<Tombstone>, OrchestratorError> {
    AuditReader::open(data)?.tombstones()
}

/// What users did to a job over the API, oldest first: the events of its log that have an actor.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn user_actions_of(data: &Path, job: JobId) -> Result<Vec<Event>, OrchestratorError> {
    let reader = AuditReader::open(data)?;
    if reader.has(job)? { reader.user_actions(job) } else { Err(OrchestratorError::NoJob(job)) }
}

impl Orchestrator {
    /// Verifies the log of a job against its hash chain and its signed heads.
    pub async fn audit(&self, id: JobId) -> Result<JobAudit, OrchestratorError> {
        self.core.store.verify(id).await
    }

    /// The signed heads of a job, oldest first. Signs the end of its log first.
    pub async fn heads(&self, id: JobId) -> Result<Vec<SignedHead>, OrchestratorError> {
        self.core.store.job(id).await?;
        self.core.store.sign_heads().await?;
        self.core.store.heads(id).await
    }

    /// The list of files that a job has touched so far: from the job's folder if the job is over, otherwise the one
    /// the backend is writing.
    ///
    /// # Errors
    /// There is no such job, or no list yet.
    pub async fn file_list(&self, id: JobId) -> Result<std::path::PathBuf, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        let kept = self.core.folder.file_log(id);
        let live = match (view.sandbox, self.core.backend.file_audit()) {
            (Some(sandbox), Some(audit)) if !view.state.is_over() => audit.open(sandbox).await?,
            _ => None,
        };
        match live {
            Some(mut live) => {
                let redactor = self.redactor_of(id);
                let copy = kept.with_extension("live");
                let copied = tokio::task::spawn_blocking(move || {
                    copy_redacted(&mut live, &copy, &redactor).map(|()| copy)
                });
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
