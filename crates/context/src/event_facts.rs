//! Facts that rules extract from an event: the command, exit code, files, test counts and error lines. They are
//! extracted once, when the entry is appended, and used for stubs and extracts.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use serde_json::Value;

use crate::citations::citations;
use crate::entry::{Call, CallResult};
use crate::tokens::truncate;
use crate::tool_effect::{ToolEffect, tool_effect};

/// Arguments that best describe a call, most descriptive first.
const DESCRIPTIVE_ARGUMENTS: [&str; 12] = [
    "command",
    "cmd",
    "path",
    "file",
    "file_path",
    "filename",
    "query",
    "pattern",
    "url",
    "code",
    "name",
    "text",
];
/// Names that MCP servers and other programs give to tools that only read, and to tools that change the files that their
/// arguments name.
const FOREIGN_READING_TOOLS: [&str; 8] = ["view", "cat", "open", "ls", "list_dir", "grep", "glob", "find"];
const FOREIGN_WRITING_TOOLS: [&str; 5] =
    ["create_file", "str_replace", "str_replace_editor", "write", "edit"];
/// Arguments that hold a file path.
const PATHS: [&str; 6] = ["path", "file", "file_path", "filename", "source", "target"];

const LABEL_BYTES: usize = 80;
const LINE_BYTES: usize = 160;
const MAX_LINES: usize = 3;
const MAX_FILES: usize = 8;

/// Longer lines are data, not messages.
const LONGEST_LINE: usize = 2_000;

/// Patterns of lines with test counts.
const TEST_COUNT_PATTERNS: [&str; 5] = [" passed", " failed", " passing", "test result:", "Ran "];
/// Patterns of error lines.
const ERRORS: [&str; 12] = [
    "error:",
    "error[",
    "Error:",
    "ERROR",
    "fatal:",
    "panicked at",
    "Traceback",
    "FAILED",
    "Exception",
    "No such file",
    "not found",
    "denied",
];

/// All patterns in one automaton. Building it from constants cannot fail; without it, no pattern would match.
static PATTERNS: LazyLock<Patterns> =
    LazyLock::new(|| Patterns(AhoCorasick::new(TEST_COUNT_PATTERNS.iter().chain(&ERRORS)).ok()));

struct Patterns(Option<AhoCorasick>);

impl Patterns {
    fn find_iter<'a>(&'a self, text: &'a str) -> impl Iterator<Item = aho_corasick::Match> + 'a {
        self.0.iter().flat_map(move |automaton| automaton.find_iter(text))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// What was asked, written or run, in a few words.
    pub(crate) label: String,
    /// Files that the call has changed, by its arguments.
    pub(crate) written: Vec<String>,
    /// Whether the call only read something.
    pub(crate) is_read: bool,
    /// Lines with test counts.
    pub(crate) test_counts: Vec<String>,
    pub(crate) errors: Vec<String>,
    /// Number of lines of the output.
    pub(crate) lines: usize,
}

/// A short description of a call: the tool and its most descriptive argument.
pub(crate) fn label(call: &Call) -> String {
    match most_descriptive(&call.arguments) {
        Some(argument) => {
            let argument = short(argument, LABEL_BYTES);
            // Shell commands need no tool name; calls of other tools do.
            if is_shell(&call.name) { argument } else { format!("{} {argument}", short(&call.name, 40)) }
        }
        None => short(&call.name, 40),
    }
}

fn is_shell(name: &str) -> bool {
    matches!(name, "shell" | "bash" | "exec" | "run" | "terminal" | "execute_bash")
}

fn most_descriptive(arguments: &Value) -> Option<&str> {
    let object = arguments.as_object()?;
    let named = DESCRIPTIVE_ARGUMENTS.iter().find_map(|key| object.get(*key).and_then(Value::as_str));
    named.or_else(|| object.values().find_map(Value::as_str)).filter(|text| !text.trim().is_empty())
}

/// Facts about a call, for its result.
pub(crate) fn of_call(call: &Call) -> Facts {
    let name = call.name.as_str();
    let (is_read, is_written) = match tool_effect(name) {
        Some(effect) => {
            (effect == ToolEffect::Reads, matches!(effect, ToolEffect::LogsWrites | ToolEffect::Writes))
        }
        None => (FOREIGN_READING_TOOLS.contains(&name), FOREIGN_WRITING_TOOLS.contains(&name)),
    };
    let written = if is_written { paths_of(&call.arguments) } else { Vec::new() };
    Facts { label: label(call), written, is_read, ..Facts::default() }
}

/// The files that the arguments name, also those in the headers of a patch.
fn paths_of(arguments: &Value) -> Vec<String> {
    let named = PATHS.iter().filter_map(|key| arguments.get(*key).and_then(Value::as_str));
    let patch = arguments.get("patch").and_then(Value::as_str).unwrap_or_default();
    let patched =
        patch.lines().filter_map(|line| line.strip_prefix("+++ ").or_else(|| line.strip_prefix("--- ")));
    let patched = patched.map(|path| path.split('\t').next().unwrap_or(path).trim());
    let patched = patched
        .filter(|path| *path != "/dev/null")
        .map(|path| path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path));
    let mut files: Vec<String> = Vec::new();
    for path in named.chain(patched).map(|path| short(path, LINE_BYTES)) {
        if !path.is_empty() && !files.contains(&path) && files.len() < MAX_FILES {
            files.push(path);
        }
    }
    files
}

