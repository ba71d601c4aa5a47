//! The repository map: the most referenced files and definitions, in a few thousand tokens. A pure function of the
//! given paths and texts.

mod definitions;
mod rank;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

pub use definitions::{Definition, definitions, first_syntax_error, is_code};

use crate::tokens;

/// Larger files are generated or are data.
const MAX_FILE_BYTES: usize = 512 * 1024;
/// The maximum number of files. The caller passes the most important ones first (those under version control).
const MAX_FILES: usize = 5_000;
/// The maximum number of definitions shown per file.
const MAX_DEFINITIONS_PER_FILE: usize = 24;

#[derive(Debug, Clone, Copy)]
pub struct SourceFile<'a> {
    /// Path within the workspace.
    pub path: &'a str,
    pub text: &'a str,
}

/// A file with its definitions and the names it mentions.
struct Parsed<'a> {
    path: &'a str,
    definitions: Vec<Definition>,
    /// How often each name occurs in the file.
    names: BTreeMap<&'a str, u32>,
}

/// Builds the map of a workspace. Names that occur in `focus` (the task) get more weight. `None` if there is no
/// code.
pub fn map(files: &[SourceFile<'_>], focus: &str, max_tokens: u32) -> Option<String> {
    let mut parsed: Vec<Parsed<'_>> = files
        .iter()
        .filter(|file| file.text.len() <= MAX_FILE_BYTES && definitions::is_code(file.path))
        .take(MAX_FILES)
        .map(|file| Parsed {
            path: file.path,
            definitions: definitions(file.path, file.text),
            names: names(file.text),
        })
        .collect();
    parsed.sort_by(|a, b| a.path.cmp(b.path));
    parsed.dedup_by(|a, b| a.path == b.path);
    if parsed.is_empty() {
        return None;
    }
    let focus = names(focus);
    let ranked = rank::rank(&parsed, &focus);
    Some(render(&parsed, &ranked, max_tokens))
}

/// The identifiers of a text and how often each occurs.
fn names(text: &str) -> BTreeMap<&str, u32> {
    let mut names = BTreeMap::new();
    for word in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
        let is_name = word.len() > 2 && !word.starts_with(|c: char| c.is_ascii_digit());
        if is_name {
            *names.entry(word).or_insert(0) += 1;
        }
    }
    names
}

/// Room for the last line, which says how many files are left out.
const END_TOKENS: u32 = 24;

