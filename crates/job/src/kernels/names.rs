//! Finds the variables that a cell assigns at its top level by reading its code. Pure and bounded.
//!
//! The result is used in messages to people and models. Names that code defines by other means (`exec`, `globals()`,
//! `from m import *`) are not found.

mod python;
mod typescript;

use std::collections::BTreeSet;

/// Only this many bytes of a cell are read.
const CODE_BYTES: usize = 256 * 1024;
/// Longer names are ignored.
const NAME_BYTES: usize = 100;
/// Patterns that are nested deeper are ignored.
const MAX_NESTING: usize = 8;
/// Maximum number of names per kernel.
const MAX_NAMES: usize = 1000;

/// The variables of a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(BTreeSet<String>);

impl Names {
    /// Adds and removes the names that a cell assigns and deletes. Code in an unknown language is ignored.
    pub fn take(&mut self, language: &str, code: &str) {
        let mut end = code.len().min(CODE_BYTES);
        while !code.is_char_boundary(end) {
            end -= 1;
        }
        let code = &code[..end];
        match language {
            "python" => python::read(code, self),
            "typescript" | "javascript" => typescript::read(code, self),
            _ => {}
        }
    }

    /// In alphabetical order.
    pub fn into_list(self) -> Vec<String> {
        self.0.into_iter().collect()
    }

    fn add(&mut self, name: &str) {
        if is_name(name) && self.0.len() < MAX_NAMES {
            self.0.insert(name.to_owned());
        }
    }

    fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}

fn is_name(text: &str) -> bool {
    let is_start = |letter: char| letter.is_alphabetic() || letter == '_' || letter == '$';
    text.len() <= NAME_BYTES
        && text.chars().next().is_some_and(is_start)
        && text.chars().all(|letter| is_start(letter) || letter.is_numeric())
}

/// The name at the start of a text.
fn leading_name(text: &str) -> &str {
    let text = text.trim_start();
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
    let end = text.find(|letter: char| !is_part(letter)).unwrap_or(text.len());
    &text[..end]
}

/// Splits at a character outside of brackets.
fn split_outside(text: &str, at: char) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0usize, 0, Vec::new());
    for (index, letter) in text.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ if letter == at && depth == 0 => {
                parts.push(&text[start..index]);
                start = index + letter.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(language: &str, code: &str) -> Vec<String> {
        let mut names = Names::default();
        names.take(language, code);
        names.into_list()
    }

    proptest! {
        /// Hostile code can neither hang the parser nor make it use much memory.
        #[test]
        fn parsers_accept_arbitrary_text(code in r#"(?s)([a-z =:,;()\[\]{}'"`$/*#\\\n]|def |let |import |as |é|.){0,200}"#) {
            for language in ["python", "typescript", "cobol"] {
                let names = of(language, &code);
                prop_assert!(names.iter().all(|name| is_name(name) && code.contains(name.as_str())));
            }
        }

        #[test]
        fn assigned_names_are_found_among_other_statements(
            names in prop::collection::btree_set("v[a-z]{1,8}", 1..8),
            value in prop::sample::select(vec!["1", "[1, 2]", "'a = b'", "f(x=1)", "{'k': 2}"]),
        ) {
            let python: String = names.iter().map(|name| format!("print({name}x == 1)\n{name} = {value}\n")).collect();
            let script: String = names.iter().map(|name| format!("let {name} = {value};\nf({name});\n")).collect();
            let expected: Vec<String> = names.into_iter().collect();
            prop_assert_eq!(of("python", &python), expected.clone());
            prop_assert_eq!(of("typescript", &script), expected);
        }
    }

    #[test]
    fn deeply_nested_code_is_handled() {
        let deep = "(".repeat(100_000);
        assert!(of("python", &format!("{deep}a{} = 1", ")".repeat(100_000))).is_empty());
        assert!(of("typescript", &format!("let {} = 1", "{a:".repeat(80_000))).is_empty());
    }

    #[test]
    fn names_are_bounded() {
        let many: String = (0..5000).map(|number| format!("v{number} = 1\n")).collect();
        assert_eq!(of("python", &many).len(), MAX_NAMES);
        assert!(of("python", &format!("{} = 1", "x".repeat(101))).is_empty());
    }
}
