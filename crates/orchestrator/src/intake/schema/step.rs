//! The schemas of steps: one per tool, each with the tool's own fields and those that every step has.

use job::{LONGEST_S, MAX_SCRIPT_BYTES, MAX_TEXT_BYTES, MAX_URL_BYTES, SHORTEST_S};
use protocol::{MAX_TYPED_CHARS, MAX_WAIT_S};
use serde_json::{Value, json};

use crate::intake::schema::schemas::{Schemas, one_of, require};
use crate::intake::schema::text::{command_line, kernel, length, mode, not_blank, range, workspace_path};

pub(super) fn constrain(schemas: &mut Schemas) {
    schemas.field("StepOptions", "name", length(1, 200));
    schemas.field("StepOptions", "timeout_s", range(SHORTEST_S, LONGEST_S));
    schemas.field("StepOptions", "retry", range(0, 10));
    constrain_tools(schemas);
    constrain_desktop(schemas);
    constrain_browser(schemas);
    describe_each_tool(schemas);
}

fn constrain_tools(schemas: &mut Schemas) {
    let mut list_path = workspace_path();
    list_path["pattern"] = json!(format!("^$|{}", list_path["pattern"].as_str().unwrap_or_default()));
    list_path["minLength"] = json!(0);
    for (tool, field, keywords) in [
        ("shell", "command", command_line()),
        ("python", "code", not_blank()),
        ("typescript", "code", not_blank()),
        ("code", "code", not_blank()),
        ("code", "kernel", kernel()),
        ("write_file", "path", workspace_path()),
        ("write_file", "mode", mode()),
        ("read_file", "path", workspace_path()),
        ("edit_file", "path", workspace_path()),
        ("edit_file", "old", json!({ "minLength": 1 })),
        ("move_file", "from", workspace_path()),
        ("move_file", "to", workspace_path()),
        ("delete_file", "path", workspace_path()),
        ("list_files", "path", list_path),
        ("list_files", "depth", range(1, 100)),
    ] {
        schemas.variant("StepTool", ("tool", tool), field, &keywords);
    }
}

fn constrain_desktop(schemas: &mut Schemas) {
    for (action, field, keywords) in [
        ("type", "text", json!({ "maxLength": MAX_TYPED_CHARS })),
        ("wait", "seconds", range(0, MAX_WAIT_S)),
        ("wait", "window", not_blank()),
        ("launch", "command", not_blank()),
    ] {
        schemas.variant("GuiAction", ("action", action), field, &keywords);
    }
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
    let url = r"^(?:https?://|file:///|about:|data:)[^\x00-\x1f\x7f-\x9f]*$";
    for (action, field, keywords) in [
        ("open", "url", json!({ "maxLength": MAX_URL_BYTES, "pattern": url })),
        ("fill", "value", json!({ "maxLength": MAX_TEXT_BYTES })),
        ("evaluate", "expression", not_blank()),
        ("wait", "seconds", range(0, job::MAX_WAIT_S)),
    ] {
        schemas.variant("BrowserInput", ("action", action), field, &keywords);
    }
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
    for part in ["StepTool", "StepOptions", "BrowserInput"] {
        schemas.remove(part);
    }
}
