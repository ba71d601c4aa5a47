//! What happens to a job whose driver failed: it is tried again later, or ends.

use std::sync::Arc;
use std::time::Duration;

use job::{ControlRequest, EventBody, Fence, Generation, JobId, JobState};

use crate::core::Core;
use crate::core::retry_backoff::Decision;
use crate::driver::{describe, interrupt_calls, store_checkpoint_result};
use crate::error::OrchestratorError;

/// Decides what happens to a job whose driver failed. The reconciler removes the job's sandbox if necessary.
pub(crate) async fn handle_driver_failure(
    core: &Arc<Core>,
    job: JobId,
    generation: Generation,
    error: &OrchestratorError,
) {
    let cause = describe(error);
    if matches!(error, OrchestratorError::Fault { .. })
        && core.store.job(job).await.is_ok_and(|view| view.control_request == Some(ControlRequest::Cancel))
    {
        tracing::error!(%job, error = cause.as_str(), "the driver failed, the job was cancelled");
        let why = (JobState::Cancelled, "cancelled".to_owned(), "cancelled by a user".to_owned());
        return end(core, job, generation, why).await;
    }
    match core.retry_backoff.add(job, error) {
        Decision::RetryAfter(wait) => {
            tracing::error!(%job, error = cause, wait_s = wait.as_secs(), "the driver failed, trying again");
            log_queue_reason(core, job, generation, error).await;
            schedule_retry(core, wait);
        }
        Decision::Fail => {
            tracing::error!(%job, error = cause.as_str(), "the driver failed, the job ends");
            end(core, job, generation, (JobState::Failed, error.code().to_owned(), cause)).await;
        }
    }
}

/// Logs why a job stays in the queue, unless its log already says so. Ignores store errors.
async fn log_queue_reason(core: &Core, job: JobId, generation: Generation, error: &OrchestratorError) {
    let Ok(view) = core.store.job(job).await else { return };
    if view.state != JobState::Queued || view.code.is_some() || !error.needs_operator() {
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
fn schedule_retry(core: &Arc<Core>, wait: Duration) {
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
    let mut events = interrupt_calls(core, job, "its sandbox ended while it ran").await.unwrap_or_default();
    match store_checkpoint_result(core, job).await {
        Ok(stored) => events.extend(stored),
        // Nothing is lost: the checkpoint stays where it is, and the job is tried again.
        Err(error) if error.needs_operator() => {
            return tracing::error!(%job, %error, "its result cannot be stored");
        }
        Err(error) => tracing::error!(%job, %error, "the checkpoint cannot be read"),
    }
    events.push(EventBody::StateChanged { state, code: Some(code), reason: Some(reason) }.into());
    match core.store.append(job, Fence::Owner(generation), events).await {
        Ok(_) => core.retry_backoff.forget(job),
        // The job stays as it is; the retry delay has grown to minutes.
        Err(error) => tracing::error!(%job, %error, "nor can its end be stored"),
    }
}
