//! Runs the steps of a step job, one after another.

use std::collections::HashMap;

use job::{
    CallEnd, CallRef, CallStatus, ControlRequest, EventBody, InvalidField, Step, StepCall, StepOptions,
    StepStatus, StepView, call_of_step, is_agent_call,
};
use protocol::{Exec, ExecOutcome};
use sandbox::Usage;
use tokio::time::Instant;

use super::browser_call::CallStart;
use super::call::{self, Begin, JobCall, key_of};
use super::call_outcome::{Evidence, explain_end};
use super::process_environment::environment;
use super::step_program::StepProgram;
use super::{Captured, Driver, DriverExit, OutputSink};
use crate::error::OrchestratorError;
use crate::recorder::StateReason;

/// How many bytes of stderr are kept for the end of a process.
const ERROR_BYTES: usize = 4096;

impl Driver {
    /// Runs the remaining steps. `None` means that all did what was expected; otherwise the reason why the job
    /// failed.
    pub(super) async fn run_steps(&mut self, steps: &[Step]) -> Result<Option<StateReason>, DriverExit> {
        self.interrupt_api_calls().await?;
        let mut failures = self.count_failures();
        loop {
            let view = self.recorder.view().await;
            // A call that an earlier server started is stopped and gets an end before the job stops.
            if view.steps.iter().all(|step| step.status != StepStatus::Running) {
                if self.is_cancelled() {
                    return Err(DriverExit::Cancelled);
                }
                if view.control_request == Some(ControlRequest::Pause) {
                    return Err(DriverExit::Paused(super::pause::paused_by_user()));
                }
                if self.is_time_over() {
                    return Err(DriverExit::Deadline);
                }
            }
            let Some((index, status)) = next_step(steps, &view.steps, &failures) else { return Ok(None) };
            let step = &steps[index];
            if status == StepStatus::Failed && failures.get(&index).copied().unwrap_or(1) > step.options.retry
            {
                return Ok(Some(failure_of(index, step, &view.steps[index])));
            }
            let end = self.run_step(index, steps, &view.steps[index]).await?;
            if end.status == CallStatus::Failed {
                *failures.entry(index).or_default() += 1;
            } else {
                self.checkpoint_if_due(index + 1, steps.len()).await?;
            }
        }
    }

    async fn run_step(
        &mut self,
        index: usize,
        steps: &[Step],
        seen: &StepView,
    ) -> Result<CallEnd, DriverExit> {
        let step = &steps[index];
        let begun_before = seen.status == StepStatus::Running;
        let attempt = if begun_before { seen.attempts } else { seen.attempts + 1 };
        let call = CallRef { id: call_of_step(index), attempt };
        if !begun_before {
            // No event of an earlier attempt concerns this one.
            self.past.clear();
            let input = serde_json::to_value(&step.tool).unwrap_or_default();
            let started =
                EventBody::CallStarted { step: Some(index), tool: step.tool.name().to_owned(), input };
            self.recorder.record(started.of(&call)).await?;
        }
        let started = Instant::now();
        let origin = if begun_before { CallStart::Before } else { CallStart::Now };
        let result = match step.tool.call() {
            Ok(step_call) => self.run_step_call(&call, step_call, &step.options, origin).await,
            Err(invalid) => Ok(end_of_invalid(&invalid)),
        };
        self.past.clear();
        let end = match result {
            Ok(end) => end,
            Err(stop) => {
                if let Some(end) = end_of_stop(&stop, started) {
                    self.recorder.record(EventBody::CallEnded(end).of(&call)).await?;
                }
                return Err(stop);
            }
        };
        self.recorder.record(EventBody::CallEnded(end.clone()).of(&call)).await?;
        // After the last step, the guest goes away together with everything it remembers.
        if end.status == CallStatus::Failed || index + 1 < steps.len() {
            self.forget_call(key_of(&call));
        }
        self.checkpoint_schedule().worked(started.elapsed());
        Ok(end)
    }

