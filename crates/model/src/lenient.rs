//! Parses JSON as models write it: in fences, with trailing commas, single quotes, comments, Python literals, and
//! line breaks and quotes inside strings. The parser is lenient but never completes truncated input, because half of
//! a file's content is worse than none.

use serde_json::{Map, Value};

/// The maximum nesting depth.
const MAX_DEPTH: usize = 64;
/// How many braces are tried before the search for objects stops.
const MAX_TRIES: usize = 256;

/// Parses a whole text as one value: first strictly, then leniently.
pub(crate) fn parse(text: &str) -> Option<Value> {
    let text = unfence(text.trim());
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    let mut reader = Reader::new(text);
    let value = reader.value(0)?;
    reader.skip_blank();
    reader.is_at_end().then_some(value)
}

/// All top-level objects in a text, in order.
pub(crate) fn find_objects(text: &str) -> Vec<Map<String, Value>> {
    let mut found = Vec::new();
    let mut at = 0;
    for _ in 0..MAX_TRIES {
        let Some(brace) = text[at..].find('{') else { break };
        let rest = &text[at + brace..];
        match read_object(rest) {
            Some((object, length)) => {
                found.push(object);
                at += brace + length;
            }
            None => at += brace + 1,
        }
    }
    found
}

/// The objects of a text that contains nothing else except white space, list punctuation and the given words; empty
/// if the text contains anything else.
pub(crate) fn only_objects(text: &str, around: &[&str]) -> Vec<Map<String, Value>> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '[' | ']' | ','));
        if rest.is_empty() {
            return found;
        }
        if let Some(after) = around.iter().find_map(|word| rest.strip_prefix(word)) {
            rest = after;
            continue;
        }
        match read_object(rest).filter(|_| rest.starts_with('{')) {
            Some((object, length)) => {
                found.push(object);
                rest = &rest[length..];
            }
            None => return Vec::new(),
        }
    }
}

/// Parses an object at the beginning of a text; returns it and its length in bytes.
fn read_object(text: &str) -> Option<(Map<String, Value>, usize)> {
    let mut strict = serde_json::Deserializer::from_str(text).into_iter::<Map<String, Value>>();
    if let Some(Ok(object)) = strict.next() {
        return Some((object, strict.byte_offset()));
    }
    let mut reader = Reader::new(text);
    match reader.value(0)? {
        Value::Object(object) => Some((object, reader.at)),
        _ => None,
    }
}

