//! Runs the agent of a task job: connects it to the log, the sandbox and the clock, and maps how it ended to the
//! job's outcome.

mod abilities;
mod code;
mod environment;
pub(crate) mod events;
mod execute;
mod host;
mod instructions;
mod mcp;
mod memory;
mod network_text;
mod process_output;
mod recall;
mod screen;
mod transcript;

use std::collections::HashMap;
use std::sync::Arc;

use agent::{Agent, AgentParts, Host, RunOutcome, SequencedEvent, Stopped, Toolbox, tools};
use job::{
    CALLS, CallEnd, CallRef, CallStatus, Event, EventBody, EventKind, JobId, Kinds, LostKernel, NewEvent,
    OUTPUT, OnKernelLoss, Work, is_agent_call,
};
use protocol::CallKey;
use sandbox::Ended;
use store::Store;

use self::network_text::network_text;
use super::pause::{Pause, STUCK, with_remedy};
use super::{Driver, DriverExit, describe};
use crate::error::OrchestratorError;
use crate::recorder::StateReason;

pub(super) use self::host::AgentHost;

/// The events that a sandbox loss notice is based on.
const CALLS_AND_CHECKPOINTS: Kinds = Kinds::Only(&[EventKind::CallStarted, EventKind::Checkpoint]);
/// The events that start a model request or end it.
const TURNS: Kinds = Kinds::Only(&[
    EventKind::TurnStarted,
    EventKind::ModelAnswered,
    EventKind::ModelAnswerLost,
    EventKind::ContextChanged,
    EventKind::StateChanged,
]);
/// Error codes of a model whose server may no longer exist.
const GONE: [&str; 2] = ["model_unreachable", "model_cut"];

impl Driver {
    /// Runs the agent until it is done. `None` means that the task succeeded; otherwise the reason why the job
    /// failed.
    pub(super) async fn run_agent(&mut self) -> Result<Option<StateReason>, DriverExit> {
        self.interrupt_api_calls().await?;
        if self.is_cancelled() {
            self.end_calls(&DriverExit::Cancelled).await?;
            return Err(DriverExit::Cancelled);
        }
        self.past.clear();
        let settings = self.spec.agent.clone();
        self.tried_settings = Some(*self.core.models.changes().borrow());
        let model = match self.core.models.get(settings.model.as_deref()).await {
            Ok(model) => model,
            Err(error) => {
                let why = StateReason::new(error.code(), with_remedy(error.code(), error.to_string()));
                let retry_after = error.is_retryable().then(|| error.retry_after().unwrap_or_default());
                return Err(DriverExit::Paused(Pause { why, retry_after }));
            }
        };
        self.charge_interrupted_answer(model.as_ref()).await?;
        let log = self.recorder.follow_events().await?;
        // Needed soon, and takes a while to load.
        context::tokens::prepare();
        let probe = self.probe(environment::script(&log)).await?;
        let mut host = AgentHost::new(self, &log).await?;
        host.describe_environment(&log, &probe.report, model.limits().context_tokens).await?;
        host.read_instructions(&log).await?;
        host.start_tools(&log).await?;
        let ceiling = self.egress.as_ref().and_then(|egress| egress.proxy().policy().ceiling().cloned());
        let parts = AgentParts {
            toolbox: Toolbox::new(tools::standard(), &probe.abilities),
            extra: host.external_tools(),
            settings,
            model: Arc::clone(&model),
            egress: network_text(&self.spec, ceiling.as_ref()),
            cache_key: self.recorder.job().to_string(),
            recall: self.recall(),
            summaries: self.core.settings().context.summaries,
        };
        let past: Vec<SequencedEvent> = log.iter().filter_map(events::logged).collect();
        drop(log);
        let mut agent = Agent::new(parts, &past)
            .map_err(|error| DriverExit::Failed(OrchestratorError::Agent { why: describe(&error) }))?;
        drop(past);
        let turns_before = agent.conversation().spent().turns;
        let ended = Box::pin(agent.run(&host)).await;
        self.speech.clear_snapshot();
        host.save_memory(agent.conversation()).await;
        let result = outcome_of_run(ended);
        let has_answered = agent.conversation().spent().turns > turns_before;
        drop(host);
        if has_answered {
            self.model_failures = 0;
        }
        if let Err(stop) = &result {
            if matches!(stop, DriverExit::Paused(pause) if GONE.contains(&pause.why.code.as_str())) {
                self.core.models.forget(self.spec.agent.model.as_deref(), &model);
            }
            self.end_calls(stop).await?;
        }
        result
    }

