//! The view of a job for people and programs, derived from its log event by event.

mod agent;
mod egress;
mod filter;
mod frozen_time;
mod holder;
mod time_limit;

pub use self::agent::{AgentView, is_agent_call};
pub use self::egress::{AnsweredEgress, EgressView, RuleStatus};
pub use self::filter::{JobFilter, JobPage};
pub use self::holder::Holder;

use std::collections::BTreeMap;

use sandbox::SandboxId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Submitter;
use crate::event::{Artifact, CallEnd, CallStatus, ControlRequest, Event, EventBody};
use crate::ids::JobId;
use crate::spec::{JobSpec, Work};
use crate::state::{JobState, Outcome};

/// What a job is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Work with an end and a result.
    #[default]
    Job,
    /// A bare sandbox.
    Sandbox,
}

/// The state of a job as shown by the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    pub job_id: JobId,
    #[serde(default)]
    pub kind: JobKind,
    /// Idle timeout of a bare sandbox in milliseconds.
    #[serde(default)]
    pub idle_ms: Option<i64>,
    /// The API key that submitted the job; `None` if the server requires no keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Submitter>,
    pub name: Option<String>,
    /// `None` for a step job.
    pub task: Option<String>,
    /// Higher values run first.
    pub priority: i32,
    pub labels: BTreeMap<String, String>,
    pub state: JobState,
    /// Machine-readable reason why the job waits or ended.
    pub code: Option<String>,
    /// Human-readable reason why the job waits or ended.
    pub reason: Option<String>,
    pub step_count: usize,
    pub steps_succeeded: usize,
    /// Omitted in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepView>,
    /// The pending control request.
    pub control_request: Option<ControlRequest>,
    /// Unix time in milliseconds.
    pub created_ms: i64,
    /// When the job first got a sandbox.
    pub started_ms: Option<i64>,
    pub ended_ms: Option<i64>,
    /// The current sandbox.
    pub sandbox: Option<SandboxId>,
    /// Number of sandboxes that the job has lost.
    pub losses: u32,
    /// Number of steps that the last checkpoint contains.
    pub checkpoint_steps: Option<usize>,
    pub artifact: Option<Artifact>,
    /// How long the job was paused, or back in the queue, after its first start, in milliseconds.
    #[serde(default)]
    pub paused_ms: i64,
    /// Since when the job has been waiting; Unix time in milliseconds.
    #[serde(default)]
    pub paused_since_ms: Option<i64>,
    /// How long the sandbox was frozen while the job was not paused, in milliseconds.
    #[serde(default)]
    pub frozen_ms: i64,
    /// Since when the sandbox has been frozen, as far as `frozen_ms` does not count it yet; Unix time in milliseconds.
    #[serde(default)]
    pub frozen_since_ms: Option<i64>,
    /// The time limit in milliseconds, if it was changed; otherwise the spec's applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_time_limit_ms: Option<i64>,
    /// Whether a user has asked the job to resume.
    #[serde(default)]
    pub is_resume_requested: bool,
    /// The agent of a task job.
    #[serde(default)]
    pub agent: Option<Box<AgentView>>,
    /// Connections that need or got a user's decision.
    #[serde(default)]
    pub egress: EgressView,
}

/// One step of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepView {
    /// Position, from 0.
    pub index: usize,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tool.
    pub tool: String,
    /// Its state.
    pub status: StepStatus,
    /// How often it was started.
    pub attempts: u32,
    /// Exit code of the last attempt.
    pub exit_code: Option<i32>,
    /// Why it failed, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why it failed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long the last attempt took.
    pub duration_ms: Option<u64>,
    /// Something about how it was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// Not yet started, or undone.
    Pending,
    /// Started.
    Running,
    /// Did what was expected.
    Succeeded,
    /// Did not.
    Failed,
}

/// What an event changed in the view, and so what must be stored again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    Nothing,
    /// Everything except the steps.
    Header,
    /// The header and these steps.
    Steps(std::ops::Range<usize>),
}

