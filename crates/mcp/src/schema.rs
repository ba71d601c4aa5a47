//! Validates the input schemas of tools, because a single schema that a provider rejects would make every model
//! request fail.

use serde_json::{Map, Value};

/// The maximum size and nesting of a schema.
const MAX_BYTES: usize = 32 * 1024;
const MAX_DEPTH: usize = 32;
/// Valid values of `type`.
const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// Normalizes a schema to a form that every provider accepts, or says what is wrong with it.
pub(crate) fn checked(schema: Option<&Value>) -> Result<Value, String> {
    let mut map = match schema {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(_) => return Err("its schema is no JSON object".into()),
    };
    map.remove("$schema");
    map.entry("type").or_insert_with(|| "object".into());
    if map.get("type") != Some(&Value::from("object")) {
        return Err("its schema is not of type object".into());
    }
    map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    let value = Value::Object(map);
    check(&value, 0)?;
    match serde_json::to_vec(&value) {
        Ok(bytes) if bytes.len() <= MAX_BYTES => Ok(value),
        _ => Err(format!("its schema has more than {MAX_BYTES} bytes")),
    }
}

fn check(schema: &Value, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("its schema is too deep".into());
    }
    let map = match schema {
        Value::Object(map) => map,
        // `true` and `false` are valid schemas.
        Value::Bool(_) => return Ok(()),
        _ => return Err("its schema has a part that is no schema".into()),
    };
    if let Some(kind) = map.get("type") {
        let is_known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        let is_fine = match kind {
            Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(is_known),
            kind => is_known(kind),
        };
        if !is_fine {
            return Err(format!("its schema names the type {kind}, which there is not"));
        }
    }
    let is_list_of_text =
        |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    if map.get("required").is_some_and(|required| !is_list_of_text(required)) {
        return Err("`required` in its schema is no list of names".into());
    }
    for key in ["properties", "$defs", "definitions"] {
        match map.get(key) {
            None => {}
            Some(Value::Object(parts)) => parts.values().try_for_each(|part| check(part, depth + 1))?,
            Some(_) => return Err(format!("`{key}` in its schema is no object")),
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        match map.get(key) {
            None => {}
            Some(Value::Array(parts)) => parts.iter().try_for_each(|part| check(part, depth + 1))?,
            Some(_) => return Err(format!("`{key}` in its schema is no list")),
        }
    }
    for key in ["items", "additionalProperties"] {
        match map.get(key) {
            None | Some(Value::Array(_)) => {}
            Some(part) => check(part, depth + 1)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_are_normalized_or_rejected_with_a_reason() {
        let fine =
            json!({"$schema": "x", "type": "object", "properties": {"a": {"type": ["string", "null"]}}});
        assert_eq!(
            checked(Some(&fine)).unwrap(),
            json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}})
        );
        assert_eq!(checked(None).unwrap(), json!({"type": "object", "properties": {}}));
        for (schema, words) in [
            (json!("text"), "no JSON object"),
            (json!({"type": "string"}), "not of type object"),
            (json!({"properties": []}), "`properties`"),
            (json!({"properties": {"a": {"type": "text"}}}), "the type \"text\""),
            (json!({"properties": {"a": 3}}), "no schema"),
            (json!({"required": "a"}), "`required`"),
            (json!({"description": "x".repeat(40_000)}), "bytes"),
        ] {
            let told = checked(Some(&schema)).unwrap_err();
            assert!(told.contains(words), "{schema}: {told}");
        }
    }
}
