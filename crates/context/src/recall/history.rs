//! Formats the results of the tools `history_search` and `history_read`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::index::Hit;
use super::words;
use crate::entry::{Entry, EntryBody};
use crate::error::ContextError;
use crate::event_id::EventId;
use crate::output_cap::Limits;
use crate::tokens::truncate;

/// The maximum length of a snippet line.
const SNIPPET_BYTES: usize = 200;
const SNIPPET_LINES: usize = 4;
/// The limits of one `history_read` result. The rest is requested by lines, or by bytes within a long line.
pub const READ_LIMITS: Limits = Limits { lines: 1_600, bytes: 40 * 1024 };

/// Access to the original texts: the job's log and its blobs.
pub trait History {
    /// An entry of the log; `None` if there is no such event.
    ///
    /// # Errors
    /// The log cannot be read.
    fn entry(&self, id: EventId) -> Result<Option<Entry>, ContextError>;

    /// The complete text of a blob; `None` if it does not exist, for example after retention deleted it.
    ///
    /// # Errors
    /// The blob cannot be read.
    fn blob(&self, digest: &str) -> Result<Option<String>, ContextError>;
}

impl History for BTreeMap<EventId, Entry> {
    fn entry(&self, id: EventId) -> Result<Option<Entry>, ContextError> {
        Ok(self.get(&id).cloned())
    }

    fn blob(&self, _digest: &str) -> Result<Option<String>, ContextError> {
        Ok(None)
    }
}

/// The lines of an event to read, counted from 1, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    pub first: usize,
    pub last: usize,
}

impl Lines {
    /// All lines.
    pub const ALL: Lines = Lines { first: 1, last: usize::MAX };
}

/// Formats the result of `history_search`: the hits among `events` events, with their day, matching lines and
/// neighbours.
///
/// # Errors
/// The log cannot be read.
pub fn answer(
    hits: &[Hit],
    events: usize,
    history: &impl History,
    query: &str,
) -> Result<String, ContextError> {
    if hits.is_empty() {
        return Ok(format!("Nothing in {events} events matches. Try fewer or other words."));
    }
    let mut wanted = Vec::new();
    words::each_word(query, |word| wanted.push(word.to_owned()));
    let mut answer = String::new();
    for hit in hits {
        let Some(entry) = history.entry(hit.id)? else { continue };
        write_hit(&mut answer, hit, &entry, &wanted);
        for neighbour in &hit.neighbours {
            let Some(entry) = history.entry(*neighbour)? else { continue };
            let side = if *neighbour < hit.id { "before" } else { "after" };
            let line = crate::event_facts::first_line(&words::text_of(&entry));
            // Writing to a string cannot fail.
            let _ = writeln!(answer, "  {side}: [{neighbour}] {}: {line}", who(&entry));
        }
    }
    answer.push_str("Read one with history_read, giving the event and, if it is long, the lines.\n");
    Ok(answer)
}

fn write_hit(answer: &mut String, hit: &Hit, entry: &Entry, wanted: &[String]) {
    let text = words::text_of(entry);
    // Writing to a string cannot fail.
    let _ = writeln!(
        answer,
        "[{}] {} {}, {} lines",
        hit.id,
        words::day_of(hit.time_ms),
        who(entry),
        crate::output_cap::count_lines(&text),
    );
    for (number, line) in snippet(&text, wanted) {
        let _ = writeln!(answer, "  {number}: {}", around(line, wanted));
    }
}

/// A line. If it is too long, the part around the longest matching word, which is the most specific.
fn around(line: &str, wanted: &[String]) -> String {
    if line.len() <= SNIPPET_BYTES {
        return line.to_owned();
    }
    // Lowercasing only ASCII keeps the byte offsets of the line.
    let lower = line.to_ascii_lowercase();
    let places = wanted.iter().filter_map(|word| Some((word.len(), lower.find(word.as_str())?)));
    let at = places.max_by_key(|(length, _)| *length).map_or(0, |(_, at)| at);
    let start = truncate::floor(line, at.saturating_sub(SNIPPET_BYTES / 3));
    let end = truncate::floor(line, start + SNIPPET_BYTES);
    let mark = |is_cut: bool| if is_cut { "…" } else { "" };
    format!("{}{}{}", mark(start > 0), &line[start..end], mark(end < line.len()))
}

fn who(entry: &Entry) -> &'static str {
    match &entry.body {
        EntryBody::User { .. } => "user",
        EntryBody::Assistant { .. } => "you",
        EntryBody::Result(_) => "output",
        EntryBody::Plan { .. } => "plan",
        EntryBody::Note { .. } => "note",
        EntryBody::Summary(_) => "summary",
        EntryBody::Map { .. } => "map",
        EntryBody::Correction { .. } | EntryBody::Tighten { .. } | EntryBody::Window(_) => "engine",
    }
}

