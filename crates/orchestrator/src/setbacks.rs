//! Retries for jobs whose driver failed: when a new driver may start, and when the job fails.
//!
//! A driver ends early only when the store or the data folder fails, or through a bug in the server. Errors that may
//! be temporary are retried with exponential backoff; other errors fail the job with the error's code. A cancelled
//! job is not retried after a bug: it ends.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::core::Core;
use crate::driver::{checkpoint_artifact, describe, interrupt_calls};
use crate::error::OrchestratorError;
use crate::event::{EventBody, Fence, Wish};
use crate::ids::{Generation, JobId};
use crate::state::JobState;

/// The delay after the first failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest delay.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The longest delay for errors that the operator can resolve: the job should continue soon afterwards.
const LONGEST_SURE_WAIT: Duration = Duration::from_secs(30);
/// How often an error that may be temporary is retried.
const MOST_TRIES: u32 = 8;

/// What happens to a job whose driver failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// A new driver starts after this delay.
    TryAgain(Duration),
    GiveUp,
}

#[derive(Debug, Clone)]
struct Setback {
    count: u32,
    not_before: Instant,
    /// What the operator must do, as an error message.
    waits_for: Option<String>,
    /// Whether the job waits for the backend to answer.
    is_for_backend: bool,
}

/// The jobs whose driver failed since the server started.
#[derive(Default)]
pub(crate) struct Setbacks {
    jobs: Mutex<HashMap<JobId, Setback>>,
}

impl Setbacks {
    /// Records a driver failure and decides what happens to the job.
    pub(crate) fn add(&self, job: JobId, error: &OrchestratorError) -> Remedy {
        let mut jobs = self.lock();
        let count = jobs.get(&job).map_or(0, |setback| setback.count) + 1;
        let hope = hope(error);
        let longest = if hope == Hope::Always { LONGEST_SURE_WAIT } else { LONGEST_WAIT };
        let wait = FIRST_WAIT.saturating_mul(1 << (count - 1).min(16)).min(longest);
        let waits_for = error.is_passing().then(|| error.to_string());
        let is_for_backend = error.is_backend_away();
        jobs.insert(job, Setback { count, not_before: Instant::now() + wait, waits_for, is_for_backend });
        match hope {
            Hope::Always => Remedy::TryAgain(wait),
            Hope::Some if count < MOST_TRIES => Remedy::TryAgain(wait),
            Hope::Some | Hope::None => Remedy::GiveUp,
        }
    }

    /// Whether a new driver may start now.
    pub(crate) fn may_try(&self, job: JobId) -> bool {
        self.lock().get(&job).is_none_or(|setback| setback.not_before <= Instant::now())
    }

    /// What the waiting jobs need from the operator.
    pub(crate) fn waiting(&self) -> Vec<String> {
        self.lock().values().filter_map(|setback| setback.waits_for.clone()).collect()
    }

