//! Wraps a tool so that the model gets a short description of it, for windows with little room. Its behaviour is
//! unchanged.

use std::sync::Arc;

use async_trait::async_trait;
use model::ToolSpec;
use serde_json::Value;

use super::tool::{AnyTool, CallContext, ToolFlow};
use crate::host::{Capability, Effect, Stopped};

/// A tool with a short specification.
pub(crate) struct ShortSpec(pub(crate) Arc<dyn AnyTool>);

#[async_trait]
impl AnyTool for ShortSpec {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn spec(&self) -> ToolSpec {
        let mut spec = self.0.spec();
        spec.description = first_sentence(&spec.description).to_owned();
        remove_descriptions(&mut spec.input_schema);
        spec
    }

    fn effect(&self) -> Effect {
        self.0.effect()
    }

    fn needs(&self) -> &'static [Capability] {
        self.0.needs()
    }

    async fn run(&self, input: Value, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        self.0.run(input, call).await
    }
}

fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first)
}

/// Drops descriptions: names and types are enough. A property that is itself named `description` is an object and
/// stays.
fn remove_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("description").is_some_and(Value::is_string) {
                map.remove("description");
            }
            map.values_mut().for_each(remove_descriptions);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_descriptions),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::prompt::tool_tokens;
    use crate::tools::{Toolbox, standard};

    #[test]
    fn short_spec_keeps_name_and_schema() {
        let full = Toolbox::new(standard(), &BTreeSet::new());
        let short = full.with_short_specs();
        assert_eq!(short.names(), full.names());
        for (short, full) in short.specs().iter().zip(full.specs()) {
            let properties = |spec: &ToolSpec| {
                let object = spec.input_schema["properties"].as_object();
                object.map(|object| object.keys().cloned().collect::<Vec<_>>())
            };
            assert_eq!(properties(short), properties(&full), "{}", full.name);
            assert_eq!(short.input_schema["required"], full.input_schema["required"], "{}", full.name);
            assert!(
                !short.description.is_empty() && tool_tokens(short) < tool_tokens(&full),
                "{}",
                full.name
            );
        }
    }
}
