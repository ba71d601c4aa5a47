//! Paused jobs: they wait for a person, a larger budget or a model. The sandbox and the link stay open, and a person
//! may use both.

use std::sync::atomic::Ordering;
use std::time::Duration;

use agent::InputRequest;
use job::{ControlRequest, EventBody, JobView, Transition};
use tokio::time::Instant;

use super::stop::wait_for_cancel;
use super::{Driver, cancelled};
use crate::clock::now_ms;
use crate::error::OrchestratorError;
use crate::recorder::StateReason;

/// Maximum delay between two attempts with a failing model.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(600);
/// Maximum delay that a provider may ask for.
const MAX_PROVIDER_DELAY: Duration = Duration::from_secs(24 * 3600);
/// Maximum time between two checks of the clock.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
/// Codes of pauses that end by themselves after some time.
const RETRIED_CODES: [&str; 6] =
    ["rate_limited", "model_server", "model_unreachable", "model_cut", "model_timeout", "model_malformed"];

/// Code of the pause of an agent that repeats itself. A message lets it go on.
pub(crate) const STUCK: &str = "stuck";

/// Codes of pauses that require a change of the model settings; once these change, the job tries again.
const FIXED_BY_SETTINGS: [&str; 5] =
    ["model_auth", "unknown_model", "model_no_credit", "model_rejected", "model_settings"];

/// Appends to the reason how to fix the problem, unless the reason already says so.
pub(super) fn with_remedy(code: &str, reason: String) -> String {
    if !FIXED_BY_SETTINGS.contains(&code) {
        return reason;
    }
    format!(
        "{reason}; correct the model settings, and the job continues by itself; or try again with `caisson resume`"
    )
}

/// Why a job is paused, and whether it resumes by itself.
#[derive(Debug)]
pub(crate) struct Pause {
    pub(super) why: StateReason,
    /// If the job resumes by itself: the minimum delay, as requested by the provider.
    pub(super) retry_after: Option<Duration>,
}

/// A user paused the job.
pub(super) fn paused_by_user() -> Pause {
    let why = StateReason::new("user", "paused by a user; resume it with `caisson resume`");
    Pause { why, retry_after: None }
}

impl Driver {
    /// Records that the job is paused.
    pub(super) async fn pause(&mut self, pause: Pause) -> Result<(), OrchestratorError> {
        if pause.retry_after.is_some() {
            self.model_failures += 1;
        }
        self.asked_to_wait = pause.retry_after.unwrap_or_default();
        self.recorder.change(Vec::new(), Transition::Paused, Some(pause.why)).await
    }

    /// Waits until the reason for the pause is gone, then resumes the job.
    pub(super) async fn wait_while_paused(&mut self, view: &JobView) -> Result<(), OrchestratorError> {
        self.is_paused.store(true, Ordering::Relaxed);
        self.core.queue_changed.notify_one();
        let (since, waited) = (Instant::now(), self.recorder.waiting().total());
        let ended = self.wait_until_resumable(view).await;
        // Waiting for the operator, such as for a database, is counted by itself.
        let counted = self.recorder.waiting().total().saturating_sub(waited);
        self.work_time.add_wait(since.elapsed().saturating_sub(counted));
        self.is_paused.store(false, Ordering::Relaxed);
        ended
    }

