//! `read_file`: shows a file or a range of its lines. A very large file is shown as an outline that says where to
//! look, an image as an image.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use context::outline::Outline;
use context::output_cap::Limits;
use context::recall::Lines;
use context::truncate::first_characters;
use model::Image;
use protocol::{FileOperation, FileReply};
use schemars::JsonSchema;
use serde::Deserialize;

use super::search_files::SearchFiles;
use super::{file_error, file_path};
use crate::event::ToolEnd;
use crate::host::Stopped;
use crate::stored_image::{Format, Picture};
use crate::tools::{CallContext, Importance, Tool, ToolFlow, ToolRole};

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
const OUTLINE_LINE: usize = 160;
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
    #[serde(default, alias = "start_line", alias = "offset")]
    from_line: Option<usize>,
    /// Last line to show.
    #[serde(default, alias = "end_line")]
    to_line: Option<usize>,
    /// The number of lines, which other programs take instead of the last one.
    #[serde(default)]
    #[schemars(skip)]
    limit: Option<usize>,
    /// First and last line, as other programs take them; the last one may be -1 for the end.
    #[serde(default)]
    #[schemars(skip)]
    view_range: Option<(usize, i64)>,
    /// An outline of these lines instead of the lines: definitions, headings, telling lines, part by part.
    #[serde(default)]
    outline: bool,
}

impl Input {
    /// The same range, as first and last line.
    fn with_plain_range(mut self) -> Self {
        if let Some((first, last)) = self.view_range.take() {
            self.from_line = self.from_line.or(Some(first));
            self.to_line = self.to_line.or_else(|| usize::try_from(last).ok());
        }
        if let Some(limit) = self.limit.take() {
            let first = self.from_line.unwrap_or(1).max(1);
            self.to_line = self.to_line.or_else(|| Some(first.saturating_add(limit).saturating_sub(1)));
        }
        self
    }
}

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    const DESCRIPTION: &'static str = "Shows a text file with line numbers (the numbers are not part of the file). \
        Give `from_line` and `to_line` for a part. A very long file is shown as an outline; `outline` with a range of lines \
        shows more of that part. A picture is shown if you can see pictures.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        importance: Importance::Basic,
        other_names: &[
            "cat",
            "open",
            "openfile",
            "view",
            "viewfile",
            "read",
            "readfile",
            "getfile",
            "readmanyfiles",
        ],
        ..ToolRole::OPTIONAL
    };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let input = input.with_plain_range();
        let path = match file_path(&input.path) {
            Ok(path) => path,
            Err(problem) => return Ok(ToolEnd::failed(format!("read_file: {problem}")).into()),
        };
        let (content, size) = match read(&path, call).await? {
            Ok(Contents::Text(content, size)) => (content, size),
            Ok(Contents::Binary(bytes, size)) => {
                return Ok(show_binary(&path, bytes, size, call).await?.into());
            }
            Err(end) => return Ok(end.into()),
        };
        let budget = call.conversation.engine().policy().budget;
        let can_search = call.toolbox.find(SearchFiles::NAME).is_some();
        let work = move || show(&path, &content, size, &input, budget, can_search);
        let shown = tokio::task::spawn_blocking(work).await;
        Ok(shown.unwrap_or_else(|_| ToolEnd::failed("read_file: the file cannot be shown")).into())
    }
}

/// What a file holds, as far as it was read, and its total size.
enum Contents {
    Text(String, u64),
    Binary(Vec<u8>, u64),
}

/// Reads a file in pieces.
async fn read(path: &str, call: &CallContext<'_>) -> Result<Result<Contents, ToolEnd>, Stopped> {
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let offset = bytes.len() as u64;
        let operation = FileOperation::Read { path: path.to_owned(), offset, limit_bytes: PIECE_BYTES };
        let (piece, size) = match call.host.file(None, operation).await? {
            // A piece may end in the middle of a character, and is then not valid UTF-8.
            Ok(FileReply::Content { content, base64: true, size, .. }) => {
                (STANDARD.decode(content).unwrap_or_default(), size)
            }
            Ok(FileReply::Content { content, size, .. }) => (content.into_bytes(), size),
            Ok(_) => return Ok(Err(ToolEnd::failed("read_file: the sandbox sent no content"))),
            Err(error) => return Ok(Err(file_error("read_file", &error, call))),
        };
        let is_end = piece.is_empty() || offset + piece.len() as u64 >= size.min(MAX_READ_BYTES);
        bytes.extend(piece);
        if !is_end {
            continue;
        }
        let is_cut = (bytes.len() as u64) < size;
        return Ok(match String::from_utf8(bytes) {
            // A small picture can be valid UTF-8; unlike text, it then contains zeros.
            Ok(text) if text.contains('\0') && Format::of(text.as_bytes()).is_some() => {
                Ok(Contents::Binary(text.into_bytes(), size))
            }
            Ok(text) => Ok(Contents::Text(text, size)),
            // If reading stopped in the middle of a character, drop the incomplete part.
            Err(error) if is_cut && error.utf8_error().error_len().is_none() => {
                let end = error.utf8_error().valid_up_to();
                let text = String::from_utf8_lossy(&error.as_bytes()[..end]).into_owned();
                Ok(Contents::Text(text, size))
            }
            Err(error) => Ok(Contents::Binary(error.into_bytes(), size)),
        });
    }
}