/// Files by rank, each with its highest-ranked definitions in line order, until the token limit is reached.
fn render(parsed: &[Parsed<'_>], ranked: &rank::Ranked, max_tokens: u32) -> String {
    let mut order: Vec<usize> = (0..parsed.len()).collect();
    order.sort_by(|a, b| {
        ranked.files[*b].total_cmp(&ranked.files[*a]).then(parsed[*a].path.cmp(parsed[*b].path))
    });
    let mut text = format!("{} files with code; the most referred to first.\n", parsed.len());
    let mut left = max_tokens.saturating_sub(tokens::count(&text) + END_TOKENS);
    let mut shown = 0;
    for at in order {
        let block = block(&parsed[at], &ranked.definitions);
        let cost = tokens::count(&block);
        if cost > left {
            // A shorter block further down might fit, but file names are more useful.
            let line = format!("{}\n", parsed[at].path);
            let cost = tokens::count(&line);
            if cost > left {
                break;
            }
            left -= cost;
            text.push_str(&line);
        } else {
            left -= cost;
            text.push_str(&block);
        }
        shown += 1;
    }
    let left_out = match parsed.len() - shown {
        0 => String::new(),
        count => format!("; {count} more files with code are left out"),
    };
    // Writing to a string cannot fail.
    let _ = write!(text, "[end of the map{left_out}]");
    text
}

fn block(file: &Parsed<'_>, wanted: &HashMap<String, f64>) -> String {
    let score = |definition: &Definition| wanted.get(&definition.name).copied().unwrap_or(0.0);
    let mut best: Vec<&Definition> = file.definitions.iter().collect();
    best.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.line.cmp(&b.line)));
    best.truncate(MAX_DEFINITIONS_PER_FILE);
    best.sort_by_key(|definition| definition.line);
    let mut text = format!("{}\n", file.path);
    for definition in best {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}: {}", definition.line, definition.signature);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Vec<(String, String)> {
        let mut files = vec![
            ("src/engine.rs".into(), "/// Runs.\npub struct Engine { x: u32 }\nimpl Engine {\n    pub fn start_engine(&self) -> u32 { 1 }\n}\n".into()),
            ("src/unused.rs".into(), "fn nobody_calls_this() {}\n".into()),
            ("tool.py".into(), "class Loader:\n    def load_engine(self, path):\n        return path\n".into()),
            ("web/app.ts".into(), "export interface Props { a: number }\nexport function render_app(p: Props) {}\n".into()),
            ("web/page.tsx".into(), "export const Page = () => <div/>;\nclass Widget {\n  draw_widget() {}\n}\n".into()),
            ("main.go".into(), "package main\ntype Server struct{}\nfunc (s *Server) serve_all() {}\nfunc main() {}\n".into()),
            ("notes.md".into(), "fn not_code() {}".into()),
        ];
        for number in 0..5 {
            files.push((
                format!("src/user{number}.rs"),
                format!("fn user{number}() {{ Engine::start_engine(); }}\n"),
            ));
        }
        files
    }

    fn map_of(files: &[(String, String)], focus: &str, most: u32) -> String {
        let files: Vec<SourceFile<'_>> = files.iter().map(|(path, text)| SourceFile { path, text }).collect();
        map(&files, focus, most).unwrap()
    }

    #[test]
    fn most_referenced_files_come_first() {
        let text = map_of(&workspace(), "", 4_000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "src/engine.rs");
        assert!(lines[2..5].contains(&"  4: pub fn start_engine(&self) -> u32"), "{text}");
        for part in [
            "class Loader",
            "def load_engine(self, path)",
            "interface Props",
            "render_app",
            "type Server struct",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(
            text.contains("draw_widget") && text.contains("serve_all") && !text.contains("not_code"),
            "{text}"
        );
    }

    #[test]
    fn names_in_the_task_get_more_weight() {
        let text = map_of(&workspace(), "make nobody_calls_this faster", 4_000);
        assert_eq!(text.lines().nth(1), Some("src/unused.rs"));
        assert!(text.ends_with("\n[end of the map]"), "{text}");
    }

    #[test]
    fn map_fits_its_limit_and_ignores_file_order() {
        let mut files: Vec<(String, String)> = (0..500)
            .map(|n| (format!("src/m{n}.rs"), format!("pub fn function_{n}() {{ function_{}(); }}\n", n / 2)))
            .collect();
        let text = map_of(&files, "", 1_000);
        assert!(tokens::count(&text) <= 1_000);
        let shown = text.lines().filter(|line| line.starts_with("src/")).count();
        let left_out = format!("[end of the map; {} more files with code are left out]", 500 - shown);
        assert!(text.ends_with(&left_out), "{text}");
        files.reverse();
        assert_eq!(map_of(&files, "", 1_000), text);
        assert_eq!(map(&[], "", 1_000), None);
    }

    #[test]
    fn syntax_errors_are_found_by_line() {
        assert_eq!(first_syntax_error("a.py", "x = 1\ndef f(:\n    return 2\n"), Some(2));
        assert_eq!(first_syntax_error("a.rs", "fn a() {}\nfn b() {\n    let x = ;\n}\n"), Some(3));
        assert_eq!(first_syntax_error("a.rs", "fn a() {}\n"), None);
        assert_eq!(first_syntax_error("notes.md", "fn ((("), None);
    }

    #[test]
    fn broken_code_is_mapped_as_far_as_it_goes() {
        let text = "fn good() {}\nfn bad( {{{{ ]]\nstruct Also";
        assert!(definitions("a.rs", text).iter().any(|definition| definition.name == "good"));
        let deep = "(".repeat(100_000);
        assert!(definitions("deep.py", &deep).is_empty());
    }
}