/// The content of a code fence, if the text is nothing else.
fn unfence(text: &str) -> &str {
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let Some(inner) = inner else { return text };
    // The first line names the language.
    inner.split_once('\n').map_or(inner, |(_, rest)| rest).trim()
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, word: &str) -> bool {
        let is_there = self.rest().starts_with(word);
        if is_there {
            self.at += word.len();
        }
        is_there
    }

    fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// Skips white space and comments.
    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            let length = if trimmed.starts_with("//") || trimmed.starts_with('#') {
                trimmed.find('\n').unwrap_or(trimmed.len())
            } else if trimmed.starts_with("/*") {
                trimmed.find("*/").map_or(trimmed.len(), |end| end + 2)
            } else {
                return;
            };
            self.at += length;
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip_blank();
        match self.peek()? {
            '{' => self.object(depth),
            '[' => self.array(depth),
            '"' | '\'' => self.string().map(Value::String),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.next();
        let mut object = Map::new();
        loop {
            self.skip_blank();
            if self.take("}") {
                return Some(Value::Object(object));
            }
            let key = match self.peek()? {
                '"' | '\'' => self.string()?,
                _ => self.name()?,
            };
            self.skip_blank();
            if !self.take(":") {
                return None;
            }
            let value = self.value(depth + 1)?;
            object.insert(key, value);
            self.end_item("}")?;
        }
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        self.next();
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            if self.take("]") {
                return Some(Value::Array(items));
            }
            items.push(self.value(depth + 1)?);
            self.end_item("]")?;
        }
    }

    /// Accepts a comma, or the closing character ahead.
    fn end_item(&mut self, end: &str) -> Option<()> {
        self.skip_blank();
        (self.take(",") || self.rest().starts_with(end)).then_some(())
    }

    /// Parses a key without quotes.
    fn name(&mut self) -> Option<String> {
        let rest = self.rest();
        let length = rest.find(|c: char| !c.is_alphanumeric() && !"_-$.".contains(c)).unwrap_or(rest.len());
        self.at += length;
        (length > 0).then(|| rest[..length].to_owned())
    }

    /// Parses a number, or a literal of JSON, JavaScript or Python.
    fn word(&mut self) -> Option<Value> {
        let rest = self.rest();
        let length =
            rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(rest.len());
        let word = &rest[..length];
        let value = match word {
            "true" | "True" => Value::Bool(true),
            "false" | "False" => Value::Bool(false),
            "null" | "None" | "undefined" | "NaN" => Value::Null,
            _ => Value::Number(serde_json::from_str(word.trim_start_matches('+')).ok()?),
        };
        self.at += length;
        Some(value)
    }

    fn string(&mut self) -> Option<String> {
        for fence in ["\"\"\"", "'''"] {
            if self.take(fence) {
                let length = self.rest().find(fence)?;
                let inner = self.rest()[..length].to_owned();
                self.at += length + fence.len();
                return Some(inner);
            }
        }
        let quote = self.next()?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '\\' => self.escape(&mut text)?,
                c if c == quote && self.is_end_of_string() => return Some(text),
                c => text.push(c),
            }
        }
    }

    /// A quote ends a string only if the text can continue as JSON; otherwise it is an unescaped quote.
    fn is_end_of_string(&self) -> bool {
        let rest = self.rest().trim_start();
        rest.is_empty()
            || rest.starts_with([',', '}', ']', ':'])
            || rest.starts_with("//")
            || rest.starts_with("/*")
    }

    fn escape(&mut self, text: &mut String) -> Option<()> {
        match self.next()? {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            'u' => text.push(self.unicode()?),
            // A line continuation.
            '\n' => {}
            c @ ('"' | '\'' | '\\' | '/' | '`') => text.push(c),
            // Not a JSON escape: a literal backslash was meant.
            c => text.extend(['\\', c]),
        }
        Some(())
    }

    fn unicode(&mut self) -> Option<char> {
        let first = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        if !self.take("\\u") {
            return Some(char::REPLACEMENT_CHARACTER);
        }
        let second = self.four_digits()?;
        let joined = 0x10000 + ((first - 0xd800) << 10) + (second.wrapping_sub(0xdc00) & 0x3ff);
        Some(char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits =
            self.rest().get(..4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_as_models_write_it_is_parsed() {
        for (text, expected) in [
            (r#"{"a": 1}"#, json!({"a": 1})),
            ("```json\n{\"a\": 1,}\n```", json!({"a": 1})),
            ("{'a': 'it', 'b': [1, 2,],}", json!({"a": "it", "b": [1, 2]})),
            ("{a: True, b: None, c-d: -1.5e3}", json!({"a": true, "b": null, "c-d": -1500.0})),
            ("{\"code\": \"line one\nline two\"}", json!({"code": "line one\nline two"})),
            (r#"{"say": "he said "hi" to me"}"#, json!({"say": "he said \"hi\" to me"})),
            (r#"{"regex": "\d+\.\w"}"#, json!({"regex": "\\d+\\.\\w"})),
            ("{\"a\": 1, // why\n /* more */ \"b\": 2}", json!({"a": 1, "b": 2})),
            ("{\"code\": \"\"\"print(\"x\")\n\"\"\"}", json!({"code": "print(\"x\")\n"})),
            (r#"{"face": "\ud83d\ude00", "bad": "\ud83dx"}"#, json!({"face": "😀", "bad": "\u{fffd}x"})),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn truncated_json_is_not_completed() {
        for text in
            [r#"{"path": "a", "content": "half of"#, r#"{"a": [1, 2"#, r#"{"a": 1"#, r#"{"a":"#, "", "{", "'"]
        {
            assert_eq!(parse(text), None, "{text}");
            assert!(find_objects(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn objects_are_found_in_text() {
        let text = "Sure!\n```json\n{\"tool\": \"a\",}\n```\nand then {'tool': 'b', 'x': {'y': 1}} {not json} done {";
        let found: Vec<Value> = find_objects(text).into_iter().map(Value::Object).collect();
        assert_eq!(found, [json!({"tool": "a"}), json!({"tool": "b", "x": {"y": 1}})]);
    }

    #[test]
    fn deep_nesting_is_rejected_without_stack_overflow() {
        assert_eq!(parse(&format!("{}1", "['x',".repeat(100_000))), None);
        assert!(find_objects(&"{a:".repeat(100_000)).is_empty());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[a-z]{1,6}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = parse(&text);
            let _ = find_objects(&text);
        }

        #[test]
        fn no_bracket_text_panics(text in "[{}\\[\\]:,\"'\\\\a1/*# \n]{0,80}") {
            let _ = parse(&text);
            let _ = find_objects(&text);
        }

        #[test]
        fn valid_json_is_parsed_unchanged(value in any_json()) {
            prop_assert_eq!(parse(&value.to_string()), Some(value));
        }

        #[test]
        fn the_lenient_parser_agrees_with_the_strict_one_on_valid_json(value in any_json()) {
            // A quote followed by JSON punctuation is the only input that the lenient parser reads differently.
            let text = value.to_string();
            prop_assume!(!text.contains("\\\""));
            let mut reader = Reader::new(&text);
            prop_assert_eq!(reader.value(0), Some(value));
        }

        #[test]
        fn an_object_is_found_in_any_fence(words in "[a-z ]{0,20}", value in any_json()) {
            let object = json!({"tool": value});
            let text = format!("{words}\n```\n{object:#}\n```\n{words}");
            prop_assert_eq!(find_objects(&text).into_iter().map(Value::Object).collect::<Vec<_>>(), vec![object]);
        }
    }
}
