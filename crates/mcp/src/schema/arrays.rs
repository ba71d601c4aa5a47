//! Rewrites tuples into lists, because providers want one schema for all items of an array.

use serde_json::{Map, Value};

use super::root::{DEFINITIONS, any_of};

/// Rewrites the arrays in a schema and in all of its parts.
pub(super) fn rewrite_arrays(schema: &mut Value) {
    if *schema == Value::Bool(true) {
        *schema = Value::Object(Map::new());
    }
    let Value::Object(schema) = schema else { return };
    rewrite_tuple(schema);
    for key in ["properties", "patternProperties"].iter().chain(&DEFINITIONS) {
        if let Some(Value::Object(parts)) = schema.get_mut(*key) {
            parts.values_mut().for_each(rewrite_arrays);
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if let Some(Value::Array(parts)) = schema.get_mut(key) {
            parts.iter_mut().for_each(rewrite_arrays);
        }
    }
    for key in ["items", "not"] {
        if let Some(part) = schema.get_mut(key) {
            rewrite_arrays(part);
        }
    }
    if let Some(part @ Value::Object(_)) = schema.get_mut("additionalProperties") {
        rewrite_arrays(part);
    }
}

/// Gives an array one schema for its items: any of those of a tuple, or anything.
fn rewrite_tuple(schema: &mut Map<String, Value>) {
    let is_array = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "array"),
        Some(kind) => kind == "array",
        None => false,
    };
    let (members, rest) = match (schema.remove("prefixItems"), schema.remove("items")) {
        (Some(Value::Array(members)), rest) => (members, rest),
        (_, Some(Value::Array(members))) => (members, schema.remove("additionalItems")),
        (_, Some(Value::Bool(false)) | None) if is_array => (Vec::new(), None),
        (_, Some(items)) => {
            schema.insert("items".into(), items);
            return;
        }
        (_, None) => return,
    };
    let mut choices: Vec<Value> = Vec::new();
    for choice in members.into_iter().chain(rest.filter(Value::is_object)) {
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    schema.insert("items".into(), any_of(choices.into()));
}
