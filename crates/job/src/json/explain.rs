//! Turns errors of serde, which speak of Rust types ("a map", "u64"), into errors for users of the API and of the
//! configuration, who never see serde's words.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::edit_distance::nearest;
use super::plain_type::{plain_parser_error, plain_type_error};
use crate::invalid::{InvalidField, UNKNOWN_FIELD, invalid};

/// Fields that choose a variant of an object. Without them, every object of that kind is invalid.
const TAGS: [&str; 3] = ["tool", "action", "type"];
/// An object with more fields than this is not searched for the invalid one, which takes time for each field.
const MAX_SEARCHED_FIELDS: usize = 32;

/// Deserializes a value. The error names the field and says in plain words what is wrong with it.
///
/// # Errors
/// The invalid field; its name is empty if the value as a whole is wrong.
pub fn read<'de, T, D>(deserializer: D) -> Result<T, InvalidField>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    serde_path_to_error::deserialize(deserializer)
        .map_err(|error| explain(&error.path().to_string(), &error.inner().to_string()))
}

/// Deserializes an object like [`read`], and also names the invalid field where serde loses it: in objects that have a
/// tag, such as steps. `beside` are fields that the object may have and that the caller has removed.
///
/// # Errors
/// The invalid field.
pub fn read_object<T: DeserializeOwned>(
    fields: &Map<String, Value>,
    beside: &[&str],
) -> Result<T, InvalidField> {
    let deserialize = |fields: &Map<String, Value>| {
        serde_path_to_error::deserialize::<_, T>(fields)
            .map_err(|error| explain_beside(&error.path().to_string(), &error.inner().to_string(), beside))
    };
    deserialize(fields).map_err(|error| {
        if !error.field.is_empty() || fields.len() > MAX_SEARCHED_FIELDS {
            return error;
        }
        // The error is about the field without which it does not occur.
        let is_blamed = |name: &&String| {
            let mut others = fields.clone();
            others.remove(name.as_str());
            deserialize(&others).err().as_ref() != Some(&error)
        };
        let (tags, plain): (Vec<_>, Vec<_>) =
            fields.keys().partition(|name: &&String| TAGS.contains(&name.as_str()));
        let blamed = plain.into_iter().find(is_blamed).or_else(|| tags.into_iter().find(is_blamed));
        match blamed {
            Some(name) => error.below(name),
            None => error,
        }
    })
}

/// The invalid field for an error of serde: its path as far as it is known, and its message.
#[must_use]
pub fn explain(path: &str, message: &str) -> InvalidField {
    explain_beside(path, message, &[])
}

fn explain_beside(path: &str, message: &str, beside: &[&str]) -> InvalidField {
    // Parts of the path that serde could not name are question marks.
    let path = path.trim_end_matches(['.', '?']);
    let message = without_position(message);
    // The path may already end with the name.
    let at = |name: &str, problem: String| match path == name || path.ends_with(&format!(".{name}")) {
        true => invalid(path, problem),
        false => invalid(name, problem).below(path),
    };
    if let Some((name, _)) = quoted(message, "missing field `") {
        return invalid(name, "is missing").below(path);
    }
    if let Some((name, _)) = quoted(message, "duplicate field `") {
        return at(name, "is given twice".into());
    }
    if let Some((name, rest)) = quoted(message, "unknown field `") {
        let mut allowed = names_in(rest);
        if !allowed.is_empty() {
            allowed.extend(beside);
        }
        return at(name, format!("{UNKNOWN_FIELD}{}", hint(name, &allowed)));
    }
    if let Some((value, rest)) = quoted(message, "unknown variant `") {
        let allowed = names_in(rest);
        let meant = nearest(value, &allowed).map(|near| format!("; did you mean `{near}`?"));
        let problem =
            format!("must be {}, not `{}`{}", one_of(&allowed), shortened(value), meant.unwrap_or_default());
        return invalid(path, problem);
    }
    // A message of a type that has its own parser and has already explained the error.
    if let Some((field, problem)) = message.split_once(": ")
        && is_path(field)
        && InvalidField::reads_on(problem)
    {
        return invalid(field, problem).below(path);
    }
    invalid(path, plain_type_error(message).unwrap_or_else(|| plain_parser_error(message)))
}

/// The message without the position that `serde_json` and `toml` append.
fn without_position(message: &str) -> &str {
    let message = message.split("\nin `").next().unwrap_or(message).trim();
    let is_position = |text: &str| {
        let numbers = text.split_once(" column ");
        numbers.is_some_and(|(line, column)| line.parse::<u64>().is_ok() && column.parse::<u64>().is_ok())
    };
    match message.rsplit_once(" at line ") {
        Some((before, position)) if is_position(position) => before,
        _ => message,
    }
}