    /// Accounts for a model answer that was cut off by the end of an earlier server process. Only the cost of the
    /// prompt is known.
    async fn charge_interrupted_answer(&self, model: &dyn model::Model) -> Result<(), DriverExit> {
        let log = self.core.store.all_events(self.recorder.job(), TURNS, 0).await?;
        let Some(cut) = interrupted_request(&log) else { return Ok(()) };
        let usage = model::Usage { input: u64::from(cut.prompt_tokens), ..model::Usage::default() };
        let lost = agent::ModelAnswerLost {
            turn: cut.turn,
            model: cut.model.clone(),
            usage,
            cost: model.cost_at_most(&usage),
            problem: "the server ended while the model answered".into(),
        };
        Ok(self.recorder.record(EventBody::ModelAnswerLost(Box::new(lost))).await?)
    }

    /// Records an end for calls that were aborted together with the job.
    async fn end_calls(&self, stop: &DriverExit) -> Result<(), DriverExit> {
        let (code, reason) = match stop {
            DriverExit::Cancelled => ("cancelled", "the job was cancelled"),
            DriverExit::Deadline => ("deadline", "the job's time was over"),
            DriverExit::Paused(_) | DriverExit::Lost(_) | DriverExit::NoRoom(_) | DriverExit::Failed(_) => {
                return Ok(());
            }
        };
        let log = self.core.store.all_events(self.recorder.job(), CALLS, 0).await?;
        for call in open_calls(&log).into_iter().filter(|call| is_agent_call(&call.id)) {
            self.kill_orphaned(&call).await;
            let end = CallEnd {
                status: CallStatus::Failed,
                code: Some(code.into()),
                reason: Some(reason.into()),
                ..CallEnd::default()
            };
            self.recorder.record(EventBody::CallEnded(end).of(&call)).await?;
        }
        Ok(())
    }

    /// Kills the process of a call that an earlier server process started. Those of this process are already killed.
    async fn kill_orphaned(&self, call: &CallRef) {
        let killing = async {
            let client = self.guest().await.ok()?;
            client.kill(CallKey::new(call.id.clone(), call.attempt)).await.ok()
        };
        let _ = tokio::time::timeout(self.core.settings().guest_answer_timeout, killing).await;
    }

    /// The notice that tells the agent which of its calls were undone by the sandbox loss.
    pub(super) async fn sandbox_loss_events(
        &self,
        ended: &Ended,
        kernels: &[LostKernel],
    ) -> Result<Vec<NewEvent>, OrchestratorError> {
        if !matches!(self.spec.work, Work::Task(_)) {
            return Ok(Vec::new());
        }
        let log = self.core.store.all_events(self.recorder.job(), CALLS_AND_CHECKPOINTS, 0).await?;
        let replay = self.spec.on_kernel_loss == OnKernelLoss::Replay;
        Ok(vec![EventBody::AgentNotified(events::loss_notice(&log, ended, kernels, replay)).into()])
    }
}

/// The model request whose answer was never received because the server ended. Anything else that interrupts a
/// request changes the job's state.
fn interrupted_request(log: &[Event]) -> Option<&agent::TurnStarted> {
    match &log.last()?.body {
        EventBody::TurnStarted(started) => Some(started),
        _ => None,
    }
}

