//! Parses JSON bodies. Errors are in plain words and name the invalid field or the position.

use job::InvalidField;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::{Position, Problem};

/// What the fields of a body belong to, in error messages.
const BODY: &str = "the body";

/// Parses a JSON object. If that fails, parses it once more to find the path of the invalid field.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // serde would accept an array as the fields of a struct, in their order.
    if !looks_like_json(bytes) {
        return Err(match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
            Ok(_) => Problem::invalid_field("", "the body must be a JSON object: {...}"),
            Err(error) => malformed(bytes, &error),
        });
    }
    let read_fields = |value: Value| match value {
        Value::Object(fields) => job::read_object(&fields, &[]),
        other => job::read(other),
    };
    serde_json::from_slice(bytes).or_else(|error| explain("", bytes, &error, read_fields))
}

/// Parses a JSON list that is sent by itself but is the field `name` of a job.
pub(crate) fn parse_list<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<Vec<T>, Problem> {
    serde_json::from_slice(bytes).or_else(|error| explain(name, bytes, &error, job::read))
}

/// Parses JSON again after an error: accepts `3.0` as a whole number, or else finds the path of the invalid field, which
/// begins with `parent`.
fn explain<T: DeserializeOwned>(
    parent: &str,
    bytes: &[u8],
    error: &serde_json::Error,
    read: impl FnOnce(Value) -> Result<T, InvalidField>,
) -> Result<T, Problem> {
    if error.classify() != serde_json::error::Category::Data {
        return Err(malformed(bytes, error));
    }
    // A field that is given twice is only visible in the text.
    let as_written = || job::read::<T, _>(&mut serde_json::Deserializer::from_slice(bytes));
    let parsed = match job::with_whole_numbers(bytes) {
        Some(value) => read(value),
        None => as_written().or_else(|found| match serde_json::from_slice(bytes) {
            Ok(value) if found.field.is_empty() => read(value),
            _ => Err(found),
        }),
    };
    parsed.map_err(|found| {
        let found = found.below(parent);
        Problem::invalid_field(found.field.as_str(), found.sentence("field", BODY))
    })
}

fn malformed(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let detail = if bytes.trim_ascii().is_empty() {
        "the body is empty; expected a JSON object".to_owned()
    } else {
        format!("{BODY} is not valid JSON: {}", job::json_syntax_error(error))
    };
    let position = Position {
        line: u32::try_from(error.line()).unwrap_or(u32::MAX),
        column: u32::try_from(error.column()).unwrap_or(u32::MAX),
    };
    Problem::bad_request("malformed_json", detail).at(position)
}

/// Whether a body is meant as a JSON object.
pub(super) fn looks_like_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
}

/// A list of steps, perhaps with a mistake in it.
pub(super) fn looks_like_json_list(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().strip_prefix(b"[").is_some_and(looks_like_json)
}

#[cfg(test)]
mod tests {
    use job::NewJob;

    use super::*;

    fn refusal(json: &str) -> Problem {
        parse_json::<NewJob>(json.as_bytes()).unwrap_err()
    }

