//! The component schemas of the OpenAPI document as JSON, while constraints are added to them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};

const REFERENCE: &str = "#/components/schemas/";

/// Schemas by name.
#[derive(Clone)]
pub(super) struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    pub(super) fn new(derived: &BTreeMap<String, RefOr<Schema>>) -> Self {
        let to_json = |schema| serde_json::to_value(schema).unwrap_or_default();
        Self(derived.iter().map(|(name, schema)| (name.clone(), to_json(schema))).collect())
    }

    /// Replaces `derived` with these schemas.
    pub(super) fn write_to(self, derived: &mut BTreeMap<String, RefOr<Schema>>) {
        derived.retain(|name, _| self.0.contains_key(name));
        for (name, schema) in self.0 {
            if let Ok(schema) = serde_json::from_value(schema) {
                derived.insert(name, schema);
            }
        }
    }

    /// Adds keywords to the schema of a field. Nested objects are merged.
    pub(super) fn field(&mut self, schema: &str, field: &str, keywords: Value) {
        if let Some(property) = self.0.get_mut(schema).and_then(|schema| schema["properties"].get_mut(field))
        {
            merge(property, keywords);
        }
    }

    /// Adds keywords to a field of one variant of an enum. `tag` is the field that names the variant.
    pub(super) fn variant(&mut self, schema: &str, (tag, name): (&str, &str), field: &str, keywords: &Value) {
        let variants = self.0.get_mut(schema).and_then(|schema| schema["oneOf"].as_array_mut());
        for variant in variants.into_iter().flatten() {
            if has_tag(variant, (tag, name))
                && let Some(property) = property_mut(variant, field)
            {
                merge(property, keywords.clone());
            }
        }
    }

    pub(super) fn replace(&mut self, schema: &str, with: impl FnOnce(&Self, Value) -> Value) {
        if let Some(old) = self.0.remove(schema) {
            let new = with(self, old);
            self.0.insert(schema.to_owned(), new);
        }
    }

    pub(super) fn get(&self, schema: &str) -> Option<&Value> {
        self.0.get(schema)
    }

    pub(super) fn remove(&mut self, schema: &str) -> Option<Value> {
        self.0.remove(schema)
    }

    /// Requires exactly one of the fields. The others are null or absent.
    pub(super) fn exactly_one(&mut self, schema: &str, fields: &[&str]) {
        self.replace(schema, |_, object| {
            one_of(&object, fields.iter().map(|field| only(object.clone(), field, fields)))
        });
    }

    /// The plain objects that a schema allows: alternatives, combinations and references are resolved.
    pub(super) fn flatten(&self, schema: &Value) -> Vec<Map<String, Value>> {
        if let Some(name) = schema["$ref"].as_str().and_then(|target| target.strip_prefix(REFERENCE)) {
            return self.0.get(name).map(|schema| self.flatten(schema)).unwrap_or_default();
        }
        if let Some(alternatives) = schema["oneOf"].as_array() {
            return alternatives.iter().flat_map(|alternative| self.flatten(alternative)).collect();
        }
        let own = schema.as_object().cloned().unwrap_or_default();
        let Some(parts) = schema["allOf"].as_array() else { return vec![own] };
        let description = schema.get("description").filter(|text| text.is_string());
        let start: Map<String, Value> =
            description.map(|text| ("description".to_owned(), text.clone())).into_iter().collect();
        parts.iter().fold(vec![start], |combined, part| {
            let options = self.flatten(part);
            combined.iter().flat_map(|left| options.iter().map(|right| joined(left, right))).collect()
        })
    }

    /// States the range of 32-bit integers, which the format alone does not.
    pub(super) fn limit_integers(&mut self) {
        self.0.values_mut().for_each(limit_integers);
    }
}

