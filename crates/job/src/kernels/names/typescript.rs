//! Finds the top-level names of TypeScript and JavaScript code.

use super::{MAX_NESTING, Names, leading_name, split_outside};

pub(super) fn read(code: &str, names: &mut Names) {
    let plain = without_strings(code);
    for statement in statements(&plain) {
        let mut words = statement.trim();
        while let Some(rest) =
            ["export", "default", "async", "abstract", "declare"].iter().find_map(|word| after(words, word))
        {
            words = rest;
        }
        if let Some(rest) = ["let", "const", "var"].iter().find_map(|word| after(words, word)) {
            let rest = after(rest, "enum").unwrap_or(rest);
            split_outside(rest, ',').into_iter().for_each(|declared| add_pattern(declared, 0, names));
        } else if let Some(rest) = ["function", "class", "enum"].iter().find_map(|word| after(words, word)) {
            names.add(leading_name(rest.trim_start_matches('*')));
        } else if let Some(rest) = after(words, "import") {
            add_imports(rest, names);
        }
    }
}

/// `a`, `a: T = 1`, `{ a, b: c, ...d }`, `[a, b]`.
fn add_pattern(pattern: &str, depth: usize, names: &mut Names) {
    if depth > MAX_NESTING {
        return;
    }
    let pattern = pattern.trim().trim_start_matches("...");
    let Some(inner) = pattern.strip_prefix(['{', '[']) else {
        let name = leading_name(pattern);
        // Not part of a type, such as `number` in `Map<string, number>`.
        let is_end = |rest: &str| rest.is_empty() || rest.starts_with(['=', ':', '!']);
        if is_end(pattern[name.len()..].trim_start()) {
            names.add(name);
        }
        return;
    };
    let is_object = pattern.starts_with('{');
    let end = split_outside(pattern, '=').first().map_or(0, |head| head.len());
    let head = &pattern[..end];
    let inner = head.rfind(['}', ']']).map_or(inner, |close| head.get(1..close).unwrap_or_default());
    for part in split_outside(inner, ',') {
        let renamed = split_outside(part, ':');
        match renamed.as_slice() {
            [_, target, ..] if is_object => add_pattern(target, depth + 1, names),
            _ => add_pattern(part, depth + 1, names),
        }
    }
}

/// `x from`, `* as ns from`, `{ a, b as c } from`, `x, { a } from`.
fn add_imports(clause: &str, names: &mut Names) {
    let Some((clause, _)) = clause.rsplit_once("from") else { return };
    let clause = after(clause, "type").unwrap_or(clause);
    for part in split_outside(clause, ',') {
        let part = part.trim();
        match part.strip_prefix('{') {
            Some(inner) => inner.trim_end_matches('}').split(',').for_each(|part| add_import(part, names)),
            None => add_import(part, names),
        }
    }
}

fn add_import(part: &str, names: &mut Names) {
    names.add(part.split_once(" as ").map_or(part, |(_, name)| name).trim());
}

fn after<'a>(text: &'a str, keyword: &str) -> Option<&'a str> {
    let rest = text.trim_start().strip_prefix(keyword)?;
    rest.starts_with(|letter: char| letter.is_whitespace() || "{[*".contains(letter))
        .then(|| rest.trim_start())
}

/// Splits at line ends and semicolons outside of brackets. A line that ends with a comma or `=` continues.
fn statements(code: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0usize, 0, Vec::new());
    for (index, letter) in code.char_indices() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '\n' if depth == 0 && code[start..index].trim_end().ends_with([',', '=']) => {}
            ';' | '\n' if depth == 0 => {
                found.push(&code[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    found.push(&code[start..]);
    found
}

/// The code without comments and with empty strings.
fn without_strings(code: &str) -> String {
    let mut plain = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match letter {
            '\'' | '"' | '`' => {
                rest = after_string(rest, letter);
                plain.push_str("\"\"");
            }
            '/' if rest.starts_with('/') => rest = rest.find('\n').map_or("", |end| &rest[end..]),
            '/' if rest.starts_with('*') => {
                rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
                plain.push(' ');
            }
            _ => plain.push(letter),
        }
    }
    plain
}

fn after_string(text: &str, quote: char) -> &str {
    let mut letters = text.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '\n' if quote != '`' => return &text[index..],
            _ if letter == quote => return &text[index + 1..],
            _ => {}
        }
    }
    ""
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
            ("let x = 1", "x"),
            ("const a: Map<string, number> = new Map(), b = 2;", "a b"),
            ("var { a, b: c, ...d } = f();", "a c d"),
            ("const [first, , last] = list", "first last"),
            ("function f(a) { let inner = 1 }\nasync function g() {}\nclass C { x = 1 }", "C f g"),
            ("import x, { a, b as c } from 'm'\nimport * as ns from \"n\"", "a c ns x"),
            ("export const y = `let z = ${1}`", "y"),
            ("let p: Point = { x: await Promise.resolve(20) };", "p"),
            ("let a = 1, // one\n  b = 2", "a b"),
            ("/* let no = 1 */ let yes = 'let no = 1'", "yes"),
        ] {
            assert_eq!(of(code), expected, "{code}");
        }
    }

    #[test]
    fn what_names_nothing_adds_nothing() {
        for code in [
            "x = 1",
            "f(1)",
            "interface P { x: number }",
            "// let x = 1",
            "if (a) { let b = 1 }",
            "letter = 2",
            "",
        ] {
            assert_eq!(of(code), "", "{code}");
        }
    }
}
