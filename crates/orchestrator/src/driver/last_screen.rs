//! The last screenshot of a job: what its desktop shows just before the workspace is collected.

use std::time::Duration;

use bytes::Bytes;
use job::{CALLS, CallEnd, Event, EventBody, JobView, Work};
use protocol::GuiAction;
use serde_json::Value;

use super::{Driver, DriverExit};
use crate::clock::now_ms;
use crate::driver::desktop::{desktop_spec, is_announced, is_running, store_screenshot};
use crate::error::OrchestratorError;

/// How long the job waits for the screenshot.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A screenshot that the last call has taken this recently is good enough.
const RECENT_MS: i64 = 5000;
/// Step jobs without desktop that are shorter than this do not ask the guest whether there is one: decision 40.
const SHORT_JOB_MS: i64 = 5000;
/// Events at the end of the log that are searched for the last call.
const LAST_EVENTS: u64 = 100;
/// Tools whose images show the whole screen.
const ON_SCREEN: [&str; 2] = ["gui", "screenshot"];

impl Driver {
    /// Logs a screenshot if the desktop is running. Without one, the job ends all the same.
    pub(super) async fn capture_last_screen(&self, view: &JobView) {
        if !self.may_have_desktop(view) || self.core.host_disk.shortage().is_some() {
            return;
        }
        let job = self.recorder.job();
        let captured = match tokio::time::timeout(TIMEOUT, self.take_last_screen()).await {
            Ok(Ok(Some(screenshot))) => self
                .recorder
                .append_now(vec![EventBody::ScreenCaptured { screenshot }.into()])
                .await
                .map(drop),
            Ok(Ok(None)) => Ok(()),
            Ok(Err(DriverExit::Failed(error))) => Err(error),
            Ok(Err(stop)) => return tracing::debug!(%job, ?stop, "no last screenshot"),
            Err(_) => return tracing::debug!(%job, "the last screenshot takes too long"),
        };
        if let Err(error) = captured {
            tracing::debug!(%job, error = &error as &dyn std::error::Error, "no last screenshot");
        }
    }

    fn may_have_desktop(&self, view: &JobView) -> bool {
        let lasted_ms = now_ms().saturating_sub(view.started_ms.unwrap_or(i64::MAX));
        matches!(self.spec.work, Work::Task(_)) || is_announced(&self.spec) || lasted_ms >= SHORT_JOB_MS
    }

    /// Takes and stores a screenshot; `None` if the desktop is not running, or if the log has a recent one.
    async fn take_last_screen(&self) -> Result<Option<Value>, DriverExit> {
        let client = self.guest().await?;
        if !is_running(&client).await.map_err(OrchestratorError::from)? || self.has_recent_screen().await? {
            return Ok(None);
        }
        let taking = client.act_on_desktop(desktop_spec(&self.spec), None, GuiAction::Screenshot);
        let png: Bytes = taking.await.map_err(OrchestratorError::from)?.1;
        Ok(Some(store_screenshot(&self.recorder, &png).await?))
    }

    async fn has_recent_screen(&self) -> Result<bool, OrchestratorError> {
        let after = self.recorder.last().await.saturating_sub(LAST_EVENTS);
        let calls = self.core.store.all_events(self.recorder.job(), CALLS, after).await?;
        Ok(ends_with_screen(&calls, now_ms()))
    }
}

/// Whether the last event of calls is the end of one that has just taken a screenshot.
fn ends_with_screen(calls: &[Event], now_ms: i64) -> bool {
    let Some((Event { call, time_ms, body: EventBody::CallEnded(end), .. }, earlier)) = calls.split_last()
    else {
        return false;
    };
    let shows_screen = earlier.iter().any(|event| match &event.body {
        EventBody::CallStarted { tool, .. } => event.call == *call && ON_SCREEN.contains(&tool.as_str()),
        _ => false,
    });
    shows_screen && has_image(end) && now_ms.saturating_sub(*time_ms) <= RECENT_MS
}

fn has_image(end: &CallEnd) -> bool {
    let Some(result) = &end.result else { return false };
    let has_images = result["images"].as_array().is_some_and(|images| !images.is_empty());
    has_images || !result["screenshot"].is_null()
}

#[cfg(test)]
mod tests {
    use job::CallRef;
    use serde_json::json;

    use super::*;

    fn calls(tools: &[(&str, Value)]) -> Vec<Event> {
        let pairs = tools.iter().enumerate().flat_map(|(index, (tool, result))| {
            let call = CallRef { id: format!("step-{index}"), attempt: 1 };
            let started = EventBody::CallStarted { step: None, tool: (*tool).to_owned(), input: Value::Null };
            let end = CallEnd { result: Some(result.clone()), ..CallEnd::default() };
            [started, EventBody::CallEnded(end)].map(|body| (call.clone(), body))
        });
        let event = |(call, body)| Event { sequence: 1, time_ms: 1000, call: Some(call), actor: None, body };
        pairs.map(event).collect()
    }

    #[test]
    fn screenshot_of_the_last_call_is_the_last_one_if_it_is_recent() {
        let screen = || json!({"screenshot": {"digest": "00"}});
        let image = || json!({"images": [{"digest": "00"}]});
        for taken in [calls(&[("gui", screen())]), calls(&[("shell", json!({})), ("screenshot", image())])] {
            assert!(ends_with_screen(&taken, 1000 + RECENT_MS), "{taken:?}");
            assert!(!ends_with_screen(&taken, 1001 + RECENT_MS), "{taken:?}");
        }
        let others = [
            Vec::new(),
            calls(&[("gui", json!({"windows": []}))]),
            calls(&[("python", image())]),
            calls(&[("gui", screen()), ("shell", json!({}))]),
            calls(&[("screenshot", json!({"images": []}))]),
        ];
        for calls in others {
            assert!(!ends_with_screen(&calls, 1000), "{calls:?}");
        }
    }
}
