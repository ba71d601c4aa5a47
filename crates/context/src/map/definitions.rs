//! Extracts the definitions of a source file. Rust, Python, TypeScript, JavaScript and Go are parsed with
//! tree-sitter; other languages, and all of them without the feature `map`, are matched by keywords at the start of
//! a line.

/// The maximum length of a signature.
const SIGNATURE_BYTES: usize = 120;
/// The maximum number of definitions per file.
const MOST: usize = 2_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub name: String,
    /// Line number, from 1.
    pub line: usize,
    /// The first line of the definition, without its body.
    pub signature: String,
}

/// File extensions of source code.
const CODE_EXTENSIONS: [&str; 24] = [
    "rs", "py", "ts", "tsx", "mts", "cts", "js", "jsx", "mjs", "cjs", "go", "java", "kt", "c", "h", "cc",
    "cpp", "hpp", "cs", "rb", "php", "swift", "scala", "ex",
];

fn extension(path: &str) -> &str {
    path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, extension)| extension)
}

/// Whether the file name has an extension of source code.
pub fn is_code(path: &str) -> bool {
    CODE_EXTENSIONS.contains(&extension(path))
}

/// The definitions of a file, in line order.
pub fn definitions(path: &str, text: &str) -> Vec<Definition> {
    #[cfg(feature = "map")]
    if let Some(found) = syntax::definitions(extension(path), text) {
        return found;
    }
    if is_code(path) { by_words(text) } else { Vec::new() }
}

/// The line of the first syntax error, from 1. `None` if there is none, or no grammar for the language here.
pub fn first_syntax_error(path: &str, text: &str) -> Option<usize> {
    #[cfg(feature = "map")]
    return syntax::first_error(extension(path), text);
    #[cfg(not(feature = "map"))]
    None
}

/// The first line of a definition, without its body.
fn signature(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    let line = line.trim_end_matches(['{', ':']).trim_end();
    // A body on the same line is not part of the signature.
    let line = line.split_once(" { ").map_or(line, |(before, _)| before);
    crate::event_facts::short(line, SIGNATURE_BYTES)
}

const STARTS: [&str; 14] = [
    "fn ",
    "struct ",
    "enum ",
    "trait ",
    "class ",
    "interface ",
    "def ",
    "func ",
    "function ",
    "type ",
    "module ",
    "namespace ",
    "object ",
    "defmodule ",
];
const BEFORE: [&str; 13] = [
    "pub ",
    "pub(crate) ",
    "export ",
    "default ",
    "async ",
    "public ",
    "private ",
    "protected ",
    "static ",
    "abstract ",
    "final ",
    "const ",
    "unsafe ",
];

fn by_words(text: &str) -> Vec<Definition> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(after) = BEFORE.iter().find_map(|word| rest.strip_prefix(word)) {
            rest = after.trim_start();
        }
        let Some(after) = STARTS.iter().find_map(|word| rest.strip_prefix(word)) else { continue };
        let name: String =
            after.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !name.is_empty() && found.len() < MOST {
            found.push(Definition { name, line: at + 1, signature: signature(line) });
        }
    }
    found
}

#[cfg(feature = "map")]
mod syntax {
    use tree_sitter::{Language, Node, Parser};

    use super::{Definition, MOST, signature};

    /// Syntax nodes that define something and have a child called `name`.
    const RUST: [&str; 9] = [
        "function_item",
        "struct_item",
        "enum_item",
        "union_item",
        "trait_item",
        "type_item",
        "mod_item",
        "const_item",
        "macro_definition",
    ];
    const PYTHON: [&str; 2] = ["function_definition", "class_definition"];
    const SCRIPT: [&str; 9] = [
        "function_declaration",
        "generator_function_declaration",
        "class_declaration",
        "abstract_class_declaration",
        "method_definition",
        "interface_declaration",
        "type_alias_declaration",
        "enum_declaration",
        "function_signature",
    ];
    const GO: [&str; 3] = ["function_declaration", "method_declaration", "type_spec"];

    fn language(extension: &str) -> Option<(Language, &'static [&'static str])> {
        Some(match extension {
            "rs" => (tree_sitter_rust::LANGUAGE.into(), &RUST),
            "py" => (tree_sitter_python::LANGUAGE.into(), &PYTHON),
            "ts" | "mts" | "cts" => (tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(), &SCRIPT),
            "tsx" => (tree_sitter_typescript::LANGUAGE_TSX.into(), &SCRIPT),
            "js" | "jsx" | "mjs" | "cjs" => (tree_sitter_javascript::LANGUAGE.into(), &SCRIPT),
            "go" => (tree_sitter_go::LANGUAGE.into(), &GO),
            _ => return None,
        })
    }

    /// `None` for a language without a grammar here.
    pub(super) fn definitions(extension: &str, text: &str) -> Option<Vec<Definition>> {
        let (language, kinds) = language(extension)?;
        let mut parser = Parser::new();
        parser.set_language(&language).ok()?;
        let tree = parser.parse(text, None)?;
        let mut found = Vec::new();
        let mut cursor = tree.walk();
        // Iterative, so that deeply nested input cannot overflow the stack.
        loop {
            take(cursor.node(), kinds, text, &mut found);
            if found.len() >= MOST {
                break;
            }
            if cursor.goto_first_child() {
                continue;
            }
            while !cursor.goto_next_sibling() {
                if !cursor.goto_parent() {
                    return Some(found);
                }
            }
        }
        Some(found)
    }

    pub(super) fn first_error(extension: &str, text: &str) -> Option<usize> {
        let (language, _) = language(extension)?;
        let mut parser = Parser::new();
        parser.set_language(&language).ok()?;
        let tree = parser.parse(text, None)?;
        let mut cursor = tree.walk();
        // Down to the first node that is an error itself. Iterative, like above.
        loop {
            let node = cursor.node();
            if node.is_error() || node.is_missing() {
                return Some(node.start_position().row + 1);
            }
            if node.has_error() && cursor.goto_first_child() {
                continue;
            }
            while !cursor.goto_next_sibling() {
                if !cursor.goto_parent() {
                    return None;
                }
            }
        }
    }

    fn take(node: Node<'_>, kinds: &[&str], text: &str, found: &mut Vec<Definition>) {
        let is_constant_function = node.kind() == "variable_declarator"
            && node.child_by_field_name("value").is_some_and(|value| value.kind() == "arrow_function");
        if !kinds.contains(&node.kind()) && !is_constant_function {
            return;
        }
        let name = node.child_by_field_name("name").and_then(|name| text.get(name.byte_range()));
        let Some(name) = name.filter(|name| !name.is_empty() && name.len() < 200) else { return };
        // In Go a type's node begins after its keyword, in TypeScript a constant function's node begins after
        // `const`, so the signature is the whole line.
        let start = text[..node.start_byte()].rfind('\n').map_or(0, |at| at + 1);
        let line = node.start_position().row + 1;
        found.push(Definition {
            name: name.to_owned(),
            line,
            signature: signature(&text[start..node.end_byte()]),
        });
    }
}
