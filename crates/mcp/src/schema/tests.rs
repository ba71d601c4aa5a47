//! Schemas in the shapes that real servers send.

use serde_json::{Value, json};

use super::*;

fn rewritten(schema: &Value) -> (Value, Option<String>) {
    let checked = checked(Some(schema)).unwrap();
    (checked.schema, checked.note)
}

#[test]
fn schemas_are_normalized_or_rejected_with_a_reason() {
    let fine = json!({"$schema": "x", "type": "object", "properties": {"a": {"type": ["string", "null"]}}});
    let normal = json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}});
    assert_eq!(rewritten(&fine), (normal, None));
    assert_eq!(checked(None).unwrap().schema, json!({"type": "object", "properties": {}}));
    assert_eq!(rewritten(&json!({"type": ["object", "null"]})).0["type"], "object");
    for (schema, words) in [
        (json!("text"), "no JSON object"),
        (json!({"type": "string"}), "not of type object"),
        (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "not of type object"),
        (json!({"allOf": [{"type": "object"}, {"type": "string"}]}), "not of type object"),
        (json!({"allOf": {}}), "`allOf`"),
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

#[test]
fn objects_of_a_root_all_of_are_merged() {
    // A page of a wiki: what all pages have, and what this one has.
    let schema = json!({
        "$defs": {
            "Parent": {"type": "object", "properties": {"page_id": {"type": "string"}}, "required": ["page_id"]},
            "Page": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
        },
        "allOf": [
            {"$ref": "#/$defs/Page"},
            {"properties": {"parent": {"$ref": "#/$defs/Parent"}, "title": {"maxLength": 80}}, "required": ["parent", "title"]},
            {"if": {"properties": {"title": {"const": "x"}}}, "then": {"required": ["icon"]}}
        ]
    });
    let (schema, note) = rewritten(&schema);
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["required"], json!(["title", "parent"]));
    assert_eq!(
        schema["properties"],
        json!({"title": {"type": "string", "maxLength": 80}, "parent": {"$ref": "#/$defs/Parent"}})
    );
    assert!(
        schema.get("allOf").is_none() && schema.get("if").is_none() && schema["$defs"]["Parent"].is_object()
    );
    assert_eq!(note, None);
}

#[test]
fn forms_of_a_root_any_of_become_one_object_with_a_note() {
    // A merge request, found by its number or by its branch.
    let schema = json!({
        "type": "object",
        "properties": {"project": {"type": "string"}},
        "required": ["project"],
        "anyOf": [
            {"properties": {"number": {"type": "integer"}, "diff": {"type": "boolean"}}, "required": ["number"]},
            {"properties": {"branch": {"type": "string"}}, "required": ["branch"]},
            {"type": "null"}
        ]
    });
    let (schema, note) = rewritten(&schema);
    let names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(schema["required"], json!(["project"]));
    assert!(schema.get("anyOf").is_none());
    assert_eq!(note.unwrap(), "Arguments that belong together: `number` (optional: `diff`); `branch`.");
}

#[test]
fn forms_that_differ_in_one_property_allow_each_of_its_schemas() {
    let form = |action: &str| {
        let properties = json!({"action": {"const": action}, "id": {"type": "integer"}});
        json!({"type": "object", "properties": properties, "required": ["action", "id"], "additionalProperties": false})
    };
    let (schema, note) = rewritten(&json!({"oneOf": [form("open"), form("close"), form("open")]}));
    assert_eq!(
        schema,
        json!({
            "type": "object",
            "properties": {"action": {"anyOf": [{"const": "open"}, {"const": "close"}]}, "id": {"type": "integer"}},
            "required": ["action", "id"],
            "additionalProperties": false
        })
    );
    assert_eq!(note, None, "the forms have the same arguments");
}

#[test]
fn tuples_become_lists() {
    let pair = json!([{"type": "string"}, {"type": "number"}]);
    let (schema, _) = rewritten(&json!({"properties": {
        "range": {"type": "array", "items": pair, "minItems": 2, "additionalItems": false},
        "modern": {"type": "array", "prefixItems": pair, "items": false},
        "same": {"type": "array", "items": [{"type": "string"}, {"type": "string"}]},
        "empty": {"type": "array", "items": []},
        "untyped": {"type": ["array", "null"]},
        "messages": {"type": "array", "items": {"type": "object", "properties": {"at": {"items": pair}, "any": true}}}
    }}));
    let properties = &schema["properties"];
    let either = json!({"anyOf": pair});
    assert_eq!(properties["range"], json!({"type": "array", "items": either, "minItems": 2}));
    assert_eq!(properties["modern"], json!({"type": "array", "items": either}));
    assert_eq!(properties["same"]["items"], json!({"type": "string"}));
    assert_eq!((&properties["empty"]["items"], &properties["untyped"]["items"]), (&json!({}), &json!({})));
    let message = &properties["messages"]["items"]["properties"];
    assert_eq!((&message["at"]["items"], &message["any"]), (&either, &json!({})));
}

#[test]
fn references_lead_to_something_in_the_schema() {
    let node =
        json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]});
    let (schema, _) = rewritten(&json!({"$ref": "#/$defs/Node", "$defs": {"Node": node}}));
    assert_eq!((&schema["properties"], &schema["required"]), (&node["properties"], &node["required"]));
    assert!(schema.get("$ref").is_none());
    let own = json!({"properties": {"parts": {"type": "array", "items": {"$ref": "#"}}, "$ref": {"type": "string"}}});
    assert!(checked(Some(&own)).is_ok());
    for (schema, words) in [
        (json!({"properties": {"a": {"$ref": "#/$defs/Gone"}}}), "refers to `#/$defs/Gone`"),
        (
            json!({"properties": {"a": {"anyOf": [{"$ref": "https://example.org/a.json"}]}}}),
            "`https://example.org/a.json`",
        ),
        (json!({"$ref": "#/$defs/Gone"}), "refers to `#/$defs/Gone`"),
        (json!({"$ref": "#"}), "too many parts"),
        (json!({"$ref": 3}), "`$ref`"),
    ] {
        let told = checked(Some(&schema)).unwrap_err();
        assert!(told.contains(words), "{schema}: {told}");
    }
}

#[test]
fn references_that_repeat_themselves_without_end_are_rejected() {
    let mut definitions = Map::new();
    for level in 0..20 {
        let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
        definitions.insert(level.to_string(), json!({"allOf": [next, next]}));
    }
    definitions.insert("20".into(), json!({"type": "object"}));
    let told = checked(Some(&json!({"$ref": "#/$defs/0", "$defs": definitions}))).unwrap_err();
    assert!(told.contains("too many parts"), "{told}");
}