/// Facts about an answer.
pub(crate) fn of_answer(text: &str) -> Facts {
    of_text(text)
}

/// Facts about an output. `call` has those of its call.
pub(crate) fn of_result(call: Facts, result: &CallResult) -> Facts {
    let text = result.text.as_str();
    let (mut test_counts, mut errors) = (Vec::new(), Vec::new());
    let mut done = 0;
    for found in PATTERNS.find_iter(text) {
        if found.start() < done {
            continue;
        }
        let start = text[..found.start()].rfind('\n').map_or(0, |at| at + 1);
        let end = text[found.end()..].find('\n').map_or(text.len(), |at| found.end() + at);
        done = end;
        let line = &text[start..end];
        if line.len() > LONGEST_LINE {
            continue;
        }
        if is_test_count(line) {
            // Keep the last test counts and the first errors.
            if test_counts.len() == MAX_LINES {
                test_counts.remove(0);
            }
            test_counts.push(short(line, LINE_BYTES));
        } else if errors.len() < MAX_LINES && is_error(line) {
            let line = short(line, LINE_BYTES);
            if !errors.contains(&line) {
                errors.push(line);
            }
        }
    }
    let lines = match &result.blob {
        Some(blob) => usize::try_from(blob.lines).unwrap_or(usize::MAX),
        None => crate::output_cap::count_lines(text),
    };
    // A call that failed has changed nothing.
    let written = if result.is_error { Vec::new() } else { call.written };
    Facts { written, test_counts, errors, lines, ..call }
}

/// Facts about a message, plan or note: how it begins.
pub(crate) fn of_text(text: &str) -> Facts {
    Facts { label: first_line(text), lines: crate::output_cap::count_lines(text), ..Facts::default() }
}

fn is_test_count(line: &str) -> bool {
    let is_counted = line.bytes().any(|byte| byte.is_ascii_digit());
    is_counted && TEST_COUNT_PATTERNS.iter().any(|pattern| line.contains(pattern))
}

/// Whether a line has test counts or an error.
pub(crate) fn is_notable(line: &str) -> bool {
    is_test_count(line) || is_error(line)
}

fn is_error(line: &str) -> bool {
    ERRORS.iter().any(|pattern| line.contains(pattern))
}

/// The first non-empty line, shortened.
pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
    short(line, LINE_BYTES)
}

/// At most `most` bytes of the first line of a text, with an ellipsis if it is cut. Brackets are replaced only if they
/// would be read as a citation.
pub(crate) fn short(text: &str, most: usize) -> String {
    let text = text.trim();
    let line = text.lines().next().unwrap_or("").trim_end();
    let mut kept = line[..truncate::break_before(line, truncate::floor(line, most))].trim_end().to_owned();
    if !citations(&kept).is_empty() {
        kept = kept.replace('[', "(").replace(']', ")");
    }
    if kept.len() < text.len() {
        kept.push('…');
    }
    kept
}
