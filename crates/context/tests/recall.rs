//! Tests of the recall index and of the results of the history tools, on real files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use context::output_cap::Limits;
use context::recall::{History, Index, Lines, Part, Query, READ_LIMITS, answer, history_read};
use context::{Blob, Call, CallResult, ContextError, Entry, EntryBody, EventId, output_cap};
use proptest::prelude::*;
use serde_json::json;

const DAY_MS: i64 = 1_794_700_800_000; // 2026-11-15

fn result(id: u64, text: &str) -> Entry {
    let body = CallResult { call: format!("call-{id}"), text: text.to_owned(), ..CallResult::default() };
    Entry::new(EventId(id), DAY_MS + id as i64, EntryBody::Result(body))
}

fn ids(index: &Index, text: &str, limit: usize) -> Vec<u64> {
    index.search(Query::words(text, limit)).unwrap().iter().map(|hit| hit.id.0).collect()
}

#[test]
fn an_event_is_found_before_and_after_it_is_committed_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = Index::open(folder.path()).unwrap();
    for id in 1..=1000 {
        index.add(&result(id, &format!("step {id}: needle_{:x} in src/part{id}/main.rs", id * 7919)));
        if id % 90 == 0 {
            index.commit().unwrap();
        }
    }
    let check = |index: &Index| {
        for id in [1_u64, 89, 90, 91, 500, 999, 1000] {
            assert_eq!(ids(index, &format!("needle_{:x}", id * 7919), 5)[0], id);
            assert_eq!(ids(index, &format!("src/part{id}/main.rs"), 5)[0], id);
        }
    };
    check(&index);
    // The last ten were never committed, so they are added from the log again.
    let mut index = Index::open(folder.path()).unwrap();
    assert_eq!(index.newest_committed(), Some(EventId(990)));
    for id in 980..=1000 {
        index.add(&result(id, &format!("step {id}: needle_{:x} in src/part{id}/main.rs", id * 7919)));
    }
    assert_eq!(index.len(), 1000);
    check(&index);
}

#[test]
fn a_hit_has_its_neighbours_across_segments() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = Index::open(folder.path()).unwrap();
    for id in [10, 20, 30, 40] {
        index.add(&result(id, &format!("number_{id}")));
        if id < 40 {
            index.commit().unwrap();
        }
    }
    let neighbours = |id: u64| {
        let hits = index.search(Query::words(&format!("number_{id}"), 1)).unwrap();
        hits[0].neighbours.iter().map(|id| id.0).collect::<Vec<_>>()
    };
    assert_eq!((neighbours(10), neighbours(20)), (vec![20], vec![10, 30]));
    assert_eq!((neighbours(30), neighbours(40)), (vec![20, 40], vec![30]));
}

#[test]
fn leftover_files_are_removed_and_damaged_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = Index::open(folder.path()).unwrap();
    index.add(&result(5, "alpha_one"));
    index.commit().unwrap();
    index.add(&result(6, "beta_two"));
    index.commit().unwrap();
    drop(index);
    // An interrupted merge: the merged file and its parts exist, and another file is partially written.
    let name = |first: u64, last: u64| folder.path().join(format!("{first:016x}-{last:016x}.words"));
    let other = tempfile::tempdir().unwrap();
    let mut merged = Index::open(other.path()).unwrap();
    merged.add(&result(5, "alpha_one"));
    merged.add(&result(6, "beta_two"));
    merged.commit().unwrap();
    std::fs::copy(other.path().join(name(5, 6).file_name().unwrap()), name(5, 6)).unwrap();
    std::fs::write(name(7, 9).with_extension("tmp"), b"half").unwrap();
    let index = Index::open(folder.path()).unwrap();
    assert_eq!((index.len(), ids(&index, "alpha_one", 5), ids(&index, "beta_two", 5)), (2, vec![5], vec![6]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // For every damaged byte, the file is either rejected or still readable; nothing panics.
    let whole = std::fs::read(name(5, 6)).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        std::fs::write(name(5, 6), &bytes).unwrap();
        if let Ok(index) = Index::open(folder.path()) {
            let _ = index.search(Query::words("alpha_one beta_two", 5));
        }
    }
    std::fs::write(name(5, 6), &whole[..whole.len() - 3]).unwrap();
    let error = Index::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("delete the folder, it is rebuilt from the log"), "{error}");
}

#[test]
fn vectors_find_events_without_matching_words_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut index = Index::open(folder.path()).unwrap();
    let vector = |id: u64| -> Vec<f32> { (0..16).map(|at| if at == id % 16 { 1.0 } else { 0.05 }).collect() };
    for id in 1..=10 {
        index.add(&result(id, &format!("word{id}")));
    }
    let vectors: Vec<_> = (1..=10).map(|id| (EventId(id), vector(id))).collect();
    assert_eq!(index.add_vectors(&vectors).unwrap(), 0);
    assert_eq!(index.add_vectors(&[(EventId(11), vec![1.0; 3])]).unwrap(), 1);
    index.commit().unwrap();
    let index = Index::open(folder.path()).unwrap();
    assert_eq!(index.newest_vector(), Some(EventId(10)));
    let near = vector(7);
    let hits = index.search(Query { text: "word3", vector: Some(&near), limit: 3 }).unwrap();
    let found: Vec<u64> = hits.iter().map(|hit| hit.id.0).collect();
    assert!(found[..2].contains(&3) && found[..2].contains(&7), "{found:?}");
}

