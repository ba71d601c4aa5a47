//! Keywords of JSON schemas for fields of requests. They say exactly what the server accepts.

use serde_json::{Value, json};

/// The white space that [`str::trim`] removes, for a character class.
pub const SPACE: &str = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000";

/// A text that is not blank.
pub fn not_blank() -> Value {
    json!({ "minLength": 1, "pattern": format!("[^{SPACE}]") })
}

/// A text that is not blank and has no NUL character.
pub fn command_line() -> Value {
    json!({ "minLength": 1, "pattern": format!(r"^[^\x00]*[^\x00{SPACE}][^\x00]*$") })
}

/// A text without NUL characters.
pub fn without_nul() -> Value {
    json!({ "pattern": r"^[^\x00]*$" })
}

/// Text of this many characters.
pub fn length(least: usize, most: usize) -> Value {
    json!({ "minLength": least, "maxLength": most })
}

/// A path that [`crate::workspace_path`] accepts: relative or below `/workspace` or `/app`, without `..`, and not the
/// workspace itself.
pub fn workspace_path() -> Value {
    // A name is not empty and neither `.` nor `..`.
    let name = r"(?:[^/\x00.][^/\x00]*|\.[^/\x00.][^/\x00]*|\.\.[^/\x00]+)";
    let pattern = format!(r"^(?:/(?:workspace|app)/(?:\.?/)*|\./(?:\.?/)*)?{name}(?:/(?:{name}|\.)?)*$");
    json!({ "minLength": 1, "maxLength": 4096, "pattern": pattern })
}

/// Permission bits in octal.
pub fn mode() -> Value {
    json!({ "pattern": "^[0-7]{1,3}$" })
}

/// The name of a kernel.
pub fn kernel() -> Value {
    json!({ "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9._-]+$" })
}

/// Numbers from `least` to `most`.
pub fn range(least: impl Into<Value>, most: impl Into<Value>) -> Value {
    json!({ "minimum": least.into(), "maximum": most.into() })
}

/// Variables of an environment.
pub fn environment() -> Value {
    json!({
        "propertyNames": { "type": "string", "minLength": 1, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
        "additionalProperties": { "type": "string", "maxLength": 128 * 1024, "pattern": r"^[^\x00]*$" },
    })
}
