//! Performs one desktop action of a step, exactly once, across link failures and server restarts.

use std::time::{Duration, Instant as Clock};

use job::{CallEnd, CallRef, CallStatus, StepOptions};
use protocol::{GuiAction, ProtocolError};

use super::call::key_of;
use super::step_program::StepProgram;
use super::stop::wait_for_cancel;
use super::{Driver, DriverExit};
use crate::driver::desktop::{desktop_spec, end_of_action};
use crate::driver::desktop_script::explain_script;

impl Driver {
    pub(super) async fn run_gui_script(
        &mut self,
        call: &CallRef,
        script: &str,
        options: &StepOptions,
    ) -> Result<CallEnd, DriverExit> {
        if let Some(end) = self.start_desktop().await? {
            return Ok(end);
        }
        let (mut end, stderr) = self.run_process(call, StepProgram::of_script(script), options).await?;
        if end.status == CallStatus::Failed {
            end.reason = end.reason.map(|reason| explain_script(&reason, &stderr));
        }
        Ok(end)
    }

    /// Starts the desktop; returns the end of the call if that fails.
    async fn start_desktop(&mut self) -> Result<Option<CallEnd>, DriverExit> {
        let started = Clock::now();
        let desktop = desktop_spec(&self.spec);
        loop {
            let client = self.guest().await?;
            match client.start_desktop(desktop.clone()).await {
                Ok(()) => return Ok(None),
                Err(error) if error.is_retryable() => self.after_break(error).await?,
                Err(error) => {
                    let end = end_of_action(&self.recorder, Err(error), started).await?;
                    return Ok(Some(end));
                }
            }
        }
    }

    pub(super) async fn run_gui_action(
        &mut self,
        call: &CallRef,
        action: &GuiAction,
        options: &StepOptions,
    ) -> Result<CallEnd, DriverExit> {
        let started = Clock::now();
        let timeout = Duration::from_secs_f64(self.timeout_s(options));
        let mut control_request = self.control_request.clone();
        let expiry = self.core.host_disk.sleep_unfrozen(timeout);
        tokio::pin!(expiry);
        let key = key_of(call);
        let desktop = desktop_spec(&self.spec);
        let done = loop {
            let client = self.guest().await?;
            // For a key that the guest knows, it returns the earlier result: no action is performed twice.
            let asking = client.act_on_desktop(desktop.clone(), Some(key.clone()), action.clone());
            let asked = tokio::select! {
                asked = asking => asked,
                () = wait_for_cancel(&mut control_request) => return Err(DriverExit::Cancelled),
                () = self.time_over() => return Err(DriverExit::Deadline),
                () = &mut expiry => {
                    let end = CallEnd {
                        status: CallStatus::Failed,
                        code: Some("timeout".into()),
                        reason: Some(format!("it took longer than {} s", timeout.as_secs_f64())),
                        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                        ..CallEnd::default()
                    };
                    return Ok(end);
                }
            };
            match asked {
                Err(error @ (ProtocolError::Io(_) | ProtocolError::Closed)) => {
                    self.after_break(error).await?
                }
                settled => break settled,
            }
        };
        Ok(end_of_action(&self.recorder, done, started).await?)
    }
}
