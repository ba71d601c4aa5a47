//! Validates the input schemas of tools, because a single schema that a provider rejects would make every model
//! request fail. What providers refuse is rewritten where the server's meaning survives.

mod arrays;
mod root;

use serde_json::{Map, Value};

/// The maximum size and nesting of a schema.
const MAX_BYTES: usize = 32 * 1024;
const MAX_DEPTH: usize = 32;
/// Valid values of `type`.
const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// A schema that every provider accepts.
#[derive(Debug, PartialEq)]
pub(crate) struct Checked {
    pub(crate) schema: Value,
    /// What the schema no longer expresses, for the tool's description.
    pub(crate) note: Option<String>,
}

/// Rewrites a schema to a form that every provider accepts, or says what is wrong with it.
pub(crate) fn checked(schema: Option<&Value>) -> Result<Checked, String> {
    let received = match schema {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(_) => return Err("its schema is no JSON object".into()),
    };
    // Checked before it is rewritten, too: merging copies parts.
    check_size(&received)?;
    let (mut map, note) = root::merge_root(&received)?;
    map.shift_remove("$schema");
    map.insert("type".into(), "object".into());
    map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    let mut schema = Value::Object(map);
    arrays::rewrite_arrays(&mut schema);
    check(&schema, &schema, 0)?;
    check_size(&schema)?;
    Ok(Checked { schema, note })
}

fn check_size(schema: &Value) -> Result<(), String> {
    match serde_json::to_vec(schema) {
        Ok(bytes) if bytes.len() <= MAX_BYTES => Ok(()),
        _ => Err(format!("its schema has more than {MAX_BYTES} bytes")),
    }
}

fn check(schema: &Value, root: &Value, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("its schema is too deep".into());
    }
    let map = match schema {
        Value::Object(map) => map,
        // `true` and `false` are valid schemas.
        Value::Bool(_) => return Ok(()),
        _ => return Err("its schema has a part that is no schema".into()),
    };
    if let Some(reference) = map.get("$ref") {
        root::find(root, reference)?;
    }
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
    for key in ["properties", "patternProperties", "$defs", "definitions"] {
        match map.get(key) {
            None => {}
            Some(Value::Object(parts)) => parts.values().try_for_each(|part| check(part, root, depth + 1))?,
            Some(_) => return Err(format!("`{key}` in its schema is no object")),
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        match map.get(key) {
            None => {}
            Some(Value::Array(parts)) => parts.iter().try_for_each(|part| check(part, root, depth + 1))?,
            Some(_) => return Err(format!("`{key}` in its schema is no list")),
        }
    }
    for key in ["items", "additionalProperties", "not"] {
        if let Some(part) = map.get(key) {
            check(part, root, depth + 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
