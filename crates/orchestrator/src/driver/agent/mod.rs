//! Runs the agent of a task job: connects it to the log, the sandbox and the clock, and maps how it ended to the
//! job's outcome.

mod abilities;
mod code;
pub(crate) mod events;
mod execute;
mod host;
mod instructions;
mod mcp;
mod memory;
mod recall;
mod screen;
mod transcript;

use std::collections::HashMap;
use std::sync::Arc;

use agent::{Agent, AgentParts, Ending, Host, Logged, Stopped, Toolbox, tools};
use protocol::CallKey;
use sandbox::Ended;

pub(super) use self::host::AgentHost;
use super::pause::{Pause, with_remedy};
use super::{Driver, Stop, describe};
use crate::agent_view::is_agent_call;
use crate::error::OrchestratorError;
use crate::event::{CallEnd, CallRef, CallStatus, Event, EventBody, NewEvent};
use crate::ids::JobId;
use crate::kernels::{LostKernel, OnKernelLoss};
use crate::recorder::Why;
use crate::request::Work;
use crate::store::{CALLS, Kinds, OUTPUT, Store};

/// The events that a sandbox loss notice is based on.
const CALLS_AND_CHECKPOINTS: Kinds = Kinds::Only(&["call_started", "checkpoint"]);
/// The events that start a model request or end it.
const TURNS: Kinds =
    Kinds::Only(&["turn_started", "model_answered", "model_answer_lost", "context_changed", "state_changed"]);
/// Error codes of a model whose server may no longer exist.
const GONE: [&str; 2] = ["model_unreachable", "model_cut"];

impl Driver {
    /// Runs the agent until it is done. `None` means that the task succeeded; otherwise the reason why the job
    /// failed.
    pub(super) async fn run_agent(&mut self) -> Result<Option<Why>, Stop> {
        self.interrupt_api_calls().await?;
        if self.is_cancelled() {
            self.end_calls(&Stop::Cancelled).await?;
            return Err(Stop::Cancelled);
        }
        self.past.clear();
        let settings = self.spec.agent.clone();
        self.tried_settings = Some(*self.core.models.changes().borrow());
        let model = match self.core.models.get(settings.model.as_deref()).await {
            Ok(model) => model,
            Err(error) => {
                let why = Why::new(error.code(), with_remedy(error.code(), error.to_string()));
                let retry_after = error.is_retryable().then(|| error.retry_after().unwrap_or_default());
                return Err(Stop::Paused(Pause { why, retry_after }));
            }
        };
        self.charge_interrupted_answer(model.as_ref()).await?;
        let log = self.recorder.follow_events().await?;
        // Needed soon, and takes a while to load.
        context::tokens::prepare();
        let abilities = self.abilities().await?;
        let mut host = AgentHost::new(self, &log).await?;
        host.read_instructions(&log).await?;
        host.start_tools(&log).await?;
        let parts = AgentParts {
            toolbox: Toolbox::new(tools::standard(), &abilities),
            extra: host.external_tools(),
            settings,
            model: Arc::clone(&model),
            egress: network_text(&self.spec),
            cache_key: self.recorder.job().to_string(),
            recall: self.recall(),
            summaries: self.core.settings().context.summaries,
        };
        let past: Vec<Logged> = log.iter().filter_map(events::logged).collect();
        drop(log);
        let mut agent = Agent::new(parts, &past)
            .map_err(|error| Stop::Failed(OrchestratorError::Agent { why: describe(&error) }))?;
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
            if matches!(stop, Stop::Paused(pause) if GONE.contains(&pause.why.code.as_str())) {
                self.core.models.forget(self.spec.agent.model.as_deref(), &model);
            }
            self.end_calls(stop).await?;
        }
        result
    }

    /// Accounts for a model answer that was cut off by the end of an earlier server process. Only the cost of the
    /// prompt is known.
    async fn charge_interrupted_answer(&self, model: &dyn model::Model) -> Result<(), Stop> {
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
    async fn end_calls(&self, stop: &Stop) -> Result<(), Stop> {
        let (code, reason) = match stop {
            Stop::Cancelled => ("cancelled", "the job was cancelled"),
            Stop::Deadline => ("deadline", "the job's time was over"),
            Stop::Paused(_) | Stop::Lost(_) | Stop::NoRoom(_) | Stop::Failed(_) => return Ok(()),
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
fn outcome_of_run(ended: Result<Ending, Stopped>) -> Result<Option<Why>, Stop> {
    match ended {
        Ok(Ending::Finished(finished)) if finished.is_done() => Ok(None),
        Ok(Ending::Finished(finished)) => Ok(Some(Why::new("gave_up", finished.summary))),
        Ok(Ending::Stuck(why)) => Ok(Some(Why::new("stuck", why))),
        Ok(Ending::Waiting(request)) => {
            let reason = format!("{} (`caisson requests` shows it, {})", request.text, request.id);
            Err(Stop::Paused(Pause { why: Why::new(request.kind.pause_code(), reason), retry_after: None }))
        }
        Ok(Ending::Paused { code, reason, retry_after }) => {
            let reason = with_remedy(&code, reason);
            Err(Stop::Paused(Pause { why: Why { code, reason }, retry_after }))
        }
        Err(Stopped(stop)) => Err(match stop.downcast::<Stop>() {
            Ok(stop) => *stop,
            Err(_) => {
                Stop::Failed(OrchestratorError::Agent { why: "the agent stopped without a reason".into() })
            }
        }),
    }
}

/// Describes the network to the model: the egress policy, and the secrets it can use without seeing them.
fn network_text(spec: &crate::request::JobSpec) -> String {
    let mut text = egress_text(&spec.egress);
    for (name, secret) in &spec.egress_settings.secrets {
        let hosts: Vec<String> = secret.hosts.iter().map(ToString::to_string).collect();
        text += &format!(
            " ${name} holds a placeholder of a secret: send it in a header over https to {} and nowhere else, it \
             becomes the real value on its way.",
            hosts.join(", ")
        );
    }
    text
}

/// Describes the egress policy to the model.
fn egress_text(mode: &egress::Mode) -> String {
    let shown = serde_json::to_string(mode).unwrap_or_default();
    match shown.trim_matches('"') {
        "off" => "no connection to the outside is possible.".into(),
        "packages" => {
            "package registries (npm, PyPI, crates.io, Debian and the like) can be reached, nothing else."
                .into()
        }
        "open" | "learn" => "the internet can be reached.".into(),
        other => format!("only what this policy allows can be reached: {other}"),
    }
}

/// Wraps a stop so that the agent can return it.
pub(super) fn stopped(stop: impl Into<Stop>) -> Stopped {
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
    use crate::state::JobState;

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