    async fn run_step_call(
        &mut self,
        call: &CallRef,
        step_call: StepCall<'_>,
        options: &StepOptions,
        origin: CallStart,
    ) -> Result<CallEnd, DriverExit> {
        match step_call {
            StepCall::Process(program) => Ok(self.run_process(call, program.into(), options).await?.0),
            StepCall::Cell(cell) => {
                // A call that started before the server restart has already been checked.
                if origin == CallStart::Now
                    && let Some(refused) = self.refuse_cell(cell.language.wanted()).await?
                {
                    return Ok(refused.end());
                }
                Ok(self.run_process(call, StepProgram::of_cell(&cell), options).await?.0)
            }
            StepCall::File(operation) => self.run_file_call(call, operation).await,
            StepCall::Action(action) => self.run_gui_action(call, action, options).await,
            StepCall::Script(script) => self.run_gui_script(call, script, options).await,
            StepCall::Browser(input) => self.run_browser_step(input, options, origin).await,
        }
    }

    /// How long a step with these options may take, in seconds.
    pub(super) fn timeout_s(&self, options: &StepOptions) -> f64 {
        options.timeout_s.unwrap_or(self.spec.step_timeout.as_secs_f64())
    }

    /// Runs a process; returns how it ended and the start of its stderr.
    pub(super) async fn run_process(
        &mut self,
        call: &CallRef,
        program: StepProgram,
        options: &StepOptions,
    ) -> Result<(CallEnd, String), DriverExit> {
        let timeout = self.timeout_s(options);
        let exec = self.exec_of(call, program, timeout);
        let expectation = options.expect.as_ref();
        let wanted = expectation.and_then(|expected| expected.stdout_contains.as_deref());
        let mut sink = OutputSink::new(
            std::sync::Arc::clone(&self.recorder),
            call.clone(),
            wanted,
            Captured::new(ERROR_BYTES),
        );
        sink.resume(&self.past);
        self.update_usage_baseline(call).await;
        let outcome = self.run_exec(exec, &mut sink).await?;
        let after = self.usage_after(&outcome).await;
        let end = explain_end(&Evidence {
            outcome: &outcome,
            expectation,
            text_found: sink.found(),
            hints: sink.limit_hints(),
            before: self.attributed_usage,
            after,
            timeout_s: timeout,
        });
        self.attributed_usage = after;
        let kernel = outcome.kernel.as_ref().map(|kernel| kernel.name.as_str());
        let end = end.with_note(self.recorder.refusals_of(call, kernel).await);
        let stderr = String::from_utf8_lossy(&sink.into_captured().stderr).into_owned();
        Ok((end, stderr))
    }

    /// Runs a process, or follows it if it was started before; `sink` receives its output.
    async fn run_exec(&self, exec: Exec, sink: &mut OutputSink) -> Result<ExecOutcome, DriverExit> {
        let key = exec.key.clone();
        let may_be_known = !self.past.is_empty() || sink.wanted_chunk() > 0;
        let exec = Box::new(exec);
        let begin = if may_be_known { Begin::Resume(exec) } else { Begin::Start(exec) };
        let followed = call::run(&mut JobCall::until_end(self), &key, begin, sink).await?;
        let outcome = followed.outcome().map_err(OrchestratorError::from)?;
        sink.flush_all().await?;
        Ok(outcome)
    }

