//! Finds the top-level names of Python code.

use super::{MAX_NESTING, Names, leading_name, split_outside};

/// Keywords of blocks whose body is also at the top level.
const BLOCKS: [&str; 8] = ["if", "elif", "else", "try", "finally", "while", "for", "with"];

/// One statement: its indentation, and its text without comments and strings.
struct Line {
    indent: usize,
    text: String,
}

pub(super) fn read(code: &str, names: &mut Names) {
    // The body of a function or class is not at the top level.
    let mut inside: Option<usize> = None;
    for line in lines(code) {
        if inside.is_some_and(|indent| line.indent > indent) {
            continue;
        }
        inside = None;
        for statement in split_outside(&line.text, ';') {
            let statement = statement.trim();
            let bare = statement.strip_prefix("async ").map_or(statement, str::trim_start);
            if let Some(rest) = after(bare, "def").or_else(|| after(bare, "class")) {
                names.add(leading_name(rest));
                inside = Some(line.indent);
                break;
            }
            read_statement(bare, names);
        }
    }
}

fn read_statement(statement: &str, names: &mut Names) {
    if let Some(rest) = after(statement, "import") {
        for part in rest.split(',') {
            names.add(part.split_once(" as ").map_or_else(|| leading_name(part), |(_, name)| name.trim()));
        }
    } else if let Some(rest) = after(statement, "from") {
        let imported = rest.split_once(" import ").map_or("", |(_, imported)| imported);
        for part in imported.trim().trim_matches(['(', ')']).split(',') {
            names.add(part.split_once(" as ").map_or(part, |(_, name)| name).trim());
        }
    } else if let Some(rest) = after(statement, "del") {
        rest.split(',').for_each(|name| names.remove(name.trim()));
    } else if BLOCKS.contains(&leading_name(statement)) {
        read_block(statement, names);
    } else {
        read_assignment(statement, names);
    }
}

/// Reads the head of a block and the statement after its colon.
fn read_block(statement: &str, names: &mut Names) {
    let mut parts = split_outside(statement, ':');
    let body = if parts.len() > 1 { parts.pop() } else { None };
    let head = parts.join(":");
    if let Some(rest) = after(&head, "for") {
        add_targets(rest.split_once(" in ").map_or("", |(target, _)| target), 0, names);
    } else if let Some(rest) = after(&head, "with") {
        for part in rest.split(" as ").skip(1) {
            add_targets(split_outside(part, ',').first().unwrap_or(&""), 0, names);
        }
    }
    if let Some(body) = body {
        read_statement(body.trim(), names);
    }
}

fn read_assignment(statement: &str, names: &mut Names) {
    for pair in split_outside(statement, '=').windows(2) {
        // `==` has nothing between its signs; `<=`, `+=` and `:=` have another sign before the `=`.
        let is_other = pair.iter().any(|part| part.is_empty())
            || pair[0].ends_with(['<', '>', '!', '+', '-', '*', '/', '%', '&', '|', '^', '@', ':']);
        if is_other {
            return;
        }
        add_targets(split_outside(pair[0], ':').first().unwrap_or(&""), 0, names);
    }
}

/// `a`, `a, b`, `(a, *b)`, `[a, b]`. Attributes and items define no new name.
fn add_targets(target: &str, depth: usize, names: &mut Names) {
    if depth > MAX_NESTING {
        return;
    }
    let target = target.trim();
    let bare = target.strip_prefix(['(', '[']).and_then(|rest| rest.strip_suffix([')', ']']));
    match bare {
        Some(inner) => add_targets(inner, depth + 1, names),
        None => match split_outside(target, ',').as_slice() {
            [only] => names.add(only.trim().trim_start_matches('*').trim()),
            parts => parts.iter().for_each(|part| add_targets(part, depth + 1, names)),
        },
    }
}

/// The text after a keyword.
fn after<'a>(statement: &'a str, keyword: &str) -> Option<&'a str> {
    let rest = statement.strip_prefix(keyword)?;
    rest.starts_with(char::is_whitespace).then(|| rest.trim_start())
}

/// Splits code into statements: joins lines continued by brackets or a backslash, and drops strings and comments.
fn lines(code: &str) -> Vec<Line> {
    let mut found = Vec::new();
    let mut line = Line { indent: 0, text: String::new() };
    let (mut depth, mut is_at_start, mut rest) = (0usize, true, code);
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match letter {
            '\n' if depth == 0 => {
                found.push(std::mem::replace(&mut line, Line { indent: 0, text: String::new() }));
                is_at_start = true;
                continue;
            }
            ' ' | '\t' if is_at_start => {
                line.indent += 1;
                continue;
            }
            '#' => rest = rest.find('\n').map_or("", |end| &rest[end..]),
            '\'' | '"' => {
                rest = after_string(rest, letter);
                line.text.push_str("''");
            }
            '\\' => {
                rest = rest.strip_prefix('\n').unwrap_or(rest);
                line.text.push(' ');
            }
            '\n' => line.text.push(' '),
            _ => {
                match letter {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                line.text.push(letter);
            }
        }
        is_at_start = false;
    }
    found.push(line);
    found.retain(|line| !line.text.trim().is_empty());
    found
}

/// The text after a string whose opening quote has been read.
fn after_string(text: &str, quote: char) -> &str {
    let two = String::from_iter([quote, quote]);
    // Three quotes start a multi-line string; two alone are an empty string.
    let (mut rest, is_triple) = text.strip_prefix(&two).map_or((text, false), |rest| (rest, true));
    let end = if is_triple { format!("{two}{quote}") } else { quote.to_string() };
    loop {
        if let Some(after) = rest.strip_prefix(&end) {
            return after;
        }
        match rest.chars().next() {
            None => return "",
            // An unclosed string ends with its line.
            Some('\n') if !is_triple => return rest,
            Some('\\') => {
                rest = &rest[1..];
                rest = rest.chars().next().map_or("", |escaped| &rest[escaped.len_utf8()..]);
            }
            Some(letter) => rest = &rest[letter.len_utf8()..],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> String {
        let mut names = Names::default();
        read(code, &mut names);
        names.into_list().join(" ")
    }

    #[test]
    fn every_way_to_name_something_is_seen() {
        for (code, expected) in [
            ("x = 1", "x"),
            ("x: int = 1; y = z = 2", "x y z"),
            ("a, (b, *c) = f()", "a b c"),
            ("[a, b] = 1, 2", "a b"),
            ("import os.path, numpy as np\nfrom m import (a, b as c)", "a c np os"),
            ("def f(a, b=1):\n    inner = 1\n    return inner\nasync def g(): pass", "f g"),
            ("class C:\n    field = 1\nafter = 2", "C after"),
            ("for i, j in pairs:\n    last = i", "i j last"),
            ("with open('a') as f, open('b') as g: text = f.read()", "f g text"),
            ("if ready: x = 1\nelse:\n  y = 2", "x y"),
            ("x = (1,\n     2)\ny = 1 + \\\n  2", "x y"),
            ("text = '''\nno = 1\n'''\n", "text"),
            ("x = 'a # b'  # c = 1", "x"),
            ("x = 1\ndel x", ""),
            ("größe = 1", "größe"),
        ] {
            assert_eq!(of(code), expected, "{code}");
        }
    }

    #[test]
    fn what_names_nothing_adds_nothing() {
        for code in [
            "x == 1",
            "x += 1",
            "f(x=1)",
            "a.b = 1",
            "a['k'] = 1",
            "x <= y",
            "print('x = 1')",
            "# x = 1",
            "from m import *",
            "x: int",
            "",
        ] {
            assert_eq!(of(code), "", "{code}");
        }
    }
}
