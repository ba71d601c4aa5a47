//! `ask_user`: asks the user a question. The job waits, but not forever.

use schemars::JsonSchema;
use serde::Deserialize;

use super::request_id;
use crate::conversation::Reply;
use crate::event::ToolEnd;
use crate::host::Stopped;
use crate::input_request::{InputRequest, RequestKind};
use crate::tools::{CallContext, Tool, ToolFlow, ToolRole};

/// Default and maximum time to wait for an answer.
const DEFAULT_WAIT_MINUTES: f64 = 60.0;
const MAX_WAIT_MINUTES: f64 = 7.0 * 24.0 * 60.0;

pub(super) struct AskUser;

/// A question.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The question.
    #[serde(alias = "text", alias = "message")]
    question: String,
    /// Answers to choose from, if there are some.
    #[serde(default)]
    options: Option<Vec<String>>,
    /// How long to wait, 60 minutes when absent.
    #[serde(default)]
    wait_minutes: Option<f64>,
}

impl Tool for AskUser {
    const NAME: &'static str = "ask_user";
    const DESCRIPTION: &'static str = "Asks the user a question and waits for the answer. Use it only if you cannot \
        continue without an answer. If no answer comes in time, use your own judgement.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        is_control: true,
        other_names: &["ask", "question", "askfollowupquestion", "askhuman", "messageaskuser"],
        ..ToolRole::OPTIONAL
    };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        if input.question.trim().is_empty() {
            return Ok(ToolEnd::malformed("ask_user: `question` is empty").into());
        }
        Ok(match call.conversation.request_of(call.id) {
            None => {
                let minutes = input.wait_minutes.filter(|minutes| minutes.is_finite());
                let minutes = minutes.unwrap_or(DEFAULT_WAIT_MINUTES).clamp(0.01, MAX_WAIT_MINUTES);
                #[expect(clippy::cast_possible_truncation, reason = "clamped just here")]
                let wait_ms = (minutes * 60_000.0) as i64;
                ToolFlow::Wait(InputRequest {
                    id: request_id(call.conversation),
                    kind: RequestKind::Question,
                    call: call.id.to_owned(),
                    text: input.question,
                    options: input.options.unwrap_or_default(),
                    plan: None,
                    command: None,
                    egress: None,
                    deadline_ms: Some(call.host.now_ms().saturating_add(wait_ms)),
                })
            }
            Some((request, Reply::Open)) => ToolFlow::Wait(request.clone()),
            Some((_, Reply::TimedOut)) => {
                ToolEnd::done("no user answered in time: use your own judgement").into()
            }
            Some((_, Reply::Answered(answer))) => {
                ToolEnd::done(format!("the user answers: {}", answer.text.as_deref().unwrap_or("yes"))).into()
            }
        })
    }
}
