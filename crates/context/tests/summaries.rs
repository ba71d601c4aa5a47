//! Tests of summaries: what a model is asked, and what the rule-based extract keeps.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use context::{
    Call, CallResult, Content, Engine, Entry, EntryBody, EventId, Factor, Fixed, SegmentKind, Settings,
};
use serde_json::{Value, json};

struct Log {
    engine: Engine,
    next: u64,
}

impl Log {
    fn new(budget_tokens: u32, task: &str) -> Self {
        let settings = Settings { budget_tokens, factor: Factor::ONE, fixed: Fixed::default() };
        let mut log = Self { engine: Engine::new(settings).unwrap(), next: 0 };
        log.push(EntryBody::User { text: task.into(), images: Vec::new() });
        log
    }

    fn push(&mut self, body: EntryBody) -> u64 {
        self.next += 1;
        self.engine.append(Entry::new(EventId(self.next), 0, body)).unwrap();
        self.next
    }

    /// An answer with one call, and its result. Returns the event of the result.
    fn call(&mut self, name: &str, arguments: Value, exit_code: Option<i32>, output: &str) -> u64 {
        let id = format!("call-{}", self.next);
        let call = Call { id: id.clone(), name: name.into(), arguments };
        self.push(EntryBody::Assistant { reasoning: Vec::new(), text: String::new(), calls: vec![call] });
        let is_error = exit_code.is_some_and(|code| code != 0);
        let text = output.to_owned();
        self.push(EntryBody::Result(CallResult {
            call: id,
            text,
            is_error,
            exit_code,
            ..CallResult::default()
        }))
    }

    fn read(&mut self, number: u64) {
        let output: String =
            (0..12).map(|line| format!("{line}: value {} of file {number}\n", line * number)).collect();
        self.call("read_file", json!({ "path": format!("src/part{number}.rs") }), None, &output);
    }

    /// The texts of the summaries of a level with the events they cover.
    fn summaries(&self, wanted: u8) -> Vec<(std::ops::RangeInclusive<u64>, String)> {
        let view = self.engine.view();
        let of_level = view.segments.iter().filter_map(|segment| match (&segment.kind, &segment.content) {
            (SegmentKind::Summary { level, .. }, Content::Text { text, .. }) if *level == wanted => {
                let range = segment.covers.unwrap();
                Some((range.first.0..=range.last.0, text.to_string()))
            }
            _ => None,
        });
        of_level.collect()
    }
}

#[test]
fn a_summary_of_summaries_names_what_was_written_and_not_what_was_read() {
    let mut log = Log::new(16_000, "rewrite the parts");
    let mut written = Vec::new();
    for number in 0..400 {
        log.read(number);
        if number % 9 == 0 {
            let path = format!("out/result{number}.rs");
            let event = log.call("write_file", json!({ "path": path, "content": "x" }), None, "wrote it");
            written.push((event, path));
        }
    }
    let summaries = log.summaries(2);
    assert!(!summaries.is_empty());
    for (range, text) in summaries {
        for (event, path) in written.iter().filter(|(event, _)| range.contains(event)) {
            assert!(text.contains(&format!("{path} [e{event}]")), "{path} is missing in\n{text}");
        }
        assert!(!text.contains("read_file"), "{text}");
    }
}

#[test]
fn a_summary_quotes_error_lines_exactly() {
    let mut log = Log::new(16_000, "make it compile");
    for number in 0..200 {
        log.call(
            "shell",
            json!({ "command": "cargo build" }),
            Some(101),
            "error[E0308]: mismatched types [u8; 4]\n",
        );
        log.read(number);
    }
    let summaries: Vec<String> =
        (1..4).flat_map(|level| log.summaries(level)).map(|(_, text)| text).collect();
    let quoted = "error[E0308]: mismatched types [u8; 4]";
    assert!(!summaries.is_empty() && summaries.iter().all(|text| text.contains(quoted)), "{summaries:#?}");
}

#[test]
fn the_summary_prompt_has_task_plan_and_named_outputs() {
    let mut log = Log::new(16_000, "Make the tests of src/parse.rs pass.");
    log.push(EntryBody::Plan { text: "1. [x] run the tests\n2. [>] fix parse_header\n".into() });
    log.call("shell", json!({ "command": "cargo test" }), Some(101), "test parse_header ... FAILED\n");
    log.call(
        "edit_file",
        json!({ "path": "src/parse.rs", "old": "a", "new": "b" }),
        None,
        "edited src/parse.rs",
    );
    for number in 1..70 {
        log.read(number);
    }
    let task = log.engine.due_summaries().remove(0);
    let shown: Vec<&str> = task.prompt.lines().take(40).collect();
    insta::assert_snapshot!("summary_prompt", shown.join("\n"));
}

#[test]
fn ranges_without_content_are_not_summarized() {
    let mut log = Log::new(16_000, "think");
    // Reasoning is not part of a summary's input.
    for number in 0..60 {
        let reasoning = vec![json!({ "thinking": format!("thought {number} ").repeat(60) })];
        log.push(EntryBody::Assistant { reasoning, text: String::new(), calls: Vec::new() });
    }
    assert!(log.engine.tokens() > log.engine.policy().ahead);
    assert_eq!(log.engine.due_summaries(), []);
}
