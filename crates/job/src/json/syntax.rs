//! What is wrong with text that is not JSON.

use serde_json::error::Category;

/// Messages of `serde_json`, and what they mean.
const SYNTAX_ERRORS: [(&str, &str); 20] = [
    ("EOF while parsing a list", "it ends inside a list"),
    ("EOF while parsing an object", "it ends inside an object"),
    ("EOF while parsing a string", "it ends inside a string"),
    ("EOF while parsing a value", "it ends where a value is missing"),
    ("expected `:`", "a colon is missing"),
    ("expected `,` or `]`", "a comma or closing bracket is missing"),
    ("expected `,` or `}`", "a comma or closing brace is missing"),
    ("expected ident", "there is a word without quotes other than true, false and null"),
    ("expected value", "there is no valid value (strings need double quotes)"),
    ("expected `\"`", "a double quote is missing"),
    ("invalid escape", "a string has an invalid escape sequence"),
    ("invalid number", "a number is malformed"),
    ("number out of range", "a number is too large"),
    ("invalid unicode code point", "a string has an invalid character"),
    ("control character", "a string has a line break or another control character that is not escaped"),
    ("key must be a string", "a field name in double quotes is missing"),
    ("lone leading surrogate", "a string has an invalid escape sequence"),
    ("unexpected end of hex escape", "a string has an invalid escape sequence"),
    ("trailing comma", "there is a comma before a closing brace or bracket"),
    ("recursion limit exceeded", "it is nested too deeply"),
];

/// What is wrong with a text that is not JSON, and where: `a comma or closing brace is missing at line 3, column 7`.
#[must_use]
pub fn json_syntax_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = match error.classify() {
        Category::Io => "it cannot be read",
        _ if text.starts_with("trailing characters") => "there is more text after its end",
        _ => SYNTAX_ERRORS
            .iter()
            .find_map(|(serde, plain)| text.starts_with(serde).then_some(*plain))
            .unwrap_or("it is malformed"),
    };
    format!("{what} at line {}, column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::json::SERDE_WORDING;

    #[test]
    fn syntax_errors_are_plain_and_have_a_position() {
        for (text, plain) in [
            ("{\n\"a\": 1\n\"b\": 2}", "a comma or closing brace is missing at line 3, column 1"),
            ("[1 2]", "a comma or closing bracket is missing at line 1, column 4"),
            ("[1,", "it ends where a value is missing at line 1"),
            ("[1", "it ends inside a list at line 1"),
            ("{", "it ends inside an object at line 1"),
            ("\"a", "it ends inside a string at line 1"),
            ("{\"a\" 1}", "a colon is missing at line 1"),
            ("{a: 1}", "a field name in double quotes is missing at line 1"),
            ("['a']", "there is no valid value (strings need double quotes) at line 1"),
            ("[1,]", "there is a comma before a closing brace or bracket at line 1"),
            ("[1] 2", "there is more text after its end at line 1"),
            ("[nulx]", "there is a word without quotes other than true, false and null at line 1"),
            ("[01]", "a number is malformed at line 1"),
            ("[1e999]", "a number is too large at line 1"),
            ("\"\\x\"", "a string has an invalid escape sequence at line 1"),
        ] {
            let told = json_syntax_error(&serde_json::from_str::<Value>(text).unwrap_err());
            assert!(told.starts_with(plain), "{text}: {told}");
        }
        let deep = "[".repeat(1000);
        for text in
            [deep.as_str(), "", " ", "\"\\ud800\"", "\"\\u12\"", "\"\u{1}\"", "{\"a\":}", "tru", "-", "{,}"]
        {
            let told = json_syntax_error(&serde_json::from_str::<Value>(text).unwrap_err());
            let leaked = SERDE_WORDING.iter().find(|words| told.contains(*words));
            assert!(leaked.is_none() && !told.contains("it is malformed"), "{text}: {told}");
        }
    }
}
