//! Wraps a tool so that the model gets a short description of it, for windows with little room. Its behaviour is
//! unchanged.

use std::sync::Arc;

use async_trait::async_trait;
use model::ToolSpec;
use serde_json::Value;

use crate::host::{Ability, Stopped};
use crate::tool::{AnyTool, CallContext, Effect, ToolFlow};

/// A tool with a short specification.
pub(crate) struct Brief(pub(crate) Arc<dyn AnyTool>);

#[async_trait]
impl AnyTool for Brief {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn spec(&self) -> ToolSpec {
        let mut spec = self.0.spec();
        spec.description = first_sentence(&spec.description).to_owned();
        leave_out_words(&mut spec.input_schema);
        spec
    }

    fn effect(&self) -> Effect {
        self.0.effect()
    }

    fn needs(&self) -> &'static [Ability] {
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
fn leave_out_words(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("description").is_some_and(Value::is_string) {
                map.remove("description");
            }
            map.values_mut().for_each(leave_out_words);
        }
        Value::Array(list) => list.iter_mut().for_each(leave_out_words),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tool::Toolbox;
    use crate::window::tool_tokens;

    #[test]
    fn a_brief_tool_keeps_its_name_and_what_it_takes() {
        let full = Toolbox::new(crate::tools::standard(), &BTreeSet::new());
        let brief = full.brief();
        assert_eq!(brief.names(), full.names());
        for (brief, full) in brief.specs().iter().zip(full.specs()) {
            let properties = |spec: &ToolSpec| {
                let object = spec.input_schema["properties"].as_object();
                object.map(|object| object.keys().cloned().collect::<Vec<_>>())
            };
            assert_eq!(properties(brief), properties(&full), "{}", full.name);
            assert_eq!(brief.input_schema["required"], full.input_schema["required"], "{}", full.name);
            assert!(
                !brief.description.is_empty() && tool_tokens(brief) < tool_tokens(&full),
                "{}",
                full.name
            );
        }
    }
}