    /// Lets all jobs that wait for the backend continue, because it answers again.
    pub(crate) fn hurry(&self) {
        for setback in self.lock().values_mut().filter(|setback| setback.is_for_backend) {
            setback.not_before = Instant::now();
            setback.waits_for = None;
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

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Setback>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decides what happens to a job whose driver failed. The reconciler removes the job's sandbox if necessary.
pub(crate) async fn after_failure(
    core: &Arc<Core>,
    job: JobId,
    generation: Generation,
    error: &OrchestratorError,
) {
    let cause = describe(error);
    if matches!(error, OrchestratorError::Fault { .. })
        && core.store.job(job).await.is_ok_and(|view| view.wish == Some(Wish::Cancel))
    {
        tracing::error!(%job, error = cause.as_str(), "the driver failed, the job was cancelled");
        let why = (JobState::Cancelled, "cancelled".to_owned(), "somebody asked for it".to_owned());
        return end(core, job, generation, why).await;
    }
    match core.setbacks.add(job, error) {
        Remedy::TryAgain(wait) => {
            tracing::error!(%job, error = cause, wait_s = wait.as_secs(), "the driver failed, trying again");
            say_why_queued(core, job, generation, error).await;
            look_again(core, wait);
        }
        Remedy::GiveUp => {
            tracing::error!(%job, error = cause.as_str(), "the driver failed, the job ends");
            end(core, job, generation, (JobState::Failed, error.code().to_owned(), cause)).await;
        }
    }
}

/// Logs why a job stays in the queue, unless its log already says so. Ignores store errors.
async fn say_why_queued(core: &Core, job: JobId, generation: Generation, error: &OrchestratorError) {
    let Ok(view) = core.store.job(job).await else { return };
    if view.state != JobState::Queued || view.code.is_some() || !error.is_passing() {
        return;
    }
    let why = EventBody::StateChanged {
        state: JobState::Queued,
        code: Some(error.code().to_owned()),
        reason: Some(error.to_string()),
    };
    let _ = core.store.append(job, Fence::Owner(generation), vec![why.into()]).await;
}

/// Notifies the scheduler when the job may be tried again.
fn look_again(core: &Arc<Core>, wait: Duration) {
    let waiting = Arc::clone(core);
    core.tasks.spawn(async move {
        tokio::select! {
            () = waiting.shutdown.cancelled() => {}
            () = tokio::time::sleep(wait) => waiting.queue_changed.notify_one(),
        }
    });
}

async fn end(
    core: &Arc<Core>,
    job: JobId,
    generation: Generation,
    (state, code, reason): (JobState, String, String),
) {
    let mut events = interrupt_calls(core, job, "the job ended while it ran").await.unwrap_or_default();
    match checkpoint_artifact(core, job).await {
        Ok(artifact) => events.extend(artifact.map(|artifact| EventBody::ArtifactStored(artifact).into())),
        // Nothing is lost: the checkpoint stays where it is, and the job is tried again.
        Err(error) if error.is_passing() => {
            return tracing::error!(%job, %error, "its result cannot be stored");
        }
        Err(error) => tracing::error!(%job, %error, "the checkpoint cannot be read"),
    }
    events.push(EventBody::StateChanged { state, code: Some(code), reason: Some(reason) }.into());
    match core.store.append(job, Fence::Owner(generation), events).await {
        Ok(_) => core.setbacks.forget(job),
        // The job stays as it is; the retry delay has grown to minutes.
        Err(error) => tracing::error!(%job, %error, "nor can its end be stored"),
    }
}

/// Whether an error is temporary.
#[derive(Debug, PartialEq, Eq)]
enum Hope {
    /// It goes away once the operator acts; nothing is lost by waiting.
    Always,
    /// It may go away by itself.
    Some,
    /// It would happen again.
    None,
}

fn hope(error: &OrchestratorError) -> Hope {
    match error {
        error if error.is_passing() => Hope::Always,
        OrchestratorError::ShuttingDown => Hope::Always,
        OrchestratorError::Io { source, .. } => match source.kind() {
            ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::AlreadyExists
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::InvalidData => Hope::None,
            _ => Hope::Some,
        },
        // The bug may depend on circumstances that were temporary.
        OrchestratorError::Fault { .. } => Hope::Some,
        error if error.is_retryable() => Hope::Some,
        _ => Hope::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreadable() -> OrchestratorError {
        OrchestratorError::Unreadable { what: "an event".into(), source: "no JSON".into() }
    }

    fn store_failed() -> OrchestratorError {
        OrchestratorError::Store { what: "reading the log".into(), source: "i/o error".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again_after_growing_waits_and_has_an_end() {
        let (setbacks, job) = (Setbacks::default(), JobId::generate());
        let mut waits = Vec::new();
        while let Remedy::TryAgain(wait) = setbacks.add(job, &store_failed()) {
            assert!(!setbacks.may_try(job));
            tokio::time::advance(wait).await;
            assert!(setbacks.may_try(job));
            waits.push(wait.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64]);
        setbacks.forget(job);
        assert!(setbacks.may_try(job));
        assert_eq!(setbacks.add(job, &store_failed()), Remedy::TryAgain(FIRST_WAIT), "it counts anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_answers_again_ends_the_wait_of_those_that_waited_for_it() {
        let setbacks = Setbacks::default();
        let (one, other) = (JobId::generate(), JobId::generate());
        let away = sandbox::SandboxError::Unavailable { what: "gone".into(), remedy: "start it".into() };
        let away = OrchestratorError::from(away);
        let last = (0..100).map(|_| setbacks.add(one, &away)).last();
        assert_eq!(last, Some(Remedy::TryAgain(LONGEST_SURE_WAIT)));
        setbacks.add(other, &OrchestratorError::DiskFull);
        assert_eq!(setbacks.waiting().len(), 2);
        setbacks.hurry();
        assert!(setbacks.may_try(one) && !setbacks.may_try(other));
        assert_eq!(setbacks.waiting(), [OrchestratorError::DiskFull.to_string()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_disk_is_waited_for_as_long_as_it_takes() {
        let (setbacks, job) = (Setbacks::default(), JobId::generate());
        let last = (0..100).map(|_| setbacks.add(job, &OrchestratorError::DiskFull)).last();
        assert_eq!(last, Some(Remedy::TryAgain(LONGEST_SURE_WAIT)));
    }

    #[tokio::test]
    async fn what_would_only_happen_again_ends_the_job_at_once() {
        let io =
            |kind: ErrorKind| OrchestratorError::Io { doing: "making a folder".into(), source: kind.into() };
        for error in [unreadable(), io(ErrorKind::NotADirectory), io(ErrorKind::PermissionDenied)] {
            assert_eq!(Setbacks::default().add(JobId::generate(), &error), Remedy::GiveUp, "{error}");
        }
        assert_ne!(Setbacks::default().add(JobId::generate(), &io(ErrorKind::Other)), Remedy::GiveUp);
    }
}