struct Log {
    entries: BTreeMap<EventId, Entry>,
    blobs: BTreeMap<String, String>,
}

impl History for Log {
    fn entry(&self, id: EventId) -> Result<Option<Entry>, ContextError> {
        Ok(self.entries.get(&id).cloned())
    }

    fn blob(&self, digest: &str) -> Result<Option<String>, ContextError> {
        Ok(self.blobs.get(digest).cloned())
    }
}

fn log_of(entries: Vec<Entry>) -> Log {
    Log { entries: entries.into_iter().map(|entry| (entry.id, entry)).collect(), blobs: BTreeMap::new() }
}

#[test]
fn search_result_has_day_lines_and_continuation_hint() {
    let folder = tempfile::tempdir().unwrap();
    let call =
        Call { id: "1".into(), name: "bash".into(), arguments: json!({ "command": "cargo test -p parser" }) };
    let asked = EntryBody::Assistant { reasoning: Vec::new(), text: "let me see".into(), calls: vec![call] };
    let entries = vec![
        Entry::new(EventId(1), DAY_MS, asked),
        result(2, "running 3 tests\n\ntest parse_header ... FAILED\nerror: expected 7, found 8\n"),
        result(3, "nothing of interest"),
    ];
    let mut index = Index::open(folder.path()).unwrap();
    entries.iter().for_each(|entry| index.add(entry));
    let log = log_of(entries);
    let search = |words: &str, limit: usize| {
        answer(&index.search(Query::words(words, limit)).unwrap(), index.len(), &log, words).unwrap()
    };
    assert_eq!(
        search("header failed", 1),
        "[e2] 2026-11-15 output, 4 lines\n  1: running 3 tests\n  3: test parse_header ... FAILED\n  4: error: \
         expected 7, found 8\n  before: [e1] you: let me see\n  after: [e3] output: nothing of interest\nRead one with history_read, giving the event and, if it is long, the \
         lines.\n"
    );
    assert_eq!(ids(&index, "cargo parser", 1), [1]);
    assert_eq!(ids(&index, "2026-11-15", 9).len(), 3);
    assert_eq!(search("zebra", 5), "Nothing in 3 events matches. Try fewer or other words.");
}

#[test]
fn history_read_returns_complete_outputs_from_blobs() {
    let whole: String = (1..=30_000).map(|line| format!("{line}: значение {}\n", line * 31)).collect();
    let capped = output_cap::cap(&whole);
    let blob: Blob = capped.blob.unwrap();
    let body =
        CallResult { call: "1".into(), text: capped.text, blob: Some(blob.clone()), ..CallResult::default() };
    let mut log = log_of(vec![Entry::new(EventId(9), DAY_MS, EntryBody::Result(body))]);
    let preview = history_read(&log, EventId(9), Lines::ALL).unwrap();
    assert!(preview.starts_with("[the whole output is no longer stored; this is its preview]\n"));
    log.blobs.insert(blob.digest, whole.clone());
    assert!(read_on(&log, EventId(9), READ_LIMITS) == whole);
    let few = Part { limits: Limits { lines: 2, ..READ_LIMITS }, ..Part::from(Lines { first: 7, last: 9 }) };
    assert_eq!(
        history_read(&log, EventId(9), few).unwrap(),
        "7: значение 217\n8: значение 248\n\n[lines 7-8 of 30000; go on with from_line 9]\n"
    );
    assert_eq!(history_read(&log, EventId(9), Lines { first: 7, last: 7 }).unwrap(), "7: значение 217\n");
    let beyond = history_read(&log, EventId(9), Lines { first: 30_001, last: 30_002 }).unwrap();
    assert_eq!(beyond, "[there are no such lines: the text has 30000]\n");
    let error = history_read(&log, EventId(4), Lines::ALL).unwrap_err();
    assert_eq!(error.to_string(), "there is no event e4 in this history");
}

/// Reads an event to its end by following the instructions in the results.
fn read_on(log: &Log, id: EventId, limits: Limits) -> String {
    let (mut read, mut first, mut from_byte) = (String::new(), 1, 0);
    loop {
        let lines = Lines { first, last: usize::MAX };
        let part = history_read(log, id, Part { lines, from_byte, limits }).unwrap();
        let Some((text, note)) = part.rsplit_once("\n[").filter(|(_, note)| note.contains("go on with"))
        else {
            return read + &part;
        };
        assert!(!text.is_empty() && text.len() <= limits.bytes.max(4), "{part}");
        read.push_str(text);
        let next = note.rsplit_once("from_line ").unwrap().1.trim_end_matches("]\n");
        let (line, byte) = next.split_once(" and from_byte ").unwrap_or((next, "0"));
        (first, from_byte) = (line.parse().unwrap(), byte.parse().unwrap());
    }
}

