//! Asks people about refused connections: opens an input request in the job, and returns the answer to the proxy.
//!
//! Connections that programs make in the background open no request: nobody waits for them, and a program that tries
//! again and again would ask again and again. They are only logged.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use agent::{EgressQuestion, InputRequest, RequestKind};
use async_trait::async_trait;
use egress::{Answer, Approver, Question};
use job::{EventBody, JobKind, JobView, McpState, RuleStatus};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::core::last_use::LastUse;
use crate::recorder::Recorder;

/// Maximum number of open requests; a job that tries random names must not flood its users.
const MAX_OPEN: usize = 50;
/// Maximum number of requests per job.
const MAX_REQUESTS: u32 = 1000;

/// Asks about the connections of one job.
pub(super) struct EgressApprovals {
    recorder: Arc<Recorder>,
    /// Whether users work in the sandbox.
    used: LastUse,
    /// One-time permissions that were handed out and whose connection is not in the log yet. Locked while a request
    /// is opened, so that there is only one per rule.
    handed_out: Mutex<HashSet<String>>,
}

/// What to do about a question.
enum Next {
    Say(Answer),
    WaitFor(String),
}

impl EgressApprovals {
    pub(super) fn new(recorder: Arc<Recorder>, used: LastUse) -> Self {
        Self { recorder, used, handed_out: Mutex::default() }
    }

    /// Whether a call or a user waits for what programs do now. The origin of a connection does not tell, because
    /// browsers and other programs do not name their call.
    async fn is_awaited(&self, question: &Question) -> bool {
        let is_in_use = self.used.is_in_use();
        self.recorder.has_running_calls().await
            || self
                .recorder
                .with_view(|view| is_awaited_without_call(view, is_in_use, question.call.as_deref()))
                .await
    }

    async fn consider(&self, question: &Question) -> Next {
        let rule = question.rule.to_string();
        let mut handed_out = self.handed_out.lock().await;
        let (found, open, asked, kind) = self
            .recorder
            .with_view(|view| {
                let found = view.egress.standing(&rule).map(|(id, standing)| (id.to_owned(), standing));
                (found, view.egress.requests.len(), view.egress.asked, view.kind)
            })
            .await;
        match found {
            Some((_, RuleStatus::Rest)) => return Next::Say(Answer::Always(question.rule.clone())),
            Some((_, RuleStatus::Denied)) => return Next::Say(Answer::Refuse),
            Some((id, RuleStatus::Open)) => return Next::WaitFor(id),
            Some((id, RuleStatus::Once)) if handed_out.insert(id.clone()) => return Next::Say(Answer::Once),
            _ if open >= MAX_OPEN || asked >= MAX_REQUESTS => return Next::Say(Answer::Refuse),
            _ => {}
        }
        if !self.is_awaited(question).await {
            return Next::Say(Answer::Refuse);
        }
        let request = request_of(question, &rule, asked + 1, kind);
        let id = request.id.clone();
        match self.recorder.record(EventBody::InputRequested(request)).await {
            Ok(()) => Next::WaitFor(id),
            Err(_) => Next::Say(Answer::Refuse),
        }
    }
}

/// Whether a connection is awaited without a call: by a user who has taken over, by a user of a bare sandbox, or by the
/// agent, whose MCP server is not connected yet. `origin` is the call as the client states it.
fn is_awaited_without_call(view: &JobView, is_in_use: bool, origin: Option<&str>) -> bool {
    if view.kind == JobKind::Sandbox {
        return is_in_use;
    }
    let Some(agent) = &view.agent else { return false };
    let server = origin.and_then(|user| user.strip_prefix("mcp-")?.rsplit_once('.'));
    let is_connected =
        |name: &str| agent.mcp.get(name).is_some_and(|server| server.state == McpState::Connected);
    agent.taken_over_by.is_some() || server.is_some_and(|(name, _)| !is_connected(name))
}

fn request_of(question: &Question, rule: &str, number: u32, kind: JobKind) -> InputRequest {
    let call = question.call.as_deref().and_then(|user| user.rsplit_once('.')).map_or("", |(call, _)| call);
    let noun = match kind {
        JobKind::Job => "job",
        JobKind::Sandbox => "sandbox",
    };
    let who = if call.is_empty() { format!("The {noun}") } else { format!("The {noun} ({call})") };
    InputRequest {
        id: format!("egress-{number}"),
        kind: RequestKind::Egress,
        call: call.to_owned(),
        text: format!(
            "{who} tries to connect to {}. Allow it? {}. Allowed once, only this connection succeeds; for the rest of the {noun}, \
             everything that the rule `{rule}` allows.",
            question.target, question.refusal.reason
        ),
        options: Vec::new(),
        plan: None,
        command: None,
        egress: Some(Box::new(EgressQuestion {
            host: question.target.host.to_string(),
            port: question.target.port,
            rule: rule.to_owned(),
            code: question.refusal.code.as_str().to_owned(),
            reason: question.refusal.reason.clone(),
            remedy: question.refusal.remedy.clone(),
        })),
        deadline_ms: None,
    }
}

#[async_trait]
impl Approver for EgressApprovals {
    async fn ask(&self, question: Question, patience: Duration) -> Answer {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.recorder.changed();
            match self.consider(&question).await {
                Next::Say(answer) => return answer,
                Next::WaitFor(_) if patience.is_zero() => return Answer::Refuse,
                Next::WaitFor(id) => tracing::debug!(job = %self.recorder.job(), id, "a connection waits"),
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Answer::Refuse;
            }
        }
    }

    async fn give_back(&self, rule: &str) {
        let mut handed_out = self.handed_out.lock().await;
        let id =
            self.recorder.with_view(|view| view.egress.standing(rule).map(|(id, _)| id.to_owned())).await;
        if let Some(id) = id {
            handed_out.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use job::{Event, JobDefaults, JobId, JobSpec, McpChange, NewJob};

    use super::*;

    fn spec(json: &str) -> JobSpec {
        serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default()).unwrap()
    }

    fn hub(state: McpState) -> EventBody {
        EventBody::McpChanged(McpChange {
            server: "hub".into(),
            state,
            process: 0,
            tools: Vec::new(),
            left_out: Vec::new(),
            reason: None,
        })
    }

    #[test]
    fn only_connections_that_an_agent_or_user_waits_for_are_awaited() {
        let mut view = JobView::new(JobId::generate(), 0, &spec(r#"{"task":"t"}"#));
        let apply = |view: &mut JobView, body| {
            view.apply(&Event { sequence: 2, time_ms: 0, call: None, actor: None, body });
        };
        let awaited = |view: &JobView, origin| is_awaited_without_call(view, true, origin);
        assert!(!awaited(&view, None) && !awaited(&view, Some("turn-1-1.1")));
        assert!(awaited(&view, Some("mcp-hub.0")), "it is connected for the first time");
        apply(&mut view, hub(McpState::Connected));
        assert!(!awaited(&view, Some("mcp-hub.0")));
        apply(&mut view, hub(McpState::Starting));
        assert!(awaited(&view, Some("mcp-hub.0")));
        apply(&mut view, EventBody::TakenOver { by: "ada".into(), lock: "digest".into() });
        assert!(awaited(&view, None));
    }
}
