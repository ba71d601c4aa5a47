//! The schemas of steps: one per tool, each with the tool's own fields and those that every step has.

use job::keywords::{command_line, length, not_blank, range};
use job::{GuiInput, LONGEST_S, MAX_SCRIPT_BYTES, SHORTEST_S};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::intake::schema::schemas::{Schemas, one_of, require};

pub(super) fn constrain(schemas: &mut Schemas) {
    schemas.field("StepOptions", "name", length(1, 200));
    schemas.field("StepOptions", "timeout_s", range(SHORTEST_S, LONGEST_S));
    schemas.field("StepOptions", "retry", range(0, 10));
    constrain_tools(schemas);
    constrain_desktop(schemas);
    constrain_browser(schemas);
    describe_each_tool(schemas);
}

/// Adds the limits that each tool states in its own file.
fn constrain_tools(schemas: &mut Schemas) {
    for tool in job::STEP_TOOLS {
        for (field, keywords) in (tool.limits)() {
            schemas.field(&(tool.schema)(), field, keywords);
        }
        for (action, field, keywords) in (tool.action_limits)() {
            schemas.variant(&(tool.actions)(), ("action", action), field, &keywords);
        }
    }
}

fn constrain_desktop(schemas: &mut Schemas) {
    schemas.replace("WindowChoice", |_, choice| {
        let number = json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
        let mut title = not_blank();
        title["type"] = json!("string");
        one_of(&choice, [number, title].into_iter())
    });
    schemas.replace("GuiInput", |schemas, input| {
        let mut actions = schemas.flatten(&input);
        for action in &mut actions {
            action.insert("additionalProperties".to_owned(), json!(false));
            if let Some(script) = action.get_mut("properties").and_then(|fields| fields.get_mut("script")) {
                super::schemas::merge(script, command_line());
                super::schemas::merge(script, json!({ "maxLength": MAX_SCRIPT_BYTES }));
            }
        }
        let mut described = one_of(&json!({}), std::iter::empty());
        described["oneOf"] = actions.into_iter().map(Value::Object).collect();
        described["description"] = input["description"].clone();
        described
    });
    schemas.remove("GuiAction");
}

fn constrain_browser(schemas: &mut Schemas) {
    schemas.exactly_one("ElementChoice", &["ref", "selector", "text"]);
    schemas.replace("BrowserInput", |schemas, input| {
        let actions = schemas.flatten(&input).into_iter().flat_map(|mut action| {
            action.insert("additionalProperties".to_owned(), json!(false));
            let action = Value::Object(action);
            let is_wait = action["properties"]["action"]["enum"] == json!(["wait"]);
            if is_wait { waits(&action) } else { vec![action] }
        });
        json!({ "oneOf": actions.collect::<Vec<_>>(), "description": input["description"] })
    });
    schemas.remove("ElementChoice");
}

/// A wait names at least one of three fields: the first of them that is there tells the alternatives apart.
fn waits(action: &Value) -> Vec<Value> {
    let fields = ["selector", "text", "seconds"];
    let alternative = |count: usize| {
        let mut action = action.clone();
        require(&mut action, fields[count]);
        for absent in &fields[..count] {
            super::schemas::exclude(&mut action, absent);
        }
        action
    };
    (0..fields.len()).map(alternative).collect()
}

/// Joins the fields of each tool with those of every step, so that other fields can be forbidden.
fn describe_each_tool(schemas: &mut Schemas) {
    schemas.replace("Step", |schemas, mut step| {
        let description = step["description"].take();
        let steps = schemas.flatten(&step).into_iter().map(|mut tool| {
            tool.insert("additionalProperties".to_owned(), json!(false));
            Value::Object(tool)
        });
        json!({ "oneOf": steps.collect::<Vec<_>>(), "description": description })
    });
    let inputs = job::STEP_TOOLS.iter().map(|tool| (tool.schema)());
    // The input of `gui` is also the body of a request.
    for input in inputs.filter(|name| *name != GuiInput::name()) {
        schemas.remove(&input);
    }
    schemas.remove("StepTool");
    schemas.remove("StepOptions");
}