    fn exec_of(&self, call: &CallRef, program: StepProgram, timeout_s: f64) -> Exec {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked when the job was accepted"
        )]
        let timeout_ms = (timeout_s * 1000.0).ceil() as u64;
        Exec {
            key: key_of(call),
            program: program.program,
            environment: environment(&self.spec, call),
            directory: None,
            stdin: program.stdin,
            keep_stdin_open: false,
            terminal: None,
            timeout_ms: Some(timeout_ms),
            kill_grace_ms: 2000,
        }
    }

    /// Updates the usage baseline, so that limit hits from before this call are not attributed to it. Skipped for the
    /// first call in a new sandbox, and for a call that an earlier server started: its own limit hits may be in the
    /// counters already.
    async fn update_usage_baseline(&mut self, call: &CallRef) {
        let is_first = call.id == call_of_step(0) && call.attempt == 1;
        if !is_first && self.past.is_empty() {
            self.attributed_usage = self.usage(self.attributed_usage).await;
        }
    }

    /// The sandbox's counters; only queried if the process failed.
    async fn usage_after(&self, outcome: &ExecOutcome) -> Usage {
        if outcome.end == protocol::ExecEnd::Code(0) {
            return self.attributed_usage;
        }
        self.usage(self.attributed_usage).await
    }

    /// The sandbox's counters; `before` if they cannot be read.
    pub(super) async fn usage(&self, before: Usage) -> Usage {
        let Some(sandbox) = self.recorder.with_view(|view| view.sandbox).await else { return before };
        self.core.backend.observe(sandbox).await.map_or(before, |observed| observed.usage)
    }

    /// Ends API calls that were in flight when the previous server died: nobody waits for their result any more.
    pub(super) async fn interrupt_api_calls(&mut self) -> Result<(), DriverExit> {
        let mut open: Vec<CallRef> = Vec::new();
        for event in &self.past {
            match (&event.body, &event.call) {
                (EventBody::CallStarted { step: None, .. }, Some(call))
                    // Further attempts are started, and continued, by the driver only.
                    if !is_agent_call(&call.id) && !call.id.starts_with("setup-") && call.attempt == 1 =>
                {
                    open.push(call.clone());
                }
                (EventBody::CallEnded(_), Some(call)) => open.retain(|other| other != call),
                _ => {}
            }
        }
        for call in open {
            let end = CallEnd {
                status: CallStatus::Interrupted,
                code: Some("interrupted".into()),
                reason: Some("the server was restarted; what was begun may still run".into()),
                ..CallEnd::default()
            };
            self.recorder.record(EventBody::CallEnded(end).of(&call)).await?;
        }
        Ok(())
    }

    /// How often each step has failed since the sandbox was last lost.
    fn count_failures(&self) -> HashMap<usize, u32> {
        let mut failures = HashMap::new();
        let mut current: HashMap<&str, usize> = HashMap::new();
        for event in &self.past {
            match (&event.body, &event.call) {
                (EventBody::CallStarted { step: Some(step), .. }, Some(call)) => {
                    current.insert(&call.id, *step);
                }
                (EventBody::CallEnded(end), Some(call)) if end.status == CallStatus::Failed => {
                    if let Some(step) = current.get(call.id.as_str()) {
                        *failures.entry(*step).or_default() += 1;
                    }
                }
                (EventBody::SandboxLost { .. }, _) => failures.clear(),
                _ => {}
            }
        }
        failures
    }
}

/// The first step that is not finished. A failed step counts if it ends the job or has attempts left.
fn next_step(
    steps: &[Step],
    views: &[StepView],
    failures: &HashMap<usize, u32>,
) -> Option<(usize, StepStatus)> {
    views.iter().zip(steps).find_map(|(view, step)| {
        let tries_left = failures.get(&view.index).copied().unwrap_or(1) <= step.options.retry;
        let done = match view.status {
            StepStatus::Succeeded => true,
            StepStatus::Failed => step.options.continue_on_error && !tries_left,
            StepStatus::Pending | StepStatus::Running => false,
        };
        (!done).then_some((view.index, view.status))
    })
}

fn failure_of(index: usize, step: &Step, view: &StepView) -> StateReason {
    let name = step.options.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let reason = view.reason.clone().unwrap_or_default();
    // An exceeded limit is reported as the job's own error code; any other failure as `step_failed`.
    let limits = ["out_of_memory", "disk_full", "too_many_processes"];
    let code = view.code.as_deref().filter(|code| limits.contains(code)).unwrap_or("step_failed");
    StateReason::new(code, format!("step {}{name}: {reason}", index + 1))
}

/// The end of a step that cannot run.
fn end_of_invalid(invalid: &InvalidField) -> CallEnd {
    CallEnd {
        status: CallStatus::Failed,
        code: Some("invalid_field".into()),
        reason: Some(invalid.to_string()),
        ..CallEnd::default()
    }
}

/// The end of a call that was stopped together with the job. `None` if the sandbox is gone; that is recorded
/// elsewhere.
pub(super) fn end_of_stop(stop: &DriverExit, started: Instant) -> Option<CallEnd> {
    let (code, reason) = match stop {
        DriverExit::Cancelled => ("cancelled", "the job was cancelled"),
        DriverExit::Deadline => ("deadline", "the job's time was over"),
        DriverExit::Lost(_) | DriverExit::NoRoom(_) | DriverExit::Failed(_) | DriverExit::Paused(_) => {
            return None;
        }
    };
    Some(CallEnd {
        status: CallStatus::Failed,
        code: Some(code.into()),
        reason: Some(reason.into()),
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        ..CallEnd::default()
    })
}
