//! What holds the log: signed heads of its chain of hashes, and the check of both.
//!
//! Every event's hash covers the one before (`store/chain.rs`). A [`SignedHead`] is the hash of one event with a signature; one that
//! was kept elsewhere pins everything up to it, also against who can write to the database and has the key. The
//! store signs (`store/sqlite/heads.rs`) at intervals and at the end of a job; [`check`] compares.

mod check;
mod dropped;
mod head;
mod key;
mod trust;

pub use check::{AuditReport, JobAudit};
pub(crate) use check::{Checker, Row};
pub(crate) use dropped::DropStatement;
pub use head::{SignedHead, read_heads};
pub use key::PUBLIC_KEY_FILE;
pub(crate) use key::SigningKey;
pub use trust::TrustedKeys;
pub(crate) use trust::trust_old_keys;

use std::collections::BTreeSet;
use std::path::Path;

use crate::driver::copy_covered;
use crate::error::OrchestratorError;
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::store::AuditReader;

/// Checks the logs of a data folder, of one job or of all, and heads that were kept elsewhere. Heads of the database count
/// where one of the trusted keys has signed them. A server may be using the folder meanwhile.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn verify_audit(
    data: &Path,
    job: Option<JobId>,
    kept: &[SignedHead],
    trusted: &TrustedKeys,
) -> Result<AuditReport, OrchestratorError> {
    let reader = AuditReader::open(data)?;
    let jobs = match job {
        Some(job) => vec![job],
        None => reader.jobs()?,
    };
    let mut report = AuditReport::default();
    for job in &jobs {
        let of_job: Vec<SignedHead> = kept.iter().filter(|head| head.job == *job).cloned().collect();
        let is_there = reader.has(*job)?;
        if !is_there && of_job.is_empty() {
            return Err(OrchestratorError::NoJob(*job));
        }
        report.jobs.push(if is_there {
            reader.check(*job, &of_job, trusted)?
        } else {
            JobAudit::gone(*job, &of_job)
        });
    }
    if job.is_none() {
        let gone: BTreeSet<JobId> =
            kept.iter().map(|head| head.job).filter(|job| !jobs.contains(job)).collect();
        for job in gone {
            let of_job: Vec<SignedHead> = kept.iter().filter(|head| head.job == job).cloned().collect();
            report.jobs.push(JobAudit::gone(job, &of_job));
        }
    }
    report.is_sound = report.jobs.iter().all(|job| job.faults.is_empty());
    Ok(report)
}

/// The job of a data folder, or of one of these heads, whose id begins or ends so.
///
/// # Errors
/// None has such an id, or more than one.
pub fn find_audited(data: &Path, typed: &str, kept: &[SignedHead]) -> Result<JobId, OrchestratorError> {
    let typed = typed.to_ascii_lowercase();
    let fits = |job: &JobId| {
        let id = job.to_string();
        !typed.is_empty() && (id.starts_with(&typed) || id.ends_with(&typed))
    };
    let there = AuditReader::open(data)?.jobs()?;
    let all: BTreeSet<JobId> =
        there.into_iter().chain(kept.iter().map(|head| head.job)).filter(fits).collect();
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

/// The signed heads of a job in a data folder, oldest first.
///
/// # Errors
/// The database cannot be read, or there is no such job.
pub fn export_heads(data: &Path, job: JobId) -> Result<Vec<SignedHead>, OrchestratorError> {
    let reader = AuditReader::open(data)?;
    if reader.has(job)? { reader.heads(job) } else { Err(OrchestratorError::NoJob(job)) }
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
