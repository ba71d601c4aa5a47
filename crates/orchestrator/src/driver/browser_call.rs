//! Runs `browser` steps.
//!
//! The page is controlled from the host and the guest keeps no journal of it. So a step that was running when the
//! server died is not repeated; it ends as interrupted, which fails it unless the step has retries left.

use std::time::{Duration, Instant as Clock};

use job::{BrowserInput, CallEnd, CallStatus, StepOptions};

use super::stop::wait_for_cancel;
use super::{Driver, DriverExit};
use crate::driver::browser::{BrowserError, BrowserOutcome, perform};
use crate::driver::desktop::store_screenshot;

/// Whether the step was already running when the previous server process died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallStart {
    Now,
    Before,
}

impl Driver {
    pub(super) async fn run_browser_step(
        &mut self,
        input: &BrowserInput,
        options: &StepOptions,
        origin: CallStart,
    ) -> Result<CallEnd, DriverExit> {
        if origin == CallStart::Before {
            return Ok(failed("interrupted", "the server was restarted while the browser worked".into()));
        }
        let started = Clock::now();
        let mut control_request = self.control_request.clone();
        let timeout = self.timeout_s(options);
        let expiry = self.core.host_disk.sleep_unfrozen(Duration::from_secs_f64(timeout));
        let client = self.guest().await?;
        let done = tokio::select! {
            done = perform(&client, &self.spec, input) => done,
            () = wait_for_cancel(&mut control_request) => return Err(DriverExit::Cancelled),
            () = self.time_over() => return Err(DriverExit::Deadline),
            () = expiry => Err(BrowserError::Timeout(format!("it took longer than {timeout} s"))),
        };
        let mut end = match done {
            Ok(BrowserOutcome { mut facts, picture }) => {
                if let Some(png) = picture {
                    facts["screenshot"] = store_screenshot(&self.recorder, &png).await?;
                }
                CallEnd { result: Some(facts), ..CallEnd::default() }
            }
            Err(error) => failed(error.code(), error.explain()),
        };
        end.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(end)
    }
}

fn failed(code: &str, reason: String) -> CallEnd {
    CallEnd {
        status: CallStatus::Failed,
        code: Some(code.to_owned()),
        reason: Some(reason),
        ..CallEnd::default()
    }
}