fn limit_integers(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            let is_integer = match &keywords.get("type") {
                Some(Value::Array(types)) => types.contains(&json!("integer")),
                single => *single == Some(&json!("integer")),
            };
            if is_integer
                && keywords.get("format") == Some(&json!("int32"))
                && !keywords.contains_key("minimum")
            {
                keywords.insert("minimum".to_owned(), json!(i32::MIN));
                keywords.entry("maximum").or_insert(json!(i32::MAX));
            }
            keywords.values_mut().for_each(limit_integers);
        }
        Value::Array(items) => items.iter_mut().for_each(limit_integers),
        _ => {}
    }
}

/// An alternative of several schemas, with the description of the original one.
pub(super) fn one_of(original: &Value, alternatives: impl Iterator<Item = Value>) -> Value {
    let mut alternatives: Vec<Value> = alternatives.collect();
    for alternative in &mut alternatives {
        if let Some(keywords) = alternative.as_object_mut() {
            keywords.shift_remove("description");
        }
    }
    let mut schema = json!({ "oneOf": alternatives });
    if let Some(description) = original.get("description") {
        schema["description"] = description.clone();
    }
    schema
}

/// The object with `field` required and the others of `fields` absent.
pub(super) fn only(mut object: Value, field: &str, fields: &[&str]) -> Value {
    for other in fields.iter().filter(|other| **other != field) {
        exclude(&mut object, other);
    }
    require(&mut object, field);
    object
}

/// Requires a field, and forbids null in it.
pub(super) fn require(object: &mut Value, field: &str) {
    match object["required"].as_array_mut() {
        Some(required) if required.contains(&json!(field)) => {}
        Some(required) => required.push(json!(field)),
        None => object["required"] = json!([field]),
    }
    let Some(property) = object["properties"].get_mut(field) else { return };
    if let Some(types) = property["type"].as_array() {
        let others: Vec<Value> = types.iter().filter(|name| **name != "null").cloned().collect();
        property["type"] = match <[Value; 1]>::try_from(others) {
            Ok([single]) => single,
            Err(several) => Value::Array(several),
        };
    }
}

/// Forbids a field. What the server reads as absent stays allowed: null, or an empty list or map.
pub(super) fn exclude(object: &mut Value, field: &str) {
    let Some(property) = object["properties"].get_mut(field) else { return };
    match property["type"].as_str() {
        Some("array") => property["maxItems"] = json!(0),
        Some("object") => property["maxProperties"] = json!(0),
        _ => *property = json!({ "type": "null" }),
    }
}

/// Adds keywords to a schema; nested objects are merged.
pub(super) fn merge(target: &mut Value, keywords: Value) {
    match (target, keywords) {
        (Value::Object(target), Value::Object(keywords)) => {
            for (name, keyword) in keywords {
                merge(target.entry(name).or_insert(Value::Null), keyword);
            }
        }
        (target, keywords) => *target = keywords,
    }
}

/// Both objects as one.
fn joined(left: &Map<String, Value>, right: &Map<String, Value>) -> Map<String, Value> {
    let mut both = left.clone();
    for (name, keyword) in right {
        match (both.get_mut(name), keyword) {
            (Some(Value::Object(own)), Value::Object(more)) => own.extend(more.clone()),
            (Some(Value::Array(own)), Value::Array(more)) => own.extend(more.clone()),
            (Some(_), _) => {}
            (None, _) => drop(both.insert(name.clone(), keyword.clone())),
        }
    }
    both
}

fn has_tag(variant: &Value, (tag, name): (&str, &str)) -> bool {
    let own = variant["properties"][tag]["enum"] == json!([name]);
    own || variant["allOf"]
        .as_array()
        .is_some_and(|parts| parts.iter().any(|part| has_tag(part, (tag, name))))
}

fn property_mut<'a>(variant: &'a mut Value, field: &str) -> Option<&'a mut Value> {
    let object = variant.as_object_mut()?;
    if object.contains_key("allOf") {
        let parts = object.get_mut("allOf")?.as_array_mut()?;
        return parts.iter_mut().find_map(|part| property_mut(part, field));
    }
    object.get_mut("properties")?.get_mut(field)
}
