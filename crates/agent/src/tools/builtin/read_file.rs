//! `read_file`: shows a file or a range of its lines. A very large file is shown as an outline that says where to
//! look.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use context::outline::Outline;
use context::output_cap::Limits;
use context::recall::Lines;
use protocol::{FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{file_error, file_path};
use crate::event::ToolEnd;
use crate::host::{Effect, Host, Stopped};
use crate::tools::{CallContext, Tool, ToolFlow};

/// The size of one read from the sandbox, and the most that is read of a file.
const PIECE_BYTES: u64 = 8 * 1024 * 1024;
const MAX_READ_BYTES: u64 = 64 * 1024 * 1024;
/// A file with more lines or bytes than this share of the output budget is shown as an outline, unless a range is
/// requested. The share is below the limit for any output, so nothing is cut off there.
const LINE_TENTHS: usize = 4;
const BYTE_TENTHS: usize = 8;
/// The maximum number of lines of one range.
const MAX_RANGE: usize = 1500;
/// The maximum size of an outline in tokens; smaller windows get less.
const OUTLINE_TOKENS: u32 = 2_500;
const OUTLINE_SHARE: u32 = 10;
const HEAD_LINES: usize = 20;
/// Longer lines are cut, in characters.
const LONGEST_LINE: usize = 2000;

pub(super) struct ReadFile;

/// What to read.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The file, in /workspace.
    #[serde(alias = "file", alias = "file_path")]
    path: String,
    /// First line to show, from 1.
    #[serde(default)]
    from_line: Option<usize>,
    /// Last line to show.
    #[serde(default)]
    to_line: Option<usize>,
    /// An outline of these lines instead of the lines: definitions, headings, telling lines, part by part.
    #[serde(default)]
    outline: bool,
}

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    const DESCRIPTION: &'static str = "Shows a text file with line numbers (the numbers are not part of the file). \
        Give `from_line` and `to_line` for a part. A very long file is shown as an outline; `outline` with a range of lines \
        shows more of that part.";
    type Input = Input;

    fn effect(&self) -> Effect {
        Effect::ReadOnly
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let path = match file_path(&input.path) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("read_file: {problem}")).into()),
        };
        let (content, size) = match read(call.host, &path).await? {
            Ok(read) => read,
            Err(end) => return Ok(end.into()),
        };
        let budget = call.conversation.engine().policy().budget;
        let shown = tokio::task::spawn_blocking(move || show(&path, &content, size, &input, budget)).await;
        Ok(shown.unwrap_or_else(|_| ToolEnd::failed("read_file: the file cannot be shown")).into())
    }
}

/// Reads a file in pieces. Returns its text and total size.
async fn read(host: &dyn Host, path: &str) -> Result<Result<(String, u64), ToolEnd>, Stopped> {
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let offset = bytes.len() as u64;
        let operation = FileOperation::Read { path: path.to_owned(), offset, limit_bytes: PIECE_BYTES };
        let (piece, size) = match host.file(None, operation).await? {
            // A piece may end in the middle of a character, and is then not valid UTF-8.
            Ok(FileReply::Content { content, base64: true, size, .. })
                if offset > 0 || size > PIECE_BYTES =>
            {
                (STANDARD.decode(content).unwrap_or_default(), size)
            }
            Ok(FileReply::Content { base64: true, size, .. }) => return Ok(Err(not_text(path, size))),
            Ok(FileReply::Content { content, size, .. }) => (content.into_bytes(), size),
            Ok(_) => return Ok(Err(ToolEnd::failed("read_file: the sandbox sent no content"))),
            Err(error) => return Ok(Err(file_error("read_file", &error))),
        };
        let is_end = piece.is_empty() || offset + piece.len() as u64 >= size.min(MAX_READ_BYTES);
        bytes.extend(piece);
        if !is_end {
            continue;
        }
        let is_cut = (bytes.len() as u64) < size;
        return Ok(match String::from_utf8(bytes) {
            Ok(text) => Ok((text, size)),
            // If reading stopped in the middle of a character, drop the incomplete part.
            Err(error) if is_cut && error.utf8_error().error_len().is_none() => {
                let end = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(&error.as_bytes()[..end]).into_owned();
                Ok((text, size))
            }
            Err(_) => Err(not_text(path, size)),
        });
    }
}

