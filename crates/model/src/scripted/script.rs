//! A recorded dialogue as it is written down: JSON, one answer after another, with faults where they are wanted.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::Usage;

/// A recorded dialogue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// What the dialogue is, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// What the model is called; `scripted` without a value.
    #[serde(default = "default_model")]
    pub model: String,
    /// Tokens that the model says it takes.
    #[serde(default = "default_context")]
    pub context_tokens: u32,
    /// Which answer comes next.
    #[serde(default)]
    pub order: Order,
    /// The answers.
    pub answers: Vec<ScriptedAnswer>,
}

fn default_model() -> String {
    "scripted".into()
}

fn default_context() -> u32 {
    200_000
}

/// Which answer comes next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The first that was not played to its end and whose `when` fits. For one conversation.
    #[default]
    Sequence,
    /// The one whose place is the number of answers in the conversation. For any number of conversations at once, and
    /// for clients that are killed; `when` is not looked at, and a fault is played once for the whole server.
    Turns,
}

/// An answer, or a fault, or a fault in the midst of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedAnswer {
    /// What the request must be like.
    #[serde(skip_serializing_if = "When::is_empty")]
    pub when: When,
    /// How often it is played; 0 for without end.
    #[serde(skip_serializing_if = "is_one")]
    pub times: Times,
    /// What is thought.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// What is said. `{event}` stands for the first event that the user names, as `[e12]` has it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The tools to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ScriptedCall>,
    /// Whether it ends because it is too long.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_cut_by_length: bool,
    /// Tokens; without a value, letters divided by four.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What goes wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Milliseconds before the first byte.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// Milliseconds between two events.
    #[serde(skip_serializing_if = "is_zero")]
    pub event_delay_ms: u64,
    /// Letters in an event; 24 without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub letters: Option<usize>,
    /// Numbers of events, in ascending order, after which the answer stops until a test goes on: the first stop ends with
    /// the first [`super::ScriptedServer::release`], the second with the second. Not part of a script in JSON.
    #[serde(skip)]
    pub hold_after_events: Vec<usize>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_one(times: &Times) -> bool {
    *times == Times::default()
}

impl ScriptedAnswer {
    /// The answer to somebody who has said this.
    pub(super) fn about(&self, user: &str) -> Self {
        if !self.text.contains(EVENT) {
            return self.clone();
        }
        let named = user.split("\n[e").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("0");
        Self { text: self.text.replace(EVENT, &format!("e{named}")), ..self.clone() }
    }
}

/// What stands for an event in a text.
const EVENT: &str = "{event}";

/// How often an answer is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Times(
    /// 0 for without end.
    pub u32,
);

impl Default for Times {
    fn default() -> Self {
        Self(1)
    }
}

/// A tool to run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedCall {
    /// Made up without a value; two calls may have the same, as a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its input.
    pub arguments: Value,
    /// Text instead of the input, such as JSON that is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_arguments: Option<String>,
}

impl ScriptedCall {
    /// The input as text.
    pub(super) fn text(&self) -> String {
        self.raw_arguments.clone().unwrap_or_else(|| match &self.arguments {
            Value::Null => String::from("{}"),
            other => other.to_string(),
        })
    }
}

/// What a request must be like. All that is said must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    /// The results after the last answer hold this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_contains: Option<String>,
    /// What the user said last holds this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_contains: Option<String>,
    /// The system text holds this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_contains: Option<String>,
    /// A tool of this name is offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offers: Option<String>,
}

impl When {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// 429 with `Retry-After`.
    RateLimited {
        /// Seconds; no header without a value.
        #[serde(default)]
        retry_after_s: Option<u64>,
    },
    /// A status of 400 or more with an error in the provider's words.
    Status {
        /// The status.
        status: u16,
        /// The words.
        #[serde(default)]
        message: String,
    },
    /// 401.
    BadKey,
    /// The conversation is too long.
    Overflow,
    /// The connection is closed after so many events of the answer.
    Cut {
        /// Events; half of them without a value.
        #[serde(default)]
        after_events: Option<usize>,
    },
    /// Half of the answer, then an event that is not JSON.
    MalformedEvent,
    /// Half of the answer, then an error in the provider's words.
    ErrorEvent,
    /// Half of the answer, then nothing, with the connection open.
    Silence {
        /// Milliseconds, then the connection is closed.
        milliseconds: u64,
    },
}

/// A script that is none.
#[derive(Debug, thiserror::Error)]
#[error("reading the script: {0}")]
pub struct ScriptError(#[from] serde_json::Error);

impl Script {
    /// Reads a script.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        Ok(serde_json::from_str(text)?)
    }

    /// A script of these answers, one after another.
    pub fn of(answers: Vec<ScriptedAnswer>) -> Self {
        let (model, context_tokens) = (default_model(), default_context());
        Self { about: String::new(), model, context_tokens, order: Order::Sequence, answers }
    }
}

impl ScriptedAnswer {
    /// An answer that is plain text.
    pub fn text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    /// An answer that calls tools.
    pub fn calls(calls: &[(&str, Value)]) -> Self {
        let call = |(name, arguments): &(&str, Value)| ScriptedCall {
            name: (*name).to_owned(),
            arguments: arguments.clone(),
            ..ScriptedCall::default()
        };
        Self { calls: calls.iter().map(call).collect(), ..Self::default() }
    }

    /// A fault instead of an answer, or in the midst of a short one.
    pub fn fault(fault: Fault) -> Self {
        Self { text: "This answer does not come to its end.".into(), fault: Some(fault), ..Self::default() }
    }
}
