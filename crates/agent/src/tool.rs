//! The tool interface. A tool's specification for the model and its implementation are in one file of `tools/`.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use model::{ModelLimits, ToolSpec};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::conversation::Conversation;
use crate::event::{AgentEvent, ToolEnd};
use crate::host::{Ability, Host, Stopped};
use crate::recall::Recall;
use crate::request::PersonRequest;
use crate::settings::AgentSettings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Only reads, so several calls may run in parallel.
    ReadOnly,
    /// Changes state. Calls run one after another, in the order of the model's answer.
    Changes,
}

/// Whether a call starts now or was started earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
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
    pub limits: ModelLimits,
    pub begun: Begun,
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
        let wait = crate::tools::wait_of(seconds, default_s);
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
    Wait(PersonRequest),
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

    fn effect(&self) -> Effect;

    /// The abilities that the tool needs: the image must have at least one of them. Empty if every image will do.
    fn needs(&self) -> &'static [Ability] {
        &[]
    }

    fn run(
        &self,
        input: Self::Input,
        call: &CallContext<'_>,
    ) -> impl Future<Output = Result<ToolFlow, Stopped>> + Send;
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
    fn needs(&self) -> &'static [Ability];
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
        Tool::effect(self)
    }

    fn needs(&self) -> &'static [Ability] {
        Tool::needs(self)
    }

    async fn run(&self, input: Value, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        match serde_path_to_error::deserialize::<_, T::Input>(&input) {
            Ok(input) => Tool::run(self, input, call).await,
            Err(error) => Ok(misunderstood(T::NAME, &input, &error, &schema_of::<T::Input>()).into()),
        }
    }
}

/// Explains what is wrong with an input so that the model can correct it.
fn misunderstood(
    name: &str,
    input: &Value,
    error: &serde_path_to_error::Error<serde_json::Error>,
    schema: &Value,
) -> ToolEnd {
    let path = error.path().to_string();
    let place = if path == "." { String::new() } else { format!(" at `{path}`") };
    let mut text = format!("{name}: the input does not fit{place}: {}\n", error.inner());
    if input.is_string() {
        text += "The arguments must be one JSON object; what came is not JSON.\n";
    }
    text += &format!("Expected: {}", schema["properties"]);
    if let Some(required) = schema["required"].as_array().filter(|list| !list.is_empty()) {
        text += &format!("\nRequired: {}", Value::Array(required.clone()));
    }
    ToolEnd::malformed(text)
}

/// The JSON schema of an input, without keywords that only schema tools use.
fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut value = serde_json::to_value(schema).unwrap_or_default();
    tidy(&mut value);
    value
}

/// Reduces a schema to the subset that all providers accept: no titles, formats, minimums of machine integers or
/// type lists with null.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let is_schema = map.get("type").is_some_and(|kind| kind.is_string() || kind.is_array());
            if is_schema {
                map.remove("title");
                map.remove("format");
                map.remove("minimum");
                map.remove("maximum");
                if map.get("default").is_some_and(Value::is_null) {
                    map.remove("default");
                }
            }
            if let Some(Value::Array(kinds)) = map.get("type") {
                let named: Vec<Value> = kinds.iter().filter(|kind| *kind != "null").cloned().collect();
                if let [only] = named.as_slice() {
                    map.insert("type".into(), only.clone());
                }
            }
            // An optional enumeration becomes an enumeration.
            if let Some(Value::Array(choices)) = map.get("anyOf") {
                let named: Vec<Value> =
                    choices.iter().filter(|choice| choice["type"] != "null").cloned().collect();
                if let [Value::Object(only)] = named.as_slice() {
                    let only = only.clone();
                    map.remove("anyOf");
                    for (key, inner) in only {
                        map.entry(key).or_insert(inner);
                    }
                }
            }
            // A choice of constants becomes an enumeration.
            if let Some(Value::Array(choices)) = map.get("oneOf")
                && choices.iter().all(|choice| choice["const"].is_string())
            {
                let words: Vec<Value> = choices.iter().map(|choice| choice["const"].clone()).collect();
                map.remove("oneOf");
                map.insert("type".into(), "string".into());
                map.insert("enum".into(), Value::Array(words));
            }
            if let Some(Value::Array(words)) = map.get_mut("enum") {
                words.retain(|word| !word.is_null());
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// The tools of a job in the order of the prompt, most important first.
#[derive(Clone)]
pub struct Toolbox {
    tools: Vec<Arc<dyn AnyTool>>,
}

impl Toolbox {
    /// Keeps the tools that the image can run.
    #[must_use]
    pub fn new(tools: Vec<Arc<dyn AnyTool>>, abilities: &BTreeSet<Ability>) -> Self {
        let served = |tool: &Arc<dyn AnyTool>| {
            tool.needs().is_empty() || tool.needs().iter().any(|need| abilities.contains(need))
        };
        Self { tools: tools.into_iter().filter(served).collect() }
    }

    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<dyn AnyTool>> {
        self.tools.iter().find(|tool| tool.name() == name)
    }

    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.tools.iter().map(|tool| tool.name().to_owned()).collect()
    }

    /// The specifications that the model receives.
    #[must_use]
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools.iter().map(|tool| tool.spec()).collect()
    }

    /// These tools followed by the given external tools.
    #[must_use]
    pub(crate) fn with(&self, more: Vec<crate::extra::ExtraTool>) -> Self {
        let mut tools = self.tools.clone();
        tools.extend(more.into_iter().map(|tool| Arc::new(tool) as Arc<dyn AnyTool>));
        Self { tools }
    }

    pub(crate) fn len(&self) -> usize {
        self.tools.len()
    }

    /// Keeps the tools whose name satisfies the condition.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.tools.retain(|tool| is_wanted(tool.name()));
    }

    /// The same tools with short descriptions.
    pub(crate) fn brief(&self) -> Self {
        let brief =
            |tool: &Arc<dyn AnyTool>| Arc::new(crate::brief::Brief(Arc::clone(tool))) as Arc<dyn AnyTool>;
        Self { tools: self.tools.iter().map(brief).collect() }
    }
}
