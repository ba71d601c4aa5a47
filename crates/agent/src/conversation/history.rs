//! The history as people and the history tools read it: `memory.json`, `history_search` and `history_read`.

use context::Blob;
use context::truncate::first_characters;
use serde::Serialize;

use super::{HISTORY_READ_TOOL, HISTORY_SEARCH_TOOL};

/// One entry of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Sequence number in the log.
    #[serde(rename = "event")]
    pub sequence: u64,
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// The call that this is the result of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    pub kind: RecordKind,
    /// The text. If an output is too large for the log, this is the part that the model reads.
    pub text: String,
    /// Where the complete output is stored, if `text` is only part of it.
    #[serde(skip)]
    pub whole: Option<Blob>,
    /// How many bytes of the text a search covers. A search does not find earlier searches.
    #[serde(skip)]
    pub found_bytes: usize,
}

impl Record {
    /// A record whose whole text can be found.
    #[must_use]
    pub fn new(sequence: u64, time_ms: i64, kind: RecordKind, text: String) -> Self {
        let found_bytes = text.len();
        Self { sequence, time_ms, call: None, kind, text, whole: None, found_bytes }
    }

    /// The part of the text that a search covers.
    #[must_use]
    pub fn searchable_text(&self) -> &str {
        self.text.get(..self.found_bytes).unwrap_or(&self.text)
    }
}

/// Whether a tool only repeats what is already in the history. Such tools are of no use before a prompt leaves something
/// out, and are offered from then on.
pub(crate) fn is_history_tool(tool: &str) -> bool {
    [HISTORY_SEARCH_TOOL, HISTORY_READ_TOOL].contains(&tool)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// The task, or a message from a person.
    Person,
    /// A model answer with its tool calls.
    Answer,
    /// The result of a tool call.
    Result,
    Plan,
    Note,
    /// A notice from the system to the model.
    Notice,
}

/// A search hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchHit<'a> {
    pub(crate) record: &'a Record,
    /// The best matching line, shortened.
    pub(crate) line: String,
}

/// Maximum length of a line in a search result, in characters.
const MAX_LINE: usize = 240;

/// Records that contain the words: those with the most words first, then newest first.
pub(crate) fn search<'a>(records: &'a [Record], query: &str, limit: usize) -> Vec<SearchHit<'a>> {
    let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
    if words.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<(usize, SearchHit<'a>)> = records
        .iter()
        .filter_map(|record| {
            let lower = record.searchable_text().to_lowercase();
            let count = words.iter().filter(|word| lower.contains(word.as_str())).count();
            (count > 0)
                .then(|| (count, SearchHit { record, line: best_line(record.searchable_text(), &words) }))
        })
        .collect();
    found.sort_by(|(one, first), (other, second)| {
        other.cmp(one).then(second.record.sequence.cmp(&first.record.sequence))
    });
    found.into_iter().take(limit).map(|(_, found)| found).collect()
}

fn best_line(text: &str, words: &[String]) -> String {
    let score = |line: &str| {
        let lower = line.to_lowercase();
        words.iter().filter(|word| lower.contains(word.as_str())).count()
    };
    // Take the first of equally good lines, so that the result is deterministic.
    let line = text.lines().rev().max_by_key(|line| score(line)).unwrap_or_default().trim();
    first_characters(line, MAX_LINE).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64, text: &str) -> Record {
        Record::new(sequence, 0, RecordKind::Result, text.into())
    }

    #[test]
    fn records_with_more_of_the_words_come_first() {
        let records =
            [record(1, "the port is 8080"), record(2, "a\nport 9090 is taken"), record(3, "nothing")];
        let found = search(&records, "Port taken", 10);
        let lines: Vec<_> = found.iter().map(|found| (found.record.sequence, found.line.as_str())).collect();
        assert_eq!(lines, [(2, "port 9090 is taken"), (1, "the port is 8080")]);
        assert!(search(&records, "  ", 10).is_empty());
    }
}