impl JobView {
    /// The view of a job that was just created.
    #[must_use]
    pub fn new(job_id: JobId, created_ms: i64, spec: &JobSpec) -> Self {
        let (task, steps) = match &spec.work {
            Work::Task(task) => (Some(task.clone()), Vec::new()),
            Work::Steps(steps) => {
                (None, steps.iter().enumerate().map(|(i, s)| StepView::new(i, s)).collect())
            }
            Work::Session { .. } => (None, Vec::new()),
        };
        let (kind, idle_ms) = match &spec.work {
            Work::Session { idle } => {
                (JobKind::Sandbox, Some(i64::try_from(idle.as_millis()).unwrap_or(i64::MAX)))
            }
            Work::Task(_) | Work::Steps(_) => (JobKind::Job, None),
        };
        Self {
            job_id,
            kind,
            idle_ms,
            owner: spec.submitter.clone(),
            name: spec.name.clone(),
            task,
            priority: spec.priority,
            labels: spec.labels.clone(),
            state: JobState::Draft,
            code: None,
            reason: None,
            step_count: steps.len(),
            steps_succeeded: 0,
            steps,
            control_request: None,
            created_ms,
            started_ms: None,
            ended_ms: None,
            sandbox: None,
            losses: 0,
            checkpoint_steps: None,
            artifact: None,
            paused_ms: 0,
            paused_since_ms: None,
            frozen_ms: 0,
            frozen_since_ms: None,
            changed_time_limit_ms: None,
            is_resume_requested: false,
            agent: matches!(spec.work, Work::Task(_)).then(|| Box::new(AgentView::new(spec.agent.budget))),
            egress: EgressView::default(),
        }
    }

    /// Computes the view from a complete log; `None` if the log does not start with the creation of the job.
    #[must_use]
    pub fn of_log(job_id: JobId, events: &[Event]) -> Option<Self> {
        let first = events.first()?;
        let EventBody::JobCreated { spec } = &first.body else { return None };
        let mut view = Self::new(job_id, first.time_ms, spec);
        for event in &events[1..] {
            view.apply(event);
        }
        Some(view)
    }

    /// Applies an event.
    pub fn apply(&mut self, event: &Event) -> Changed {
        if self.egress.apply(&event.body) {
            return Changed::Header;
        }
        match &event.body {
            EventBody::StateChanged { state, code, reason } => {
                self.state = *state;
                self.code.clone_from(code);
                self.reason.clone_from(reason);
                if *state == JobState::Starting && self.started_ms.is_none() {
                    self.started_ms = Some(event.time_ms);
                }
                if *state == JobState::Queued {
                    self.sandbox = None;
                }
                if state.is_over() {
                    self.ended_ms = Some(event.time_ms);
                }
                self.track_waiting_time(event.time_ms);
            }
            EventBody::ControlRequested { request: ControlRequest::Resume } => {
                self.is_resume_requested = true;
                self.control_request =
                    self.control_request.filter(|control_request| *control_request == ControlRequest::Cancel);
            }
            EventBody::ControlRequested { request } => {
                self.is_resume_requested = false;
                // A job that is being cancelled is not paused.
                if self.control_request != Some(ControlRequest::Cancel) {
                    self.control_request = Some(*request);
                }
            }
            EventBody::IdleTimeoutChanged { idle_ms } => self.idle_ms = Some(*idle_ms),
            EventBody::TimeLimitChanged { after_ms, .. } => self.changed_time_limit_ms = Some(*after_ms),
            EventBody::SandboxRequested { sandbox } => {
                self.sandbox = Some(*sandbox);
                self.thaw(event.time_ms);
            }
            EventBody::SandboxLost { steps_kept, .. } => {
                self.thaw(event.time_ms);
                return self.undo_steps(*steps_kept);
            }
            EventBody::SandboxPaused { .. } => self.freeze(event.time_ms),
            EventBody::SandboxResumed { .. } => self.thaw(event.time_ms),
            EventBody::Checkpoint { steps, .. } => self.checkpoint_steps = Some(*steps),
            EventBody::ArtifactStored(artifact) => self.artifact = Some(artifact.clone()),
            EventBody::CallStarted { .. } | EventBody::CallEnded(_) => {
                let step = self.apply_to_step(event);
                let agent = self.agent.as_mut().is_some_and(|agent| agent.apply(event));
                return if agent && step == Changed::Nothing { Changed::Header } else { step };
            }
            EventBody::TurnStarted(_)
            | EventBody::ModelAnswered(_)
            | EventBody::ModelAnswerLost(_)
            | EventBody::SummaryCreated(_)
            | EventBody::PlanChanged { .. }
            | EventBody::InputRequested(_)
            | EventBody::InputAnswered { .. }
            | EventBody::BudgetChanged { .. }
            | EventBody::AgentFinished(_)
            | EventBody::TakenOver { .. }
            | EventBody::HandedBack { .. }
            | EventBody::McpChanged(_) => {
                if !self.agent.as_mut().is_some_and(|agent| agent.apply(event)) {
                    return Changed::Nothing;
                }
            }
            EventBody::JobCreated { .. }
            | EventBody::SandboxReady { .. }
            | EventBody::CallOutput { .. }
            | EventBody::CallOutputDropped { .. }
            | EventBody::CallDisplay { .. }
            | EventBody::Egress(_)
            | EventBody::ScreenCaptured { .. }
            | EventBody::NoteSaved { .. }
            | EventBody::MessageReceived { .. }
            | EventBody::AgentNotified(_)
            | EventBody::ContextChanged(_)
            | EventBody::FilesChanged(_)
            | EventBody::UserAction(_)
            | EventBody::AuditFileStored(_)
            | EventBody::PayloadDropped { .. }
            | EventBody::Note { .. } => return Changed::Nothing,
        }
        Changed::Header
    }

