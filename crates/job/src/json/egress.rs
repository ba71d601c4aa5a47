//! The schema of an egress policy.

use std::borrow::Cow;

use serde_json::{Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The schema of an egress policy: a word, or a list of rules.
pub struct EgressSchema;

impl PartialSchema for EgressSchema {
    fn schema() -> RefOr<Schema> {
        let word = json!({ "type": "string", "enum": ["off", "packages", "open", "learn"] });
        let rules = json!({
            "type": "object",
            "required": ["allow"],
            "properties": { "allow": { "type": "array", "items": rule() } },
            "additionalProperties": false,
        });
        serde_json::from_value(json!({ "oneOf": [word, rules] })).unwrap_or_default()
    }
}

impl ToSchema for EgressSchema {
    fn name() -> Cow<'static, str> {
        "Egress".into()
    }
}

/// A name, perhaps with `*.` before it, or an address or range, perhaps with a port.
const HOST: &str = r"^(?:\*\.)?[^\x00-\x20*/]+(?:/[0-9]{1,3}\]?(?::[0-9]{1,5})?)?$";

/// An entry of an allow list: a host, or an object that restricts what may be sent to it.
fn rule() -> Value {
    let host = host();
    let method = json!({ "type": "string", "minLength": 1, "maxLength": 32, "pattern": "^[A-Z]+$" });
    let path = json!({ "type": "string", "minLength": 1, "maxLength": 1024, "pattern": r"^/[^*?#%]*\*?$" });
    let list = |items: &Value| json!({ "type": "array", "maxItems": 64, "items": items });
    let requests = json!({
        "type": "object",
        "required": ["host"],
        "properties": {
            "host": host,
            "methods": list(&method),
            "paths": list(&path),
            "without_tls": { "type": "boolean", "enum": [false] },
        },
        "additionalProperties": false,
    });
    let tunnel = json!({
        "type": "object",
        "required": ["host", "without_tls"],
        "properties": {
            "host": host,
            "methods": { "type": "array", "maxItems": 0, "items": { "type": "string" } },
            "paths": { "type": "array", "maxItems": 0, "items": { "type": "string" } },
            "without_tls": { "type": "boolean", "enum": [true] },
        },
        "additionalProperties": false,
    });
    json!({ "oneOf": [host, requests, tunnel] })
}

/// A host. The grammar of addresses and of international names is left to the server.
pub fn host() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 1100, "pattern": HOST })
}