/// The lines that match most words, in line order, with their numbers.
fn snippet<'a>(text: &'a str, wanted: &[String]) -> Vec<(usize, &'a str)> {
    let mut best: Vec<(usize, usize, &str)> = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let lower = line.to_lowercase();
        let matches = wanted.iter().filter(|word| lower.contains(word.as_str())).count();
        best.push((matches, at + 1, line.trim_end()));
        // Limit the list for long outputs.
        if best.len() > 4 * SNIPPET_LINES {
            best.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            best.truncate(SNIPPET_LINES);
        }
    }
    best.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    best.truncate(SNIPPET_LINES);
    best.sort_by_key(|(_, number, _)| *number);
    best.into_iter().map(|(_, number, line)| (number, line)).collect()
}

/// Which part of an event to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub lines: Lines,
    /// How many bytes to skip at the start of the lines: a line may be longer than one result.
    pub from_byte: usize,
    /// The maximum size of the text in one result.
    pub limits: Limits,
}

impl From<Lines> for Part {
    fn from(lines: Lines) -> Self {
        Self { lines, from_byte: 0, limits: READ_LIMITS }
    }
}

/// Formats the result of `history_read`: the original text of an event, or some of its lines. A text that was too
/// large for the log is read from its blob. If the text exceeds the limit, the result says how to continue.
///
/// # Errors
/// There is no such event, or the log cannot be read.
pub fn history_read(
    history: &impl History,
    id: EventId,
    part: impl Into<Part>,
) -> Result<String, ContextError> {
    let entry = history.entry(id)?.ok_or(ContextError::NoSuchEvent { id })?;
    let mut note = None;
    let text = match &entry.body {
        EntryBody::Result(result) => match &result.blob {
            Some(blob) => history.blob(&blob.digest)?.unwrap_or_else(|| {
                note = Some("[the whole output is no longer stored; this is its preview]\n");
                result.text.clone()
            }),
            None => result.text.clone(),
        },
        _ => words::text_of(&entry).into_owned(),
    };
    Ok(note.unwrap_or_default().to_owned() + &excerpt(&text, part.into()))
}

/// Lines of a text, unchanged, up to the limit.
fn excerpt(text: &str, part: Part) -> String {
    let all = crate::output_cap::count_lines(text);
    let skip = part.lines.first.max(1) - 1;
    let take = part.lines.last.saturating_sub(skip);
    let line_starts = |count: usize| match count {
        0 => 0,
        _ => text.match_indices('\n').nth(count - 1).map_or(text.len(), |(at, _)| at + 1),
    };
    let start = line_starts(skip);
    let stop = if take >= all { text.len() } else { line_starts(skip + take) };
    let chosen = &text[start..stop];
    if chosen.is_empty() && !text.is_empty() {
        return format!("[there are no such lines: the text has {all}]\n");
    }
    let from = truncate::ceil(chosen, part.from_byte);
    if from == chosen.len() && from > 0 {
        return format!("[there are no such bytes: these lines have {from}]\n");
    }
    let rest = &chosen[from..];
    if part.limits.fit(rest) {
        return rest.to_owned();
    }
    let after_lines =
        rest.match_indices('\n').nth(part.limits.lines.max(1) - 1).map_or(rest.len(), |(at, _)| at + 1);
    // At least one character, so that a reader who continues always makes progress.
    let end = truncate::floor(rest, part.limits.bytes.min(after_lines)).max(truncate::ceil(rest, 1));
    let before = crate::output_cap::count_lines(&chosen[..from]) - usize::from(is_within_line(chosen, from));
    let first = skip + before + 1;
    if let Some(at) = rest[..end].rfind('\n') {
        let shown = &rest[..=at];
        let last = first + crate::output_cap::count_lines(shown) - 1;
        return format!("{shown}\n[lines {first}-{last} of {all}; go on with from_line {}]\n", last + 1);
    }
    // Counted from the start of the line, so that the result does not depend on earlier reads.
    let line_start = chosen[..from].rfind('\n').map_or(0, |at| at + 1);
    let line_bytes = chosen[line_start..].find('\n').unwrap_or(chosen.len() - line_start);
    let (begin, next) = (from - line_start, from - line_start + end);
    format!(
        "{}\n[bytes {begin}-{next} of the {line_bytes} of line {first}, of {all} lines; go on with from_line {first} and \
         from_byte {next}]\n",
        &rest[..end]
    )
}

/// Whether a byte offset is inside a line: neither its start nor the start of the text.
fn is_within_line(text: &str, at: usize) -> bool {
    at > 0 && !text[..at].ends_with('\n')
}