fn not_text(path: &str, size: u64) -> ToolEnd {
    ToolEnd::failed(format!(
        "read_file: {path} is not text ({size} bytes); use `shell` with a program that knows the format"
    ))
}

fn show(path: &str, content: &str, size: u64, input: &Input, budget: u32) -> ToolEnd {
    let outline_tokens = (budget / OUTLINE_SHARE).min(OUTLINE_TOKENS);
    let limits = Limits::for_budget(budget);
    let lines: Vec<&str> = content.lines().collect();
    if lines.is_empty() {
        return ToolEnd::done(format!("{path} is empty"));
    }
    let (from, to) = (input.from_line, input.to_line);
    let is_cut = size > content.len() as u64;
    let first = from.unwrap_or(1).max(1);
    if first > lines.len() {
        return ToolEnd::failed(format!("read_file: {path} has {} lines; from_line is {first}", lines.len()));
    }
    let (most_lines, most_bytes) = (limits.tenths(LINE_TENTHS).lines, limits.tenths(BYTE_TENTHS).bytes);
    let is_giant = lines.len() > most_lines || content.len() > most_bytes;
    if input.outline || (from.is_none() && to.is_none() && is_giant) {
        let range = Lines { first, last: to.unwrap_or(lines.len()).max(first) };
        return ToolEnd::done(outline(path, content, &lines, range, outline_tokens, is_cut));
    }
    let last = to.unwrap_or(lines.len()).clamp(first, lines.len()).min(first + MAX_RANGE - 1);
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate().take(last).skip(first - 1) {
        number(&mut text, index + 1, line);
    }
    if first > 1 || last < lines.len() || is_cut {
        let more = if is_cut { ", and more that was not read" } else { "" };
        let _ = write!(text, "[lines {first}-{last} of {}{more}]", lines.len());
    }
    ToolEnd::done(text)
}

fn number(text: &mut String, number: usize, line: &str) {
    match line.char_indices().nth(LONGEST_LINE) {
        None => {
            let _ = writeln!(text, "{number:>5}  {line}");
        }
        Some((end, _)) => {
            let _ = writeln!(text, "{number:>5}  {} [line of {} bytes cut]", &line[..end], line.len());
        }
    }
}

/// The first lines, then an outline of each part, as far as there is room.
fn outline(path: &str, content: &str, lines: &[&str], range: Lines, most: u32, is_cut: bool) -> String {
    let mut text = String::new();
    if range.first == 1 {
        let _ = writeln!(text, "{path} begins:");
        for (index, line) in lines.iter().take(HEAD_LINES).enumerate() {
            let short: String = line.chars().take(160).collect();
            number(&mut text, index + 1, &short);
        }
    }
    text += &Outline::of(path, content).render_range(range, most);
    if is_cut {
        text += "[only the first 64 MiB were read; use `shell` with sed or grep for what is behind]\n";
    }
    text += "[read lines with from_line and to_line; with `outline` a range is outlined in more detail; search_files \
             finds a place]";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str, content: &str, from: Option<usize>, to: Option<usize>, outline: bool) -> String {
        let input = Input { path: path.into(), from_line: from, to_line: to, outline };
        show(path, content, content.len() as u64, &input, 200_000).text
    }

    #[test]
    fn a_range_is_shown_with_its_numbers() {
        assert_eq!(shown("a", "one\ntwo\nthree\n", Some(2), Some(2), false), "    2  two\n[lines 2-2 of 3]");
        assert!(shown("a", "one\n", Some(9), None, false).contains("has 1 lines"));
        assert_eq!(shown("a", "one\n", None, None, false), "    1  one\n");
    }

    #[test]
    fn large_file_is_shown_as_outline_then_range_then_lines() {
        let mut content = String::new();
        for part in 0..3000 {
            let _ = write!(content, "def part_{part}():\n    return {part}\n\n\n");
        }
        let whole = shown("big.py", &content, None, None, false);
        assert!(whole.contains("12000 lines") && whole.contains("from_line"), "{whole}");
        assert!(whole.len() < 14_000 && !whole.contains("def part_2017"), "{whole}");
        let range = shown("big.py", &content, Some(8001), Some(8400), true);
        assert!(range.contains("lines 8001-8400") && range.contains("8001: def part_2000()"), "{range}");
        let lines = shown("big.py", &content, Some(8069), Some(8069), false);
        assert_eq!(lines, " 8069  def part_2017():\n[lines 8069-8069 of 12000]");
    }
}
