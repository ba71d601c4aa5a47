//! The repository's own files for the rules in `tests/tidy.rs`: which files there are, and which parts are code.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

#[derive(Debug, Clone)]
pub struct RustFile {
    /// Path relative to the repository root.
    pub path: PathBuf,
    /// The file content.
    pub text: String,
    /// The same lines with comments, string literals and character literals replaced by spaces.
    pub code: String,
}

impl RustFile {
    fn new(path: PathBuf, text: String) -> Self {
        let code = blank_out_all_but_code(&text);
        Self { path, text, code }
    }

    /// Whether the whole file is a test.
    #[must_use]
    pub fn is_test(&self) -> bool {
        self.path.starts_with("e2e")
            || self.path.components().any(|part| part.as_os_str() == "tests")
            || self.path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("tests"))
    }

    /// Whether the file belongs to the product, that is, lies in `crates/*/src`.
    #[must_use]
    pub fn is_product(&self) -> bool {
        self.path.starts_with("crates") && self.path.iter().nth(2).is_some_and(|part| part == "src")
    }

    /// The code without `#[cfg(test)]` modules.
    #[must_use]
    pub fn code_without_tests(&self) -> String {
        let mut rest = self.code.as_str();
        let mut kept = String::new();
        while let Some(start) = rest.find("#[cfg(test)]") {
            let after = &rest[start + "#[cfg(test)]".len()..];
            kept.push_str(&rest[..start]);
            if !after.trim_start().starts_with("mod ") {
                rest = after;
                continue;
            }
            rest = after_braces(after);
        }
        kept.push_str(rest);
        kept
    }

    /// The number of lines outside test modules, including comments and blank lines.
    #[must_use]
    pub fn lines_without_tests(&self) -> usize {
        let tests = self.code.lines().count() - self.code_without_tests().lines().count();
        self.text.lines().count() - tests
    }
}

/// The code after the first pair of braces, or after the first `;` if that comes earlier.
fn after_braces(code: &str) -> &str {
    let mut depth = 0_usize;
    for (index, character) in code.char_indices() {
        match character {
            ';' if depth == 0 => return &code[index + 1..],
            '{' => depth += 1,
            '}' if depth <= 1 => return &code[index + 1..],
            '}' => depth -= 1,
            _ => {}
        }
    }
    ""
}

/// The repository root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Every tracked or untracked but not ignored file, relative to the repository root.
pub fn tracked_files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("running git; install it with `apt-get install git`")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut files: Vec<PathBuf> =
        list.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    ensure!(!files.is_empty(), "git knows no files below {}", root().display());
    Ok(files)
}

/// Every tracked or untracked but not ignored Rust file.
pub fn rust_files() -> Result<Vec<RustFile>> {
    tracked_files()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let text =
                std::fs::read_to_string(root().join(&path)).with_context(|| path.display().to_string())?;
            Ok(RustFile::new(path, text))
        })
        .collect()
}

/// Whether [`cargo_metadata`] includes transitive dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only the members of the workspace.
    Members,
    /// All dependencies.
    All,
}

/// Runs `cargo metadata --locked`, which fails if `Cargo.lock` is not up to date.
pub fn cargo_metadata(depth: Depth) -> Result<Value> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--locked", "--format-version", "1"]).current_dir(root());
    if depth == Depth::Members {
        command.arg("--no-deps");
    }
    let output = command.output().context("running cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("reading what cargo metadata printed")
}

/// Replaces everything that is not code with spaces and keeps the line breaks.
fn blank_out_all_but_code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(length) = text_literal(rest, &code) {
            length
        } else if let Some(length) = character_literal(rest) {
            length
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[length..];
    }
    code
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut index = 0;
    while index < text.len() {
        if text[index..].starts_with("/*") {
            depth += 1;
            index += 2;
        } else if text[index..].starts_with("*/") {
            depth -= 1;
            index += 2;
            if depth == 0 {
                return index;
            }
        } else {
            index += text[index..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string literal at the start of `text`: plain, byte, C or raw.
fn text_literal(text: &str, before: &str) -> Option<usize> {
    let in_a_word = before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
    let prefix = if in_a_word {
        0
    } else {
        text.find(|c| !matches!(c, 'b' | 'c' | 'r')).filter(|length| *length <= 2)?
    };
    let raw = text[..prefix].contains('r');
    let rest = &text[prefix..];
    let hashes = if raw { rest.find(|c| c != '#')? } else { 0 };
    if !rest[hashes..].starts_with('"') {
        return None;
    }
    let start = prefix + hashes + 1;
    if raw {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()));
    }
    let mut escaped = false;
    for (index, character) in text[start..].char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(start + index + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// The length of the character literal at the start of `text`; `None` for a lifetime.
fn character_literal(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let mut characters = inner.char_indices();
    let (_, first) = characters.next()?;
    if first == '\\' {
        let (skip, _) = characters.next()?;
        let after = skip + inner[skip..].chars().next()?.len_utf8();
        return inner[after..].find('\'').map(|end| 1 + after + end + 1);
    }
    let (end, quote) = characters.next()?;
    (quote == '\'').then_some(1 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> RustFile {
        RustFile::new("crates/x/src/y.rs".into(), text.into())
    }

    #[test]
    fn comments_strings_and_char_literals_are_not_code() {
        let code =
            file("a /* b /* c */ d */ e // f\n\"g \\\" h\" i r#\"j \" k\"# l b\"m\" '\\'' n '\"' o").code;
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "e", "i", "l", "n", "o"]);
    }

    #[test]
    fn lifetimes_and_identifiers_that_end_like_prefixes_stay_code() {
        assert_eq!(
            file("fn f<'a>(x: &'a str) -> &'static str { var }").code.trim(),
            "fn f<'a>(x: &'a str) -> &'static str { var }"
        );
    }

    #[test]
    fn test_modules_are_removed_wherever_they_are() {
        let text = "fn one() {}\n#[cfg(test)]\nmod tests {\n    fn two() { {} }\n}\nfn three() {}\n";
        let code = file(text).code_without_tests();
        assert!(code.contains("one") && code.contains("three") && !code.contains("two"), "{code}");
        assert_eq!(file(text).lines_without_tests(), 3);
    }
}
