//! The tool interface. A tool's specification for the model and its implementation are in one file of `builtin/`.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use context::{ToolEffect, tool_effect};
use model::{ModelLimits, ToolSpec};
use schemars::JsonSchema;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::input_schema::{invalid_input, schema_of};
use super::role::ToolRole;
use super::toolbox::Toolbox;
use crate::conversation::Conversation;
use crate::event::{AgentEvent, ToolEnd};
use crate::host::{Capability, Effect, Host, Stopped};
use crate::input_request::InputRequest;
use crate::recall::Recall;
use crate::settings::AgentSettings;

/// The longest time that one call waits for a process.
const MAX_WAIT_S: f64 = 600.0;

/// Whether a call starts now or was started earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStart {
    /// Nothing has been done yet.
    Now,
    /// The call was running when a server was killed, or it waited for a person.
    Before,
}

/// A tool call and what the tool may use.
pub struct CallContext<'a> {
    /// The call's id, such as `turn-3-1`; also the key of its operations in the sandbox.
    pub id: &'a str,
    pub host: &'a dyn Host,
    /// The state of the agent.
    pub conversation: &'a Conversation,
    pub settings: &'a AgentSettings,
    /// The tools that the model has; advice names no others.
    pub toolbox: &'a Toolbox,
    pub limits: ModelLimits,
    pub begun: CallStart,
    /// Searches earlier events.
    pub recall: &'a Recall,
    /// The remaining working time of the job, if limited.
    pub time_left: Option<Duration>,
}

impl CallContext<'_> {
    /// The idempotency key of the call.
    #[must_use]
    pub fn key(&self) -> protocol::CallKey {
        protocol::CallKey::new(self.id, 1)
    }

    /// How long to wait: what the model requested, but not longer than the job may work.
    #[must_use]
    pub fn wait_of(&self, seconds: Option<f64>, default_s: f64) -> Duration {
        let wait = requested_wait(seconds, default_s);
        self.time_left.map_or(wait, |left| wait.min(left))
    }

    /// The idempotency key of one part of the call.
    #[must_use]
    pub fn part_key(&self, part: &str) -> protocol::CallKey {
        protocol::CallKey::new(format!("{}-{part}", self.id), 1)
    }
}

#[derive(Debug)]
pub enum ToolFlow {
    Done(ToolOutput),
    /// The call waits for a person. It runs again once there is an answer.
    Wait(InputRequest),
}

#[derive(Debug, Default)]
pub struct ToolOutput {
    pub end: ToolEnd,
    /// Further events, logged together with the end of the call.
    pub events: Vec<AgentEvent>,
}

impl From<ToolEnd> for ToolFlow {
    fn from(end: ToolEnd) -> Self {
        Self::Done(ToolOutput { end, events: Vec::new() })
    }
}

/// A tool with typed input. A failure is output that the model can read and react to; the only error is [`Stopped`].
pub trait Tool: Send + Sync + 'static {
    const NAME: &'static str;
    /// What the tool does and when to use it, for the model.
    const DESCRIPTION: &'static str;
    type Input: DeserializeOwned + JsonSchema + Send;
    const ROLE: ToolRole = ToolRole::OPTIONAL;

    /// The abilities that the tool needs: the image must have at least one of them. Empty if every image will do.
    fn needs(&self) -> &'static [Capability] {
        &[]
    }

    fn run(
        &self,
        input: Self::Input,
        call: &CallContext<'_>,
    ) -> impl Future<Output = Result<ToolFlow, Stopped>> + Send;

    /// The step of a job that has the same effect as a call that ended this way; `None` if there is none.
    fn step(_input: Self::Input, _end: &EndedCall<'_>) -> Option<Value> {
        None
    }
}

/// How a call ended that is converted to a step.
#[derive(Debug, Default)]
pub struct EndedCall<'a> {
    /// What the tool said.
    pub text: &'a str,
    /// Whether its process still runs.
    pub is_running: bool,
}

/// A tool with untyped input: a [`Tool`], or an external one such as an MCP tool.
#[async_trait]
pub trait AnyTool: Send + Sync {
    /// The name that the model uses.
    fn name(&self) -> &str;
    /// The specification that the model receives.
    fn spec(&self) -> ToolSpec;
    fn effect(&self) -> Effect;
    /// The abilities of which the image must have at least one.
    fn needs(&self) -> &'static [Capability];
    fn role(&self) -> ToolRole {
        ToolRole::OPTIONAL
    }
    /// Whether it is one of this program's own tools, whose texts may mention each other.
    fn is_builtin(&self) -> bool {
        true
    }
    /// The step of a job that has the same effect as a call; `None` for invalid input.
    fn step(&self, _input: &Value, _end: &EndedCall<'_>) -> Option<Value> {
        None
    }
    /// Validates the input and runs the tool.
    async fn run(&self, input: Value, call: &CallContext<'_>) -> Result<ToolFlow, Stopped>;
}

#[async_trait]
impl<T: Tool> AnyTool for T {
    fn name(&self) -> &str {
        T::NAME
    }

    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: T::NAME.to_owned(),
            description: T::DESCRIPTION.to_owned(),
            input_schema: schema_of::<T::Input>(),
        }
    }

    fn effect(&self) -> Effect {
        match tool_effect(T::NAME) {
            Some(ToolEffect::Reads) => Effect::ReadOnly,
            _ => Effect::Changes,
        }
    }

    fn role(&self) -> ToolRole {
        T::ROLE
    }

    fn step(&self, input: &Value, end: &EndedCall<'_>) -> Option<Value> {
        T::step(T::Input::deserialize(input).ok()?, end)
    }

    fn needs(&self) -> &'static [Capability] {
        Tool::needs(self)
    }

    async fn run(&self, input: Value, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        match serde_path_to_error::deserialize::<_, T::Input>(&input) {
            Ok(input) => Tool::run(self, input, call).await,
            Err(error) => Ok(invalid_input(T::NAME, &input, &error, &schema_of::<T::Input>()).into()),
        }
    }
}

/// The wait time that the model requested, or the default, limited to the allowed range.
pub(super) fn requested_wait(seconds: Option<f64>, default_s: f64) -> Duration {
    let seconds = seconds.filter(|seconds| seconds.is_finite()).unwrap_or(default_s);
    Duration::from_secs_f64(seconds.clamp(0.0, MAX_WAIT_S))
}