    /// How the job ends or will end. In state `collecting`, a code means that the job does not succeed.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self.code.as_deref() {
            None => Outcome::Complete,
            Some("cancelled") => Outcome::Cancelled,
            Some(_) => Outcome::Failed,
        }
    }

    /// What the caller should know or do while the job waits.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        if matches!(self.state, JobState::Paused | JobState::Queued) { self.reason.clone() } else { None }
    }

    /// Whether the job is paused because no model is available.
    #[must_use]
    pub fn is_waiting_for_model(&self) -> bool {
        self.state == JobState::Paused && self.code.as_deref() == Some("no_model")
    }

    /// Adds up waiting time, which does not count against the job's deadline.
    fn track_waiting_time(&mut self, time_ms: i64) {
        self.count_frozen_time(time_ms);
        if self.state == JobState::Queued || self.state.is_over() {
            self.frozen_since_ms = None;
        }
        if let Some(since) = self.paused_since_ms.take() {
            self.paused_ms = self.paused_ms.saturating_add(time_ms.saturating_sub(since).max(0));
        }
        match self.state {
            // A job that has started and is queued again has no sandbox because none could be created.
            JobState::Paused | JobState::Queued if self.started_ms.is_some() => {
                self.paused_since_ms = Some(time_ms);
                if self.state == JobState::Queued {
                    self.is_resume_requested = false;
                }
            }
            JobState::Paused => {}
            _ => self.is_resume_requested = false,
        }
        self.track_agent_time(time_ms);
    }

    fn undo_steps(&mut self, kept: usize) -> Changed {
        self.losses += 1;
        self.sandbox = None;
        for step in self.steps.iter_mut().skip(kept) {
            step.status = StepStatus::Pending;
        }
        self.count_succeeded();
        Changed::Steps(kept..self.steps.len())
    }

    fn apply_to_step(&mut self, event: &Event) -> Changed {
        let Some(call) = &event.call else { return Changed::Nothing };
        let Some(index) = step_of_call(&call.id) else { return Changed::Nothing };
        let Some(step) = self.steps.get_mut(index) else { return Changed::Nothing };
        match &event.body {
            EventBody::CallEnded(end) => step.end(end),
            _ => step.start(call.attempt),
        }
        self.count_succeeded();
        Changed::Steps(index..index + 1)
    }

    fn count_succeeded(&mut self) {
        self.steps_succeeded = self.steps.iter().filter(|step| step.status == StepStatus::Succeeded).count();
    }
}

/// The step that a call runs, counted from 0.
pub fn step_of_call(call: &str) -> Option<usize> {
    call.strip_prefix("step-")?.parse::<usize>().ok()?.checked_sub(1)
}

/// The call that runs a step.
#[must_use]
pub fn call_of_step(index: usize) -> String {
    format!("step-{}", index + 1)
}

impl StepView {
    fn start(&mut self, attempt: u32) {
        self.status = StepStatus::Running;
        self.attempts = self.attempts.max(attempt);
        self.exit_code = None;
        self.code = None;
        self.reason = None;
        self.duration_ms = None;
        self.note = None;
    }

    fn end(&mut self, end: &CallEnd) {
        self.status = match end.status {
            CallStatus::Succeeded => StepStatus::Succeeded,
            CallStatus::Failed => StepStatus::Failed,
            CallStatus::Interrupted => StepStatus::Pending,
        };
        self.exit_code = end.exit_code;
        self.code.clone_from(&end.code);
        self.reason.clone_from(&end.reason);
        self.duration_ms = Some(end.duration_ms);
        self.note.clone_from(&end.note);
    }

    fn new(index: usize, step: &crate::step::Step) -> Self {
        Self {
            index,
            name: step.options.name.clone(),
            tool: step.tool.name().to_owned(),
            status: StepStatus::Pending,
            attempts: 0,
            exit_code: None,
            code: None,
            reason: None,
            duration_ms: None,
            note: None,
        }
    }
}
