//! Asks people about refused connections: opens an input request in the job, and returns the answer to the proxy.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use agent::{EgressQuestion, PersonRequest, RequestKind};
use async_trait::async_trait;
use egress::{Answer, Approver, Question};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::view::RuleStatus;
use crate::event::EventBody;
use crate::recorder::Recorder;

/// Maximum number of open requests; a job that tries random names must not flood its users.
const MAX_OPEN: usize = 50;
/// Maximum number of requests per job.
const MAX_REQUESTS: u32 = 1000;

/// Asks about the connections of one job.
pub(super) struct EgressApprovals {
    recorder: Arc<Recorder>,
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
    pub(super) fn new(recorder: Arc<Recorder>) -> Self {
        Self { recorder, handed_out: Mutex::default() }
    }

    async fn consider(&self, question: &Question) -> Next {
        let rule = question.rule.to_string();
        let mut handed_out = self.handed_out.lock().await;
        let (found, open, asked) = self
            .recorder
            .with_view(|view| {
                let found = view.egress.standing(&rule).map(|(id, standing)| (id.to_owned(), standing));
                (found, view.egress.requests.len(), view.egress.asked)
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
        let request = request_of(question, &rule, asked + 1);
        let id = request.id.clone();
        match self.recorder.record(EventBody::InputRequested(request)).await {
            Ok(()) => Next::WaitFor(id),
            Err(_) => Next::Say(Answer::Refuse),
        }
    }
}

fn request_of(question: &Question, rule: &str, number: u32) -> PersonRequest {
    let call = question.call.as_deref().and_then(|user| user.rsplit_once('.')).map_or("", |(call, _)| call);
    let who = if call.is_empty() { "The job".to_owned() } else { format!("The job ({call})") };
    PersonRequest {
        id: format!("egress-{number}"),
        kind: RequestKind::Egress,
        call: call.to_owned(),
        text: format!(
            "{who} wants to reach {}. May it? {}. Allowed once, this goes through and nothing else; for the rest of the job, \
             all that the rule `{rule}` allows.",
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
