//! Merges `$ref`, `allOf`, `anyOf` and `oneOf` at the root of a schema into one plain object, because providers refuse
//! them there. The result allows at least what the schema allows; the server checks the arguments itself.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The maximum number of parts that are merged; references can repeat a part without end.
const MAX_PARTS: usize = 200;
/// The maximum number of forms that a note lists.
const MAX_FORMS: usize = 8;
/// Definitions that references point to.
pub(super) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

type Object = Map<String, Value>;

/// Merges the parts of a root. The second value says in words what the result no longer expresses.
pub(super) fn merge_root(root: &Value) -> Result<(Object, Option<String>), String> {
    let mut merger = Merger { root, parts: 0, notes: Vec::new() };
    let mut object = merger.flatten(root)?;
    for key in ["not", "enum", "const"] {
        object.remove(key);
    }
    let note = (!merger.notes.is_empty()).then(|| merger.notes.join(" "));
    Ok((object, note))
}

/// What a local reference points to.
pub(super) fn find<'a>(root: &'a Value, reference: &Value) -> Result<&'a Value, String> {
    let Some(reference) = reference.as_str() else {
        return Err("`$ref` in its schema is no text".into());
    };
    let found = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
    found.ok_or_else(|| {
        format!("its schema refers to `{}`, which it does not contain", crate::outcome::short(reference))
    })
}

struct Merger<'a> {
    root: &'a Value,
    parts: usize,
    notes: Vec<String>,
}

impl Merger<'_> {
    fn flatten(&mut self, schema: &Value) -> Result<Object, String> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err("its schema has too many parts".into());
        }
        let mut object = match schema {
            Value::Object(object) => object.clone(),
            Value::Bool(true) => Object::new(),
            _ => return Err("its schema has a part that is no object".into()),
        };
        let mut parts = Vec::new();
        if let Some(reference) = object.remove("$ref") {
            parts.push(self.flatten(find(self.root, &reference)?)?);
        }
        if let Some(all) = object.remove("allOf") {
            for part in list(&all, "allOf")? {
                parts.push(self.flatten(part)?);
            }
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(forms) = object.remove(key) {
                parts.push(self.unite(list(&forms, key)?)?);
            }
        }
        if !parts.iter().chain([&object]).all(may_be_object) {
            return Err("its schema is not of type object".into());
        }
        parts.into_iter().for_each(|part| merge(&mut object, part));
        Ok(object)
    }

    /// An object that accepts each of these forms.
    fn unite(&mut self, forms: &[Value]) -> Result<Object, String> {
        let mut objects = Vec::new();
        for form in forms {
            // Arguments are always an object, so a form such as `null` never applies.
            if form.as_object().is_some_and(may_be_object) {
                objects.push(self.flatten(form)?);
            }
        }
        if objects.len() <= 1 {
            return objects.pop().ok_or_else(|| "its schema is not of type object".into());
        }
        self.notes.extend(describe(&objects));
        let mut choices: Map<String, Value> = Map::new();
        for (name, schema) in objects.iter().flat_map(properties) {
            let choice = choices.entry(name.clone()).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(choice) = choice
                && !choice.contains(schema)
            {
                choice.push(schema.clone());
            }
        }
        for choice in choices.values_mut() {
            *choice = any_of(std::mem::take(choice));
        }
        let is_required = |name: &Value| objects.iter().all(|object| names(object).any(|own| own == name));
        let required: Value = names(&objects[0]).filter(|name| is_required(name)).cloned().collect();
        let mut union = Object::new();
        union.insert("required".into(), required);
        union.insert("properties".into(), Value::Object(choices));
        if objects.iter().all(|object| object.get("additionalProperties") == Some(&Value::Bool(false))) {
            union.insert("additionalProperties".into(), Value::Bool(false));
        }
        for mut object in objects {
            for key in DEFINITIONS {
                if let Some(definitions) = object.remove(key) {
                    merge(&mut union, Map::from_iter([(key.to_owned(), definitions)]));
                }
            }
        }
        Ok(union)
    }
}

/// A schema that accepts each of these; a single one stands for itself.
pub(super) fn any_of(choices: Value) -> Value {
    match choices {
        Value::Array(mut choices) if choices.len() == 1 => choices.swap_remove(0),
        Value::Array(choices) if !choices.is_empty() => {
            Value::Object(Map::from_iter([("anyOf".into(), choices.into())]))
        }
        _ => Value::Object(Map::new()),
    }
}

/// Adds the requirements of a part to an object. What both say differently is taken from the object.
fn merge(object: &mut Object, part: Object) {
    for (key, value) in part {
        match key.as_str() {
            "properties" | "$defs" | "definitions" => merge_named(object, &key, value),
            "required" => merge_required(object, value),
            "additionalProperties" if value == Value::Bool(false) => drop(object.insert(key, value)),
            "title" | "description" | "additionalProperties" => {
                object.entry(key).or_insert(value);
            }
            // Conditions and the like only narrow what is allowed.
            _ => {}
        }
    }
}

fn merge_named(object: &mut Object, key: &str, named: Value) {
    let own = object.entry(key).or_insert_with(|| Value::Object(Map::new()));
    let (Value::Object(own), Value::Object(named)) = (own, named) else { return };
    for (name, schema) in named {
        let Some(known) = own.get_mut(&name) else {
            own.insert(name, schema);
            continue;
        };
        if key == "properties"
            && let (Value::Object(known), Value::Object(schema)) = (known, schema)
        {
            for (keyword, value) in schema {
                known.entry(keyword).or_insert(value);
            }
        }
    }
}

fn merge_required(object: &mut Object, names: Value) {
    let own = object.entry("required").or_insert_with(|| Value::Array(Vec::new()));
    let (Value::Array(own), Value::Array(names)) = (own, names) else { return };
    for name in names {
        if !own.contains(&name) {
            own.push(name);
        }
    }
}

/// Says which arguments belong together; `None` if the forms have the same ones.
fn describe(forms: &[Object]) -> Option<String> {
    let quoted =
        |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let mut told: Vec<String> = Vec::new();
    for form in forms {
        let required: BTreeSet<&str> = names(form).filter_map(Value::as_str).collect();
        let optional =
            properties(form).map(|(name, _)| name.as_str()).filter(|name| !required.contains(name));
        let optional: Vec<&str> = optional.collect();
        let mut text =
            if required.is_empty() { "none".into() } else { quoted(required.into_iter().collect()) };
        if !optional.is_empty() {
            text += &format!(" (optional: {})", quoted(optional));
        }
        if !told.contains(&text) {
            told.push(text);
        }
    }
    if told.len() < 2 {
        return None;
    }
    if told.len() > MAX_FORMS {
        told.truncate(MAX_FORMS);
        told.push("or others".into());
    }
    Some(format!("Arguments that belong together: {}.", told.join("; ")))
}

fn properties(object: &Object) -> impl Iterator<Item = (&String, &Value)> {
    object.get("properties").and_then(Value::as_object).into_iter().flatten()
}

fn names(object: &Object) -> impl Iterator<Item = &Value> + Clone {
    object.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default().iter()
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    match value {
        Value::Array(parts) => Ok(parts),
        _ => Err(format!("`{key}` in its schema is no list")),
    }
}

/// Whether objects are among the values of a schema, as far as its `type` says.
fn may_be_object(schema: &Object) -> bool {
    match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
    }
}