/// A text of four lines. The second line has `words` words of 17 bytes.
fn long_line(words: usize) -> String {
    let long = format!("{{\"key\": \"{}\"}}", "значение ".repeat(words));
    format!("before\n{long}\nafter\nlast without an end")
}

#[test]
fn very_long_line_is_read_by_byte_ranges() {
    // A limit of one byte needs many reads, so the text is short in that case.
    for (bytes, words) in [(1, 40), (7, 40), (1_000, 8_000), (40_000, 8_000)] {
        let text = long_line(words);
        let log = log_of(vec![result(3, &text)]);
        let limits = Limits { bytes, ..READ_LIMITS };
        assert!(read_on(&log, EventId(3), limits) == text, "{bytes} bytes at a time");
    }
    let log = log_of(vec![result(3, &long_line(8_000))]);
    let part = Part {
        lines: Lines { first: 2, last: 2 },
        from_byte: 9,
        limits: Limits { bytes: 16, ..READ_LIMITS },
    };
    assert_eq!(
        history_read(&log, EventId(3), part).unwrap(),
        "значение\n[bytes 9-25 of the 136011 of line 2, of 4 lines; go on with from_line 2 and from_byte 25]\n"
    );
    let beyond = Part { from_byte: 500, ..Part::from(Lines { first: 1, last: 1 }) };
    assert_eq!(
        history_read(&log, EventId(3), beyond).unwrap(),
        "[there are no such bytes: these lines have 7]\n"
    );
}

#[test]
fn vectors_are_written_after_a_header_without_records() {
    let folder = tempfile::tempdir().unwrap();
    let vectors: Vec<(EventId, Vec<f32>)> = (1..=3)
        .map(|id| (EventId(id), (0..8).map(|at| if at == id { 1.0 } else { 0.0 }).collect()))
        .collect();
    Index::open(folder.path()).unwrap().add_vectors(&vectors[..1]).unwrap();
    let path = folder.path().join("vectors");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(12 + 5).unwrap();
    let mut index = Index::open(folder.path()).unwrap();
    assert_eq!((index.newest_vector(), std::fs::metadata(&path).unwrap().len()), (None, 12));
    index.add_vectors(&vectors).unwrap();
    let mut index = Index::open(folder.path()).unwrap();
    assert_eq!(index.newest_vector(), Some(EventId(3)));
    (1..=3).for_each(|id| index.add(&result(id, &format!("word{id}"))));
    let hits = index.search(Query { text: "", vector: Some(&vectors[1].1), limit: 1 }).unwrap();
    assert_eq!(hits[0].id, EventId(2));
}

#[test]
fn a_word_in_the_middle_of_ten_megabytes_is_found_and_its_line_shown() {
    let folder = tempfile::tempdir().unwrap();
    let filler = "the same words again and again and again\n".repeat(130_000);
    let long = "x ".repeat(500);
    let text = format!("{filler}{long} needleInTheHay_77 {long}\n{filler}");
    assert!(text.len() > 10_000_000);
    let mut index = Index::open(folder.path()).unwrap();
    index.add_text(EventId(4), DAY_MS, &text);
    index.commit_if_due(0).unwrap();
    assert_eq!(index.newest_committed(), Some(EventId(4)), "much is committed at once");
    let hits = index.search(Query::words("needleInTheHay_77", 3)).unwrap();
    let said = answer(&hits, 1, &log_of(vec![result(4, &text)]), "needleInTheHay_77").unwrap();
    assert!(said.starts_with("[e4] 2026-11-15 output, 260001 lines\n"), "{said}");
    assert!(said.contains("  130001: …") && said.contains("needleInTheHay_77"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The index finds what a linear scan over all texts would find, whatever was committed and merged when.
    #[test]
    fn search_finds_every_event_with_a_word(
        texts in prop::collection::vec(prop::collection::vec("[a-c]{2,4}", 1..6), 1..60),
        commits in prop::collection::vec(any::<bool>(), 60),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut index = Index::open(folder.path()).unwrap();
        for (at, words) in texts.iter().enumerate() {
            index.add(&result(at as u64 + 1, &words.join(" ")));
            if commits[at] {
                index.commit().unwrap();
            }
        }
        let hits = index.search(Query::words("ab", 100)).unwrap();
        let mut found: Vec<usize> = hits.iter().map(|hit| hit.id.0 as usize - 1).collect();
        found.sort_unstable();
        let expected: Vec<usize> =
            (0..texts.len()).filter(|at| texts[*at].iter().any(|word| word == "ab")).collect();
        prop_assert_eq!(found, expected);
    }
}