/// The name after `start`, up to the closing backtick, and what follows.
fn quoted<'a>(message: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    message.strip_prefix(start)?.split_once('`')
}

/// All names in backticks.
fn names_in(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn hint(name: &str, allowed: &[&str]) -> String {
    match nearest(name, allowed) {
        Some(near) => format!("; did you mean `{near}`?"),
        None if allowed.is_empty() => String::new(),
        None => format!("; allowed: {}", in_backticks(allowed).join(", ")),
    }
}

/// The list of allowed values as part of a sentence.
fn one_of(allowed: &[&str]) -> String {
    match allowed {
        [] => "one of the documented values".into(),
        [only] => format!("`{only}`"),
        [one, other] => format!("`{one}` or `{other}`"),
        several => format!("one of {}", in_backticks(several).join(", ")),
    }
}

fn in_backticks(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("`{name}`")).collect()
}

/// The beginning of a value that a user sent, for an error message.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether a text can be the path of a field.
fn is_path(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::SERDE_WORDING;

    #[test]
    fn errors_of_serde_become_sentences() {
        for (path, serde, sentence) in [
            (".", "missing field `task`", "`task` is missing"),
            ("steps[1]", "missing field `command`", "`steps[1].command` is missing"),
            ("task", "duplicate field `task` at line 1 column 9", "`task` is given twice"),
            (
                ".",
                "unknown field `taks`, expected one of `task`, `steps`, `name`",
                "there is no field `taks`; did you mean `task`?",
            ),
            (
                "limits.speed",
                "unknown field `speed`, expected `cpus` or `pids`",
                "`limits` has no field `speed`; allowed: `cpus`, `pids`",
            ),
            ("a.?", "unknown field `b`", "`a` has no field `b`"),
            ("a", "unknown field `b`, there are no fields", "`a` has no field `b`"),
            (
                "steps[2].timeout_s",
                "invalid type: string \"soon\", expected f64",
                "`steps[2].timeout_s` must be a number, not the string \"soon\"",
            ),
            (
                "priority",
                "invalid value: integer `3000000000`, expected i32",
                "`priority` must be a whole number from -2147483648 to 2147483647, not the number 3000000000",
            ),
            (
                "retry",
                "invalid type: floating point `1.5`, expected u32",
                "`retry` must be a whole number, not the number 1.5",
            ),
            (
                "port",
                "invalid value: integer `0`, expected a nonzero u16",
                "`port` must be a whole number from 1 to 65535, not the number 0",
            ),
            (".", "invalid type: sequence, expected struct NewJob", "the body must be an object, not a list"),
            ("x", "invalid type: boolean `true`, expected a map", "`x` must be an object, not true"),
            (
                "x",
                "invalid length 3, expected an array of length 2",
                "`x` must be a list of 2, not a list of 3",
            ),
            (
                "on_loss",
                "unknown variant `retyr`, expected `retry` or `fail`",
                "`on_loss` must be `retry` or `fail`, not `retyr`; did you mean `retry`?",
            ),
            ("limit", "invalid digit found in string", "`limit` must be a whole number"),
            ("follow", "provided string was not `true` or `false`", "`follow` must be true or false"),
            (
                "egress",
                "data did not match any variant of untagged enum Rule",
                "`egress` has none of the allowed forms",
            ),
            ("egress", "`packages` allows no `methods`", "`egress`: `packages` allows no `methods`"),
            (
                "steps[0]",
                "expect.exit_code: must be a string",
                "`steps[0].expect.exit_code` must be a string",
            ),
            (
                "mcp.own",
                "invalid type: map, expected a string\nin `own`\n",
                "`mcp.own` must be a string, not an object",
            ),
        ] {
            let told = explain(path, serde).sentence("field", "the body");
            assert_eq!(told, sentence, "{serde}");
            let leaked = SERDE_WORDING.iter().find(|words| told.contains(*words));
            assert_eq!(leaked, None, "{told}");
        }
    }

    #[test]
    fn long_values_are_shortened_in_errors() {
        let long = "x".repeat(1000);
        for message in [
            format!("invalid type: string {long:?}, expected u64"),
            format!("unknown variant `{long}`, expected `a`"),
        ] {
            let problem = explain("a", &message).problem;
            assert!(problem.len() < 150 && problem.contains("xxx..."), "{problem}");
        }
    }
}