    async fn wait_until_resumable(&mut self, view: &JobView) -> Result<(), OrchestratorError> {
        let code = view.code.clone().unwrap_or_default();
        let retry_at = RETRIED_CODES
            .contains(&code.as_str())
            .then(|| Instant::now() + retry_delay(self.model_failures, self.asked_to_wait));
        let mut settings = self.core.models.changes();
        let are_settings_changed = |settings: &mut tokio::sync::watch::Receiver<u64>, tried: Option<u64>| {
            FIXED_BY_SETTINGS.contains(&code.as_str()) && tried != Some(*settings.borrow_and_update())
        };
        // Open the link, so that a person can use the sandbox and a lost sandbox is noticed.
        if let Err(stop) = self.guest().await {
            return Box::pin(self.stop(stop)).await;
        }
        loop {
            let changed = self.recorder.changed();
            let now = self.recorder.view().await;
            if self.is_cancelled() || now.control_request == Some(ControlRequest::Cancel) {
                return self.recorder.change(Vec::new(), Transition::WorkOver, Some(cancelled())).await;
            }
            let is_time = retry_at.is_some_and(|at| Instant::now() >= at)
                || are_settings_changed(&mut settings, self.tried_settings);
            if can_resume(&now, &code, is_time, self.has_model()) {
                return self.recorder.change(Vec::new(), Transition::Resumed, None).await;
            }
            let deadline = self.expire_request(&now).await?;
            let mut control_request = self.control_request.clone();
            let client = self.guest.borrow().clone();
            tokio::select! {
                () = changed => {}
                () = wait_for_cancel(&mut control_request) => {}
                () = tokio::time::sleep(deadline.unwrap_or(MAX_SLEEP)) => {}
                () = tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {}
                () = self.core.model_found.notified(), if code == "no_model" => {}
                Ok(()) = settings.changed() => {}
                _ = async { match &client { Some(client) => client.link().closed().await, None => std::future::pending().await } } => {
                    if let Err(stop) = self.guest().await {
                        return Box::pin(self.stop(stop)).await;
                    }
                }
            }
        }
    }

    /// Puts a job without a sandbox back into the queue when a user resumes it or the missing model is available.
    pub(super) async fn requeue_if_resumed(&mut self, view: &JobView) -> Result<(), OrchestratorError> {
        let waits_for_model = view.code.as_deref() == Some("no_model");
        let may = if waits_for_model { self.has_model() } else { view.is_resume_requested };
        if !may || view.control_request == Some(ControlRequest::Pause) {
            return Ok(());
        }
        self.recorder.change(Vec::new(), Transition::Requeued, None).await?;
        self.core.queue_changed.notify_one();
        Ok(())
    }

    fn has_model(&self) -> bool {
        self.core.models.is_available(self.spec.agent.model.as_deref())
    }

    /// Expires requests whose deadline has passed; returns the time until the next deadline.
    async fn expire_request(&self, view: &JobView) -> Result<Option<Duration>, OrchestratorError> {
        let requests = view.agent.as_ref().map(|agent| agent.requests.as_slice()).unwrap_or_default();
        let now = now_ms();
        let left = |request: &InputRequest| request.deadline_ms.map(|deadline| deadline.saturating_sub(now));
        for request in requests {
            if left(request).is_some_and(|left| left <= 0) {
                let event = EventBody::InputAnswered { id: request.id.clone(), answer: None };
                self.recorder.record(event).await?;
            }
        }
        let next = requests.iter().filter_map(left).filter(|left| *left > 0).min();
        // If one has just expired, continue at once, because the view has changed.
        let next = if requests.iter().any(|request| left(request).is_some_and(|left| left <= 0)) {
            Some(0)
        } else {
            next
        };
        Ok(next.map(|left| Duration::from_millis(u64::try_from(left).unwrap_or(0))))
    }
}

/// The delay after this many consecutive failures, at least as long as the provider asked for.
fn retry_delay(failures: u32, asked: Duration) -> Duration {
    let pause = Duration::from_secs(10) * 2u32.saturating_pow(failures.min(8));
    pause.min(MAX_RETRY_DELAY).max(asked.min(MAX_PROVIDER_DELAY))
}

/// Whether the reason for the pause is gone.
fn can_resume(view: &JobView, code: &str, is_time: bool, has_model: bool) -> bool {
    let agent = view.agent.as_ref();
    let is_taken_over = agent.is_some_and(|agent| agent.taken_over_by.is_some());
    if view.control_request == Some(ControlRequest::Pause) || is_taken_over {
        return false;
    }
    let is_answered = agent.is_some_and(|agent| agent.requests.is_empty());
    match code {
        "question" | "approval" => is_answered,
        "takeover" => true,
        "no_model" => has_model,
        _ => view.is_resume_requested || is_time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_grows_with_failures_and_respects_the_provider() {
        let seconds = |failures, asked| retry_delay(failures, Duration::from_secs(asked)).as_secs();
        assert_eq!([seconds(0, 0), seconds(1, 0), seconds(3, 0), seconds(40, 0)], [10, 20, 80, 600]);
        assert_eq!(seconds(1, 3600), 3600);
        assert_eq!(seconds(1, 5), 20);
        assert_eq!(seconds(1, u64::MAX / 2), 24 * 3600);
    }
}
