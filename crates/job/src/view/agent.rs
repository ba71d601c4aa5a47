//! The agent of a task job as the API shows it. Derived from the event log, like the rest of the job view.

use std::collections::BTreeMap;

use agent::{Budget, Finished, InputRequest, Plan, Spent};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event::McpServers;
use crate::event::{Event, EventBody};
use crate::state::JobState;
use crate::view::Holder;

/// The agent of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentView {
    /// Who answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it has spent.
    pub spent: Spent,
    /// What it may spend.
    pub budget: Budget,
    /// Milliseconds of work up to the last time that it waited.
    #[serde(default)]
    pub active_ms: i64,
    /// Since when it works; milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since_ms: Option<i64>,
    /// Its plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// What waits for a person, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<InputRequest>,
    /// The person who works in the sandbox; the agent waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_over_by: Option<String>,
    /// The lock that this person has on the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// How it ended its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Finished>,
    /// Its MCP servers, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp: McpServers,
    /// Whether answers of the model are a recording.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
}

impl AgentView {
    pub fn new(budget: Budget) -> Self {
        Self { budget, ..Self::default() }
    }

    /// Applies an event. Returns whether the view changed.
    pub fn apply(&mut self, event: &Event) -> bool {
        match &event.body {
            EventBody::ModelAnswered(answered) => {
                let answer = &answered.answer;
                let usage = answer.usage + answer.lost;
                self.model = Some(answer.model.to_string());
                self.recorded |= answered.recorded;
                self.spent.turns += 1;
                self.spend(usage, answer.cost);
            }
            EventBody::ModelAnswerLost(lost) => self.spend(lost.usage, lost.cost),
            EventBody::SummaryCreated(made) => self.spend(made.usage, made.cost),
            EventBody::CallEnded(_) => {
                let is_own =
                    event.call.as_ref().is_some_and(|call| is_agent_call(&call.id) && call.attempt == 1);
                if !is_own {
                    return false;
                }
                self.spent.tool_calls += 1;
            }
            EventBody::PlanChanged { plan, .. } => self.plan = Some(plan.clone()),
            EventBody::InputRequested(request) => self.requests.push(request.clone()),
            EventBody::InputAnswered { id, .. } => self.requests.retain(|request| request.id != *id),
            EventBody::BudgetChanged { budget } => self.budget = *budget,
            EventBody::AgentFinished(finished) => self.finished = Some(finished.clone()),
            // A message that came before the end keeps the agent working.
            EventBody::TurnStarted(_) if self.finished.is_some() => self.finished = None,
            EventBody::TakenOver { by, lock } => {
                self.taken_over_by = Some(by.clone());
                self.holder = Some(Holder { by: by.clone(), lock: lock.clone(), since: event.sequence });
            }
            EventBody::HandedBack { .. } => {
                self.taken_over_by = None;
                self.holder = None;
            }
            EventBody::McpChanged(change) => drop(self.mcp.insert(change.server.clone(), change.clone())),
            _ => return false,
        }
        true
    }

    fn spend(&mut self, usage: model::Usage, cost: Option<model::Money>) {
        self.spent.input_tokens = self.spent.input_tokens.saturating_add(usage.prompt());
        self.spent.output_tokens = self.spent.output_tokens.saturating_add(usage.output);
        self.spent.cached_tokens = self.spent.cached_tokens.saturating_add(usage.cached_input);
        self.spent.cost_nanodollars =
            self.spent.cost_nanodollars.saturating_add(cost.map_or(0, model::Money::nanodollars));
    }

    /// Adjusts the working time after a change; only time in the running state, and not with a frozen sandbox, counts as
    /// work.
    pub fn track_working_time(&mut self, state: JobState, is_frozen: bool, time_ms: i64) {
        if let Some(since) = self.active_since_ms.take() {
            self.active_ms = self.active_ms.saturating_add(time_ms.saturating_sub(since).max(0));
        }
        if state == JobState::Running && !is_frozen {
            self.active_since_ms = Some(time_ms);
        }
        if state.is_over() {
            self.requests.clear();
            self.taken_over_by = None;
            self.holder = None;
        }
    }

    /// Total working time in milliseconds.
    #[must_use]
    pub fn worked_until(&self, now_ms: i64) -> i64 {
        let working = self.active_since_ms.map_or(0, |since| now_ms.saturating_sub(since).max(0));
        self.active_ms.saturating_add(working)
    }
}

/// Whether the model requested this call.
pub fn is_agent_call(call: &str) -> bool {
    call.starts_with("turn-")
}
