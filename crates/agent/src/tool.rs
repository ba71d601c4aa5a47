//! What a tool is: a specification for the model and the behaviour, side by side in one file of `tools/`.

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

/// Whether a tool changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It only looks: several may run at the same time.
    ReadOnly,
    /// It changes something: one after another, in the order of the model's answer.
    Changes,
}

/// Whether a call is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// Nothing was done of it.
    Now,
    /// It was under way when an earlier server died, or it waited for a person.
    Before,
}

/// A call of a tool, and what the tool may use.
pub struct CallContext<'a> {
    /// The call's id, such as `turn-3-1`; also the key of what it does in the sandbox.
    pub id: &'a str,
    /// The computer and the log.
    pub host: &'a dyn Host,
    /// What happened so far.
    pub conversation: &'a Conversation,
    /// What holds for this job.
    pub settings: &'a AgentSettings,
    /// What the model can take and see.
    pub limits: ModelLimits,
    /// Whether it is new.
    pub begun: Begun,
    /// Finds earlier events.
    pub recall: &'a Recall,
    /// What is left of the job's time of work, where that is limited.
    pub time_left: Option<Duration>,
}

impl CallContext<'_> {
    /// The key of the call itself.
    #[must_use]
    pub fn key(&self) -> protocol::CallKey {
        protocol::CallKey::new(self.id, 1)
    }

    /// How long to wait, from what the model wrote, and not longer than the job may work.
    #[must_use]
    pub fn wait_of(&self, seconds: Option<f64>, default_s: f64) -> Duration {
        let wait = crate::tools::wait_of(seconds, default_s);
        self.time_left.map_or(wait, |left| wait.min(left))
    }

    /// The key of a part of what the call does.
    #[must_use]
    pub fn part_key(&self, part: &str) -> protocol::CallKey {
        protocol::CallKey::new(format!("{}-{part}", self.id), 1)
    }
}

/// What came of a call.
#[derive(Debug)]
pub enum ToolFlow {
    /// It is over.
    Done(ToolOutput),
    /// It waits for a person; it is called again once there is an answer.
    Wait(PersonRequest),
}

/// What a tool gives back.
#[derive(Debug, Default)]
pub struct ToolOutput {
    /// How it ended.
    pub end: ToolEnd,
    /// What else happened by it; written down together with its end.
    pub events: Vec<AgentEvent>,
}

impl From<ToolEnd> for ToolFlow {
    fn from(end: ToolEnd) -> Self {
        Self::Done(ToolOutput { end, events: Vec::new() })
    }
}

/// A tool with typed input. A failure is output that the model can read and act on; only a stop is an error.
pub trait Tool: Send + Sync + 'static {
    /// Its name.
    const NAME: &'static str;
    /// What it does and when to use it, for the model.
    const DESCRIPTION: &'static str;
    /// What it takes.
    type Input: DeserializeOwned + JsonSchema + Send;

    /// Whether it changes anything.
    fn effect(&self) -> Effect;

    /// What the image must have for it, one of these; empty where every image will do.
    fn needs(&self) -> &'static [Ability] {
        &[]
    }

    /// Does it.
    fn run(
        &self,
        input: Self::Input,
        call: &CallContext<'_>,
    ) -> impl Future<Output = Result<ToolFlow, Stopped>> + Send;
}

/// A tool whose input type is forgotten; also one that comes from elsewhere, such as an MCP server.
#[async_trait]
pub trait AnyTool: Send + Sync {
    /// What the model calls it.
    fn name(&self) -> &str;
    /// What the model is told.
    fn spec(&self) -> ToolSpec;
    /// Whether it changes anything.
    fn effect(&self) -> Effect;
    /// What the image must have for it.
    fn needs(&self) -> &'static [Ability];
    /// Checks the input and does it.
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

/// Says what is wrong with an input in a way that the next one can be right.
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

/// The JSON schema of an input, without what only tools for schemas read.
fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut value = serde_json::to_value(schema).unwrap_or_default();
    tidy(&mut value);
    value
}

/// Providers accept a part of JSON schema: no titles, formats and minima of machine numbers, no type lists with null.
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
            // An optional choice is a choice.
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
            // A choice of constants is an enumeration.
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

/// The tools of a job, in the order in which the model is told of them: the most needed first.
#[derive(Clone)]
pub struct Toolbox {
    tools: Vec<Arc<dyn AnyTool>>,
}

impl Toolbox {
    /// Those of the tools that the image can serve.
    #[must_use]
    pub fn new(tools: Vec<Arc<dyn AnyTool>>, abilities: &BTreeSet<Ability>) -> Self {
        let served = |tool: &Arc<dyn AnyTool>| {
            tool.needs().is_empty() || tool.needs().iter().any(|need| abilities.contains(need))
        };
        Self { tools: tools.into_iter().filter(served).collect() }
    }

    /// A tool by its name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<dyn AnyTool>> {
        self.tools.iter().find(|tool| tool.name() == name)
    }

    /// The names of all.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.tools.iter().map(|tool| tool.name().to_owned()).collect()
    }

    /// What the model is told of them.
    #[must_use]
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.tools.iter().map(|tool| tool.spec()).collect()
    }

    /// The same tools and some more, after those that every job needs.
    #[must_use]
    pub(crate) fn with(&self, more: Vec<crate::extra::ExtraTool>) -> Self {
        let mut tools = self.tools.clone();
        tools.extend(more.into_iter().map(|tool| Arc::new(tool) as Arc<dyn AnyTool>));
        Self { tools }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.tools.len()
    }

    /// Keeps those whose name is wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.tools.retain(|tool| is_wanted(tool.name()));
    }

    /// The same tools, of which the model is told in few words.
    pub(crate) fn brief(&self) -> Self {
        let brief =
            |tool: &Arc<dyn AnyTool>| Arc::new(crate::brief::Brief(Arc::clone(tool))) as Arc<dyn AnyTool>;
        Self { tools: self.tools.iter().map(brief).collect() }
    }
}