/// Shows an image to a model that sees, and describes it to others.
async fn show_binary(
    path: &str,
    bytes: Vec<u8>,
    size: u64,
    call: &CallContext<'_>,
) -> Result<ToolEnd, Stopped> {
    let Some(format) = Format::of(&bytes) else {
        return Ok(ToolEnd::failed(format!(
            "read_file: {path} is not text ({size} bytes); use `shell` with a program that knows the format"
        )));
    };
    let is_whole = bytes.len() as u64 == size;
    let image = Image { media_type: format.media_type().into(), bytes };
    let picture = Picture::of(&image, String::new());
    let about = format!("{path} is a {} picture of {size} bytes: {}", format.name(), picture.text());
    if !call.limits.vision {
        return Ok(ToolEnd::done(format!("{about}\nYou cannot see pictures.")));
    }
    if !is_whole || picture.width == 0 || !picture.can_be_sent() {
        return Ok(ToolEnd::done(format!("{about}\nIt is damaged, or too large to be shown to you.")));
    }
    let picture = call.host.store_image(image).await?;
    Ok(ToolEnd { images: vec![picture], ..ToolEnd::done(about) })
}

fn show(path: &str, content: &str, size: u64, input: &Input, budget: u32, can_search: bool) -> ToolEnd {
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
        let mut text = outline(path, content, &lines, range, outline_tokens);
        if is_cut {
            text += "[only the first 64 MiB were read; use `shell` with sed or grep for what is behind]\n";
        }
        text += "[read lines with from_line and to_line; with `outline` a range is outlined in more detail";
        text += if can_search { "; `search_files` finds a place]" } else { "]" };
        return ToolEnd::done(text);
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
    let shown = first_characters(line, LONGEST_LINE);
    let _ = match shown.len() {
        length if length < line.len() => {
            writeln!(text, "{number:>5}  {shown} [line of {} bytes cut]", line.len())
        }
        _ => writeln!(text, "{number:>5}  {line}"),
    };
}

/// The first lines, then an outline of each part, as far as there is room.
fn outline(path: &str, content: &str, lines: &[&str], range: Lines, most: u32) -> String {
    let mut text = String::new();
    if range.first == 1 {
        let _ = writeln!(text, "{path} begins:");
        for (index, line) in lines.iter().take(HEAD_LINES).enumerate() {
            number(&mut text, index + 1, first_characters(line, OUTLINE_LINE));
        }
    }
    text + &Outline::of(path, content).render_range(range, most)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(path: &str, content: &str, from: Option<usize>, to: Option<usize>, outline: bool) -> String {
        let input = Input { from_line: from, to_line: to, outline, ..input(json!({ "path": path })) };
        show(path, content, content.len() as u64, &input, 200_000, true).text
    }

    fn input(json: serde_json::Value) -> Input {
        serde_json::from_value::<Input>(json).unwrap().with_plain_range()
    }

    #[test]
    fn ranges_of_other_programs_are_accepted() {
        for (json, range) in [
            (json!({"path": "a", "from_line": 3, "to_line": 5}), (Some(3), Some(5))),
            (json!({"file_path": "a", "offset": 3, "limit": 3}), (Some(3), Some(5))),
            (json!({"path": "a", "limit": 5}), (None, Some(5))),
            (json!({"path": "a", "view_range": [3, 5]}), (Some(3), Some(5))),
            (json!({"path": "a", "view_range": [3, -1]}), (Some(3), None)),
            (json!({"path": "a", "start_line": 3, "end_line": 5}), (Some(3), Some(5))),
        ] {
            let read = input(json.clone());
            assert_eq!((read.from_line, read.to_line), range, "{json}");
        }
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
        assert!(whole.ends_with("; `search_files` finds a place]"), "{whole}");
        let without =
            show("big.py", &content, content.len() as u64, &input(json!({"path": "big.py"})), 200_000, false);
        assert!(!without.text.contains("search_files"), "{}", without.text);
        let range = shown("big.py", &content, Some(8001), Some(8400), true);
        assert!(range.contains("lines 8001-8400") && range.contains("8001: def part_2000()"), "{range}");
        let lines = shown("big.py", &content, Some(8069), Some(8069), false);
        assert_eq!(lines, " 8069  def part_2017():\n[lines 8069-8069 of 12000]");
    }
}