    #[test]
    fn number_errors_use_plain_words() {
        let problem = refusal(r#"{"task": "x", "budget": {"turns": -1}}"#);
        let detail = problem.detail();
        assert_eq!(detail, "`budget.turns` must be a whole number, 0 or more, not the number -1");
        let problem = refusal(r#"{"task": "x", "budget": {"money_usd": "1"}}"#);
        assert_eq!(problem.detail(), "`budget.money_usd` must be a number, not the string \"1\"");
    }

    #[test]
    fn no_error_of_a_body_speaks_of_rust() {
        for json in [
            "",
            "{",
            "[",
            "nul",
            "{\"task\": \"x\"",
            "{\"task\": 'x'}",
            "{\"task\": \"x\",}",
            "{task: 1}",
            "{\"task\": \"x\"} {}",
            "{\"task\": \"\\q\"}",
            "[1]",
            r#"{"taks": "x"}"#,
            r#"{"task": null, "steps": 3}"#,
            r#"{"priority": "high"}"#,
            r#"{"priority": 1e12}"#,
            r#"{"priority": 1.5}"#,
            r#"{"labels": ["a"]}"#,
            r#"{"labels": {"a": 1}}"#,
            r#"{"limits": "none"}"#,
            r#"{"limits": {"cpus": "two"}}"#,
            r#"{"acceptance": "make test"}"#,
            r#"{"approval": "always"}"#,
            r#"{"start": 1}"#,
            r#"{"desktop": {"width": -1}}"#,
            r#"{"git": "https://example.org/x.git"}"#,
            r#"{"git": {}}"#,
            r#"{"commands": {"allow": 1}}"#,
            r#"{"mcp": []}"#,
            r#"{"secrets": {"A": []}}"#,
            r#"{"steps": [null]}"#,
            r#"{"steps": [{"tool": "list_files", "depth": -1}]}"#,
            r#"{"steps": [{"tool": "delete_file", "path": "a", "recursive": "yes"}]}"#,
            r#"{"steps": [{"tool": "shell", "command": "x", "retry": 1.5}]}"#,
            r#"{"steps": [{"tool": "gui", "action": "focus", "window": true}]}"#,
            r#"{"steps": [{"tool": "browser", "action": "read", "format": "pdf"}]}"#,
            r#"{"steps": [{"tool": "browser", "action": "wait", "seconds": "long"}]}"#,
        ] {
            let problem = refusal(json);
            let leaked = job::SERDE_WORDING.iter().find(|words| problem.detail().contains(*words));
            assert_eq!(leaked, None, "{json}: {}", problem.detail());
        }
    }

    #[test]
    fn whole_numbers_may_have_a_fraction_of_zero() {
        let job: NewJob = parse_json(br#"{"task": "x", "priority": 3.0, "budget": {"turns": 7.0}}"#).unwrap();
        assert_eq!((job.priority, job.budget.unwrap().turns), (Some(3), Some(7)));
        assert_eq!(refusal(r#"{"task": "x", "priority": 3.5}"#).field(), Some("priority"));
    }

    #[test]
    fn malformed_json_reports_line_and_column() {
        let problem = refusal("{\n  \"task\": \"x\",,\n}");
        assert_eq!((problem.status().as_u16(), problem.code()), (400, "malformed_json"));
        assert!(problem.detail().ends_with("is missing at line 2, column 15"), "{}", problem.detail());
        let json: serde_json::Value = serde_json::from_slice(&problem.to_json()).unwrap();
        assert_eq!((&json["line"], &json["column"]), (&2.into(), &15.into()));
        for text in ["", "{", "[1", "{\"task\": \"x\"} more", "nul", "{\"task\":\"\u{1}\"}"] {
            assert_eq!(refusal(text).code(), "malformed_json", "{text}");
        }
        assert!(refusal("  ").detail().contains("the body is empty"));
    }

    #[test]
    fn deep_nesting_is_refused_and_does_not_exhaust_the_stack() {
        let deep = format!("{{\"egress\":{}", "[".repeat(100_000));
        assert_eq!(refusal(&deep).code(), "malformed_json");
    }

    #[test]
    fn invalid_fields_are_named_with_their_path() {
        let table = [
            (r#"{"colour":"red"}"#, "colour", "there is no field `colour`; allowed: `task`, `steps`"),
            (r#"{"taks":"x"}"#, "taks", "there is no field `taks`; did you mean `task`?"),
            (r#"{"task":5}"#, "task", "not the number 5"),
            (r#"{"limits":{"memory_mib":"much"}}"#, "limits.memory_mib", "not the string \"much\""),
            (r#"{"limits":{"speed":1}}"#, "limits.speed", "`limits` has no field `speed`"),
            (r#"{"steps":[{"tool":"fly"}]}"#, "steps[0].tool", "must be one of `shell`"),
            (r#"{"steps":[{"command":"ls"}]}"#, "steps[0].tool", "is missing"),
            (
                r#"{"steps":[{"tool":"shell","command":"ls"},{"tool":"shell"}]}"#,
                "steps[1].command",
                "`steps[1].command` is missing",
            ),
            (
                r#"{"steps":[{"tool":"shell","command":"ls","colour":1}]}"#,
                "steps[0].colour",
                "`steps[0]` has no field",
            ),
            (r#"{"steps":{}}"#, "steps", "`steps` must be a list, not an object"),
            (r#"["task"]"#, "", "must be a JSON object"),
            (r#"{"task":"a","task":"b"}"#, "task", "`task` is given twice"),
        ];
        for (json, field, text) in table {
            let problem = refusal(json);
            assert_eq!((problem.status().as_u16(), problem.code()), (422, "invalid_field"), "{json}");
            assert_eq!(problem.field().unwrap_or_default(), field, "{json}: {}", problem.detail());
            assert!(problem.detail().contains(text), "{json}: {}", problem.detail());
            assert!(!problem.detail().contains("line 1"), "{json}: {}", problem.detail());
        }
    }
}
