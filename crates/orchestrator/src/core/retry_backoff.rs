//! Retries for jobs whose driver failed: when a new driver may start, and when the job fails.
//!
//! A driver ends early only when the store or the data folder fails, or through a bug in the server. Errors that may
//! be temporary are retried with exponential backoff; other errors fail the job with the error's code. A cancelled
//! job is not retried after a bug: it ends.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use job::JobId;
use store::StoreError;
use tokio::time::Instant;

use crate::error::OrchestratorError;

/// The delay after the first failure; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_secs(300);
/// The longest delay for errors that the operator can resolve: the job should continue soon afterwards.
const MAX_OPERATOR_DELAY: Duration = Duration::from_secs(30);
/// How often an error that may be temporary is retried.
const MAX_TRIES: u32 = 8;

/// What happens to a job whose driver failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A new driver starts after this delay.
    RetryAfter(Duration),
    Fail,
}

#[derive(Debug, Clone)]
struct DriverFailure {
    count: u32,
    not_before: Instant,
    /// What the operator must do, as an error message.
    waits_for: Option<String>,
    /// Whether the job waits for the backend to answer.
    is_for_backend: bool,
}

/// The jobs whose driver failed since the server started.
#[derive(Default)]
pub(crate) struct RetryBackoff {
    jobs: Mutex<HashMap<JobId, DriverFailure>>,
}

impl RetryBackoff {
    /// Records a driver failure and decides what happens to the job.
    pub(crate) fn add(&self, job: JobId, error: &OrchestratorError) -> Decision {
        let mut jobs = self.lock();
        let count = jobs.get(&job).map_or(0, |failure| failure.count) + 1;
        let retryability = retryability(error);
        let longest = if retryability == Retryability::Always { MAX_OPERATOR_DELAY } else { MAX_DELAY };
        let wait = FIRST_DELAY.saturating_mul(1 << (count - 1).min(16)).min(longest);
        let waits_for = error.needs_operator().then(|| error.to_string());
        let is_for_backend = error.is_backend_unavailable();
        jobs.insert(
            job,
            DriverFailure { count, not_before: Instant::now() + wait, waits_for, is_for_backend },
        );
        match retryability {
            Retryability::Always => Decision::RetryAfter(wait),
            Retryability::Some if count < MAX_TRIES => Decision::RetryAfter(wait),
            Retryability::Some | Retryability::None => Decision::Fail,
        }
    }

    /// Whether a new driver may start now.
    pub(crate) fn may_try(&self, job: JobId) -> bool {
        self.lock().get(&job).is_none_or(|failure| failure.not_before <= Instant::now())
    }

    /// What the waiting jobs need from the operator.
    pub(crate) fn waiting(&self) -> Vec<String> {
        self.lock().values().filter_map(|failure| failure.waits_for.clone()).collect()
    }

    /// Lets all jobs that wait for the backend continue, because it answers again.
    pub(crate) fn hurry(&self) {
        for failure in self.lock().values_mut().filter(|failure| failure.is_for_backend) {
            failure.not_before = Instant::now();
            failure.waits_for = None;
        }
    }

    /// Number of jobs with a failed driver.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Forgets the failures of a job whose driver has succeeded.
    pub(crate) fn forget(&self, job: JobId) {
        self.lock().remove(&job);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, DriverFailure>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an error is temporary.
#[derive(Debug, PartialEq, Eq)]
enum Retryability {
    /// It goes away once the operator acts; nothing is lost by waiting.
    Always,
    /// It may go away by itself.
    Some,
    /// It would happen again.
    None,
}

fn retryability(error: &OrchestratorError) -> Retryability {
    match error {
        error if error.needs_operator() => Retryability::Always,
        OrchestratorError::Store(StoreError::Closed) => Retryability::Always,
        OrchestratorError::Io { source, .. } | OrchestratorError::Store(StoreError::Io { source, .. }) => {
            match source.kind() {
                ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::AlreadyExists
                | ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::InvalidData => Retryability::None,
                _ => Retryability::Some,
            }
        }
        // The bug may depend on circumstances that were temporary.
        OrchestratorError::Fault { .. } => Retryability::Some,
        error if error.is_retryable() => Retryability::Some,
        _ => Retryability::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreadable() -> OrchestratorError {
        StoreError::Unreadable { what: "an event".into(), source: "no JSON".into() }.into()
    }

    fn store_failed() -> OrchestratorError {
        StoreError::Failed { what: "reading the log".into(), source: "i/o error".into() }.into()
    }

    #[tokio::test(start_paused = true)]
    async fn temporary_errors_are_retried_with_backoff_and_a_limit() {
        let (retry_backoff, job) = (RetryBackoff::default(), JobId::generate());
        let mut waits = Vec::new();
        while let Decision::RetryAfter(wait) = retry_backoff.add(job, &store_failed()) {
            assert!(!retry_backoff.may_try(job));
            tokio::time::advance(wait).await;
            assert!(retry_backoff.may_try(job));
            waits.push(wait.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64]);
        retry_backoff.forget(job);
        assert!(retry_backoff.may_try(job));
        assert_eq!(
            retry_backoff.add(job, &store_failed()),
            Decision::RetryAfter(FIRST_DELAY),
            "it counts anew"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn backend_recovery_ends_the_delay_of_jobs_that_wait_for_it() {
        let retry_backoff = RetryBackoff::default();
        let (one, other) = (JobId::generate(), JobId::generate());
        let away = sandbox::SandboxError::Unavailable { what: "gone".into(), remedy: "start it".into() };
        let away = OrchestratorError::from(away);
        let last = (0..100).map(|_| retry_backoff.add(one, &away)).last();
        assert_eq!(last, Some(Decision::RetryAfter(MAX_OPERATOR_DELAY)));
        retry_backoff.add(other, &StoreError::DiskFull.into());
        assert_eq!(retry_backoff.waiting().len(), 2);
        retry_backoff.hurry();
        assert!(retry_backoff.may_try(one) && !retry_backoff.may_try(other));
        assert_eq!(retry_backoff.waiting(), [StoreError::DiskFull.to_string()]);
    }

    #[tokio::test(start_paused = true)]
    async fn full_disk_is_retried_without_limit() {
        let (retry_backoff, job) = (RetryBackoff::default(), JobId::generate());
        let last = (0..100).map(|_| retry_backoff.add(job, &StoreError::DiskFull.into())).last();
        assert_eq!(last, Some(Decision::RetryAfter(MAX_OPERATOR_DELAY)));
    }

    #[tokio::test]
    async fn permanent_errors_fail_the_job_at_once() {
        let io =
            |kind: ErrorKind| OrchestratorError::Io { doing: "making a folder".into(), source: kind.into() };
        for error in [unreadable(), io(ErrorKind::NotADirectory), io(ErrorKind::PermissionDenied)] {
            assert_eq!(RetryBackoff::default().add(JobId::generate(), &error), Decision::Fail, "{error}");
        }
        assert_ne!(RetryBackoff::default().add(JobId::generate(), &io(ErrorKind::Other)), Decision::Fail);
    }
}