/// Maps the end of an agent run to the job's outcome.
fn outcome_of_run(ended: Result<RunOutcome, Stopped>) -> Result<Option<StateReason>, DriverExit> {
    match ended {
        Ok(RunOutcome::Finished(finished)) if finished.is_done() => Ok(None),
        Ok(RunOutcome::Finished(finished)) => Ok(Some(StateReason::new("gave_up", finished.summary))),
        Ok(RunOutcome::Stuck(why)) => {
            let reason = format!(
                "{why}; tell the agent what to do instead (`caisson message`), or let it try again (`caisson resume`)"
            );
            Err(DriverExit::Paused(Pause { why: StateReason::new(STUCK, reason), retry_after: None }))
        }
        Ok(RunOutcome::Waiting(request)) => {
            let reason = format!("{} (`caisson requests` shows it, {})", request.text, request.id);
            Err(DriverExit::Paused(Pause {
                why: StateReason::new(request.kind.pause_code(), reason),
                retry_after: None,
            }))
        }
        Ok(RunOutcome::Paused { code, reason, retry_after }) => {
            let reason = with_remedy(&code, reason);
            Err(DriverExit::Paused(Pause { why: StateReason { code, reason }, retry_after }))
        }
        Err(stopped) => Err(stop_of(stopped)),
    }
}

/// Unwraps a stop that [`stopped`] has wrapped.
fn stop_of(Stopped(stop): Stopped) -> DriverExit {
    match stop.downcast::<DriverExit>() {
        Ok(stop) => *stop,
        Err(_) => {
            DriverExit::Failed(OrchestratorError::Agent { why: "the agent stopped without a reason".into() })
        }
    }
}

/// Wraps a stop so that the agent can return it.
pub(super) fn stopped(stop: impl Into<DriverExit>) -> Stopped {
    Stopped(Box::new(stop.into()))
}

/// The calls that have started and not ended.
fn open_calls(log: &[Event]) -> Vec<CallRef> {
    let mut open: Vec<CallRef> = Vec::new();
    for event in log {
        match (&event.body, &event.call) {
            (EventBody::CallStarted { .. }, Some(call)) => open.push(call.clone()),
            (EventBody::CallEnded(_), Some(call)) => open.retain(|other| other != call),
            _ => {}
        }
    }
    open
}

/// The output events of calls that have started and not ended, by call; includes their sub-calls.
pub(super) async fn open_outputs(
    store: &dyn Store,
    job: JobId,
    log: &[Event],
) -> Result<HashMap<String, Vec<Event>>, OrchestratorError> {
    let open = open_calls(log);
    let mut outputs: HashMap<String, Vec<Event>> = HashMap::new();
    let is_open = |event: &&Event| event.call.as_ref().is_some_and(|call| open.contains(call));
    let Some(first) = log.iter().find(is_open) else { return Ok(outputs) };
    let belongs =
        |id: &str| open.iter().any(|call| id == call.id || id.starts_with(&format!("{}-", call.id)));
    let mut take = |events: Vec<Event>| {
        for event in events {
            if let Some(call) = event.call.as_ref().filter(|call| belongs(&call.id)) {
                outputs.entry(call.id.clone()).or_default().push(event);
            }
        }
    };
    store.each_page(job, OUTPUT, first.sequence, &mut take).await?;
    Ok(outputs)
}

/// State shared with background tasks.
type Shared<T> = Arc<std::sync::Mutex<T>>;

#[cfg(test)]
mod tests {
    use super::*;
    use job::JobState;

    #[test]
    fn model_request_is_interrupted_if_no_answer_or_state_change_follows() {
        let asked =
            agent::TurnStarted { turn: 3, model: "m".into(), prompt_tokens: 7, status: String::new() };
        let event = |body| Event { sequence: 1, time_ms: 0, call: None, actor: None, body };
        let mut log = vec![event(EventBody::TurnStarted(asked.clone()))];
        assert_eq!(interrupted_request(&log), Some(&asked));
        log.push(event(EventBody::StateChanged { state: JobState::Paused, code: None, reason: None }));
        assert_eq!(interrupted_request(&log), None);
    }
}
