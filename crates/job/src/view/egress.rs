//! Egress requests of a job and their answers; part of the view that is derived from the log.

use agent::{InputAnswer, InputRequest, RequestKind, Scope};
use egress::EgressEvent;
use serde::{Deserialize, Serialize};

use crate::event::EventBody;
use crate::state::JobState;

/// Prefix of the rule of a connection that was allowed once.
const ONCE: &str = "approved once:";

/// The egress requests of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressView {
    /// Open requests, oldest first.
    pub requests: Vec<InputRequest>,
    pub answered: Vec<AnsweredEgress>,
    /// Total number of requests.
    pub asked: u32,
}

/// An egress request that was answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnsweredEgress {
    pub id: String,
    /// The rule that would allow the connection.
    pub rule: String,
    pub standing: RuleStatus,
}

/// State of a rule that people were asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleStatus {
    /// Not answered yet.
    Open,
    Denied,
    /// One connection is allowed and has not been made yet.
    Once,
    /// The one allowed connection was made.
    Used,
    /// Allowed for the rest of the job.
    Rest,
}

impl EgressView {
    /// The newest request about a rule, and its state.
    pub fn standing(&self, rule: &str) -> Option<(&str, RuleStatus)> {
        let about = |request: &&InputRequest| request.egress.as_ref().is_some_and(|asked| asked.rule == rule);
        if let Some(open) = self.requests.iter().find(about) {
            return Some((&open.id, RuleStatus::Open));
        }
        let answered = self.answered.iter().rev().find(|answered| answered.rule == rule)?;
        Some((&answered.id, answered.standing))
    }

    /// Applies an event; returns whether anything changed.
    pub fn apply(&mut self, body: &EventBody) -> bool {
        match body {
            EventBody::InputRequested(request) if request.kind == RequestKind::Egress => {
                self.asked += 1;
                self.requests.push(request.clone());
                true
            }
            EventBody::InputAnswered { id, answer } => self.take_answer(id, answer.as_ref()),
            EventBody::Egress(event) => {
                // A connection that was allowed once, or one request on an open connection.
                let used = match event {
                    EgressEvent::Opened(connection) => &connection.rule,
                    EgressEvent::Fetched(fetch) => &fetch.rule,
                    EgressEvent::Closed(_) | EgressEvent::Refused(_) => return false,
                };
                let Some(rule) = used.strip_prefix(ONCE) else { return false };
                let unused = |answered: &&mut AnsweredEgress| {
                    answered.rule == rule && answered.standing == RuleStatus::Once
                };
                self.answered
                    .iter_mut()
                    .find(unused)
                    .map(|answered| answered.standing = RuleStatus::Used)
                    .is_some()
            }
            EventBody::StateChanged { state, .. } => self.see_state(*state),
            _ => false,
        }
    }

    fn take_answer(&mut self, id: &str, answer: Option<&InputAnswer>) -> bool {
        let Some(at) = self.requests.iter().position(|request| request.id == id) else { return false };
        let request = self.requests.remove(at);
        let standing = match answer {
            Some(answer) if answer.is_accepted() => match answer.scope.unwrap_or_default() {
                Scope::Once => RuleStatus::Once,
                Scope::Rest => RuleStatus::Rest,
            },
            _ => RuleStatus::Denied,
        };
        let rule = request.egress.map(|asked| asked.rule).unwrap_or_default();
        self.answered.push(AnsweredEgress { id: request.id, rule, standing });
        true
    }

    fn see_state(&mut self, state: JobState) -> bool {
        if state.is_over() {
            self.requests.clear();
        }
        false
    }
}
