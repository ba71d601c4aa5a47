//! Wraps a tool so that the model gets a short description of it, for windows with little room. Its behaviour is
//! unchanged.

use std::sync::Arc;

use async_trait::async_trait;
use model::ToolSpec;
use serde_json::Value;

use super::role::ToolRole;
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

    fn role(&self) -> ToolRole {
        self.0.role()
    }

    async fn run(&self, input: Value, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        self.0.run(input, call).await
    }
}

/// The specification without the sentences that contain one of these words.
pub(super) fn without_sentences(mut spec: ToolSpec, words: &[String]) -> ToolSpec {
    spec.description = without(&spec.description, words);
    clean_descriptions(&mut spec.input_schema, words);
    spec
}

fn without(text: &str, words: &[String]) -> String {
    let is_kept = |sentence: &&str| !words.iter().any(|word| sentence.contains(word.as_str()));
    text.split_inclusive(". ").filter(is_kept).collect::<String>().trim_end().to_owned()
}

fn clean_descriptions(schema: &mut Value, words: &[String]) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = without(text, words);
            }
            map.values_mut().for_each(|inner| clean_descriptions(inner, words));
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| clean_descriptions(inner, words)),
        _ => {}
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
                map.shift_remove("description");
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
    fn specs_mention_only_tools_that_are_there() {
        let all = Toolbox::new(
            standard(),
            &BTreeSet::from([Capability::Python, Capability::Desktop, Capability::Browser]),
        );
        let shell = |toolbox: &Toolbox| toolbox.specs()[0].description.clone();
        assert!(shell(&all).contains("`process`"), "{}", shell(&all));
        for left_out in all.names() {
            let mut some = all.clone();
            some.retain(|name| name != left_out);
            for spec in some.specs() {
                let text = serde_json::to_string(&spec).unwrap();
                assert!(!text.contains(&format!("`{left_out}`")), "{left_out} in {text}");
                assert!(!spec.description.is_empty(), "{}", spec.name);
            }
        }
        // What a description says of the tool itself stays.
        let mut some = all.clone();
        some.retain(|name| name != "process");
        assert!(shell(&some).contains("goes on in the background"), "{}", shell(&some));
    }

    #[test]
    fn arguments_are_in_the_order_in_which_they_are_declared() {
        let all = Toolbox::new(standard(), &BTreeSet::new());
        for toolbox in [all.clone(), all.with_short_specs()] {
            let specs = toolbox.specs();
            let spec = specs.iter().find(|spec| spec.name == "edit_file").unwrap();
            let names: Vec<&String> = spec.input_schema["properties"].as_object().unwrap().keys().collect();
            assert_eq!(names, ["path", "old", "new", "all"]);
            assert_eq!(spec.input_schema["required"], serde_json::json!(["path", "old", "new"]));
        }
    }

    #[test]
    fn python_promises_persistence_only_with_a_kernel() {
        let description = |abilities: &[Capability]| {
            let toolbox = Toolbox::new(standard(), &abilities.iter().copied().collect());
            assert_eq!(toolbox.names().iter().filter(|name| *name == "python").count(), 1);
            toolbox.find("python").unwrap().spec().description
        };
        let live = description(&[Capability::Python, Capability::PythonKernel]);
        for promise in [
            "variables and imports persist",
            "value of its last expression",
            "come back as images",
            "`pip install`",
        ] {
            assert!(live.contains(promise), "{promise}: {live}");
        }
        let plain = description(&[Capability::Python]);
        assert!(plain.contains("in a new process") && !plain.contains("persist"), "{plain}");
    }

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
