//! The JSON schema of a tool's input, and the error for an input that does not match it.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::event::ToolEnd;

/// The JSON schema of an input, without keywords that only schema tools use.
pub(super) fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut value = serde_json::to_value(schema).unwrap_or_default();
    reduce_schema(&mut value);
    value
}

/// Reduces a schema to the subset that all providers accept: no titles, formats, minimums of machine integers or
/// type lists with null.
fn reduce_schema(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let is_schema = map.get("type").is_some_and(|kind| kind.is_string() || kind.is_array());
            if is_schema {
                map.shift_remove("title");
                map.shift_remove("format");
                map.shift_remove("minimum");
                map.shift_remove("maximum");
                if map.get("default").is_some_and(Value::is_null) {
                    map.shift_remove("default");
                }
            }
            if let Some(Value::Array(kinds)) = map.get("type") {
                let non_null: Vec<Value> = kinds.iter().filter(|kind| *kind != "null").cloned().collect();
                if let [only] = non_null.as_slice() {
                    map.insert("type".into(), only.clone());
                }
            }
            // An optional enumeration becomes an enumeration.
            if let Some(Value::Array(choices)) = map.get("anyOf") {
                let non_null: Vec<Value> =
                    choices.iter().filter(|choice| choice["type"] != "null").cloned().collect();
                if let [Value::Object(only)] = non_null.as_slice() {
                    let only = only.clone();
                    map.shift_remove("anyOf");
                    for (key, inner) in only {
                        map.entry(key).or_insert(inner);
                    }
                }
            }
            // A choice of constants becomes an enumeration.
            if let Some(Value::Array(choices)) = map.get("oneOf")
                && choices.iter().all(|choice| choice["const"].is_string())
            {
                let constants: Vec<Value> = choices.iter().map(|choice| choice["const"].clone()).collect();
                map.shift_remove("oneOf");
                map.insert("type".into(), "string".into());
                map.insert("enum".into(), Value::Array(constants));
            }
            if let Some(Value::Array(constants)) = map.get_mut("enum") {
                constants.retain(|constant| !constant.is_null());
            }
            map.values_mut().for_each(reduce_schema);
        }
        Value::Array(list) => list.iter_mut().for_each(reduce_schema),
        _ => {}
    }
}

/// Explains what is wrong with an input so that the model can correct it.
pub(super) fn invalid_input(
    name: &str,
    input: &Value,
    error: &serde_path_to_error::Error<serde_json::Error>,
    schema: &Value,
) -> ToolEnd {
    let path = error.path().to_string();
    let location = if path == "." { String::new() } else { format!(" at `{path}`") };
    let mut text = format!("{name}: the input does not fit{location}: {}\n", error.inner());
    if input.is_string() {
        text += "The arguments must be one JSON object; what came is not JSON.\n";
    }
    text += &format!("Expected: {}", schema["properties"]);
    if let Some(required) = schema["required"].as_array().filter(|list| !list.is_empty()) {
        text += &format!("\nRequired: {}", Value::Array(required.clone()));
    }
    ToolEnd::malformed(text)
}
