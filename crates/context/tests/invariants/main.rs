//! The invariants of the engine, each a property of generated logs that is checked after every entry.
//!
//! | invariant | test |
//! |---|---|
//! | tokens(view) <= budget always, also with one event larger than it, with a volatile end, after corrections; fixed parts at most 40 % | `a_view_never_exceeds_its_budget`, `one_event_larger_than_the_budget_...`, `a_batch_of_a_thousand_calls_...`, `ten_million_tokens_...` (10M generated ones: `bench/context`) |
//! | a call and all its results are both in or both folded | `a_call_and_all_its_results_...` |
//! | task, pins and the newest events are present | `the_task_and_the_newest_events_are_present`, `a_plan_stays_in_view`, `what_people_wrote_stays_in_view` |
//! | masks spare people's messages, reasoning and fresh errors | `people_thoughts_and_fresh_errors_are_never_masked`
//! |
//! | each stage of an epoch shrinks the view | `an_epoch_never_makes_a_view_larger`, `messages_of_a_line_...` |
//! | each dropped event is covered by exactly one segment | `each_dropped_event_is_covered_by_exactly_one_summary` |
//! | what arrives during a model request follows its answer | `requests.rs` |
//! | recall returns an event's original bytes | `every_event_is_read_back_to_the_last_byte`; from blobs: `tests/recall.rs` |
//! | same prefix, same bytes, after any restart | `a_restart_or_a_fork_at_any_event_...`; with kill -9: `e2e/tests/jobs/agent_context.rs`, `agent_history.rs` |
//! | between epochs a view is a byte prefix of the next | `between_epochs_a_view_is_a_byte_prefix_of_the_next` |
//! | summary ranges are disjoint and contiguous | `summaries_are_disjoint_contiguous_...` |
//! | incremental view == view rebuilt; a fork has the view of its prefix | `a_restart_or_a_fork_at_any_event_...` |
//! | a model's summary breaks none of these, and is used | `model_summaries_keep_all_invariants`, `a_models_summary_stands_where_...` |
//! | any bytes are an entry or an error | `damaged_entries_...`, `any_text_...`; `fuzz/fuzz_targets/log_entry.rs` |
//!
//! The logs have parallel calls, results that are missing, late or out of order, giants (10 MB), unicode,
//! corrections, rejected prompts and other windows (`generate.rs`). A crash may follow any entry.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod generate;
mod handwritten;
mod requests;

use std::collections::{BTreeMap, BTreeSet};

use context::{
    Appended, Content, Engine, Entry, EntryBody, EventId, Factor, Fixed, Segment, SegmentKind, Settings,
    View, Window,
};
use generate::{Op, Size, expand, log};
use proptest::prelude::*;

const BUDGETS: [u32; 6] = [2_100, 4_096, 16_000, 32_000, 100_000, 1_048_576];

fn settings(budget_tokens: u32) -> Settings {
    let fixed = Fixed { system_tokens: budget_tokens / 20, tools_tokens: budget_tokens / 10 };
    Settings { budget_tokens, factor: Factor::ONE, fixed }
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 40, ..ProptestConfig::default() }
}

/// Calls `check` with the view after each entry.
fn after_each(log: &[Entry], budget: u32, mut check: impl FnMut(&Engine, &View, Appended, &[Entry])) {
    let mut engine = Engine::new(settings(budget)).unwrap();
    for (at, entry) in log.iter().enumerate() {
        let appended = engine.append(entry.clone()).unwrap();
        check(&engine, &engine.view(), appended, &log[..=at]);
    }
}

fn is_event(entry: &Entry) -> bool {
    let is_silent = matches!(
        entry.body,
        EntryBody::Summary(_)
            | EntryBody::Correction { .. }
            | EntryBody::Tighten { .. }
            | EntryBody::Window(_)
            | EntryBody::Map { .. }
    );
    !is_silent
}

/// Whether the segment is a summary.
fn is_summary(segment: &Segment) -> bool {
    matches!(segment.kind, SegmentKind::Summary { .. })
}

fn is_in_history(segment: &Segment) -> bool {
    matches!(segment.kind, SegmentKind::Raw | SegmentKind::Masked | SegmentKind::Cut | SegmentKind::Pending)
        && segment.covers.is_some()
}

/// The events with a segment of their own: shown, cut or masked.
fn in_place(view: &View) -> BTreeSet<EventId> {
    view.segments
        .iter()
        .filter(|segment| is_in_history(segment))
        .map(|segment| segment.covers.unwrap().first)
        .collect()
}

fn stable_bytes(view: &View) -> Vec<u8> {
    let stable = View { segments: view.stable().cloned().collect(), ..view.clone() };
    stable.bytes()
}

/// The results that arrived before the next answer began.
fn in_time(log: &[Entry]) -> BTreeSet<EventId> {
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut found = BTreeSet::new();
    for entry in log {
        match &entry.body {
            EntryBody::Assistant { calls, .. } => open = calls.iter().map(|call| call.id.as_str()).collect(),
            EntryBody::Result(result) if open.contains(result.call.as_str()) => {
                found.insert(entry.id);
            }
            _ => {}
        }
    }
    found
}

/// The events after the task, in the batches that are folded together: an answer with everything that arrives while
/// its calls are running and, after a late result, everything since its call.
fn batches(log: &[Entry]) -> Vec<Vec<&Entry>> {
    let asks = |entry: &Entry, call: &str| match &entry.body {
        EntryBody::Assistant { calls, .. } => calls.iter().any(|known| known.id == call),
        _ => false,
    };
    let mut batches: Vec<Vec<&Entry>> = Vec::new();
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for entry in log[1..].iter().filter(|entry| is_event(entry)) {
        let tied_from = match &entry.body {
            EntryBody::Assistant { calls, .. } => {
                open = calls.iter().map(|call| call.id.as_str()).collect();
                None
            }
            EntryBody::Result(result) => {
                let is_open = !open.is_empty();
                open.remove(result.call.as_str());
                let asked =
                    batches.iter().rposition(|batch| batch.iter().any(|other| asks(other, &result.call)));
                asked.or_else(|| batches.len().checked_sub(1).filter(|_| is_open))
            }
            _ => batches.len().checked_sub(1).filter(|_| !open.is_empty()),
        };
        match tied_from {
            Some(at) => {
                let mut tied: Vec<&Entry> = batches.drain(at..).flatten().collect();
                tied.push(entry);
                batches.push(tied);
            }
            None => batches.push(vec![entry]),
        }
    }
    batches
}

/// Each event is either shown in its place or covered by exactly one summary.
fn check_coverage(view: &View, log: &[Entry]) {
    let summaries: Vec<_> = view.segments.iter().filter(|segment| is_summary(segment)).collect();
    let shown = in_place(view);
    let task = view.segments.iter().find(|segment| segment.kind == SegmentKind::Task);
    for entry in log.iter().filter(|entry| is_event(entry)) {
        let covering = summaries.iter().filter(|segment| segment.covers.unwrap().contains(entry.id)).count();
        let is_task = task.is_some_and(|task| task.covers.unwrap().contains(entry.id));
        let expected = usize::from(!shown.contains(&entry.id) && !is_task);
        let ranges: Vec<_> = summaries.iter().map(|segment| segment.covers).collect();
        assert_eq!(covering, expected, "{} in {ranges:?}", entry.id);
    }
    // Each of these events has exactly one segment.
    let places = view.segments.iter().filter(|segment| is_in_history(segment)).count();
    assert_eq!(places, shown.len());
}

/// The tokens that a provider would receive, counted again from the content.
fn recount(view: &View) -> u32 {
    view.segments
        .iter()
        .map(|segment| match &segment.content {
            Content::Fixed => segment.tokens,
            content => content.tokens(),
        })
        .sum()
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_view_never_exceeds_its_budget(log in log(60), budget in 0_usize..BUDGETS.len()) {
        after_each(&log, BUDGETS[budget], |engine, view, _, log| {
            let policy = engine.policy();
            // What the provider accepts, whatever the log has shown.
            let ours = engine.factor().ours(engine.budget_tokens());
            assert!(policy.budget <= ours || engine.caller_part_is_too_large(), "{} of {ours}", policy.budget);
            if log.len() % 5 == 0 {
                let ended = view.clone().with_volatile(&"clock and budget ".repeat(500));
                assert!(ended.tokens <= policy.budget, "{} of {}", ended.tokens, policy.budget);
                assert!(ended.tokens + 8 >= view.tokens + policy.volatile_tokens, "the volatile end has its room");
            }
            assert!(view.tokens <= policy.high, "{} > {} of {}: {:#?}", view.tokens, policy.high, policy.budget, view.segments.iter().map(|s| (s.kind, s.tokens, s.covers)).collect::<Vec<_>>());
            assert_eq!(view.tokens, engine.tokens());
            assert_eq!(view.tokens, recount(view));
            let fixed = view.segments.iter().filter(|segment| matches!(
                segment.kind,
                SegmentKind::System | SegmentKind::Tools | SegmentKind::Task | SegmentKind::Pin | SegmentKind::Notes
                    | SegmentKind::Map | SegmentKind::Plan
            ));
            let fixed: u32 = fixed.map(|segment| segment.tokens).sum();
            assert!(fixed <= policy.fixed_tokens, "fixed parts {fixed} of {}", policy.budget);
        });
    }

    #[test]
    fn a_call_and_all_its_results_are_both_in_or_both_folded(log in log(50), budget in 0_usize..BUDGETS.len()) {
        after_each(&log, BUDGETS[budget], |_, view, _, _| {
            // As providers require, every answer in the view is followed by exactly one result for each of its
            // calls, in any order, and results appear nowhere else.
            let mut segments = view.segments.iter().peekable();
            while let Some(segment) = segments.next() {
                match &segment.content {
                    Content::Assistant { calls, .. } => {
                        let mut wanted: BTreeSet<&str> = calls.iter().map(|call| call.id.as_str()).collect();
                        while let Some(Segment { content: Content::Result { call, .. }, .. }) = segments.peek() {
                            assert!(wanted.remove(&**call), "{call} is not wanted here");
                            segments.next();
                        }
                        assert!(wanted.is_empty(), "no result for {wanted:?}");
                    }
                    Content::Result { call, .. } => panic!("the result of {call} has no call before it"),
                    _ => {}
                }
            }
        });
    }

    #[test]
    fn the_task_and_the_newest_events_are_present(log in log(60), budget in 1_usize..BUDGETS.len()) {
        let mut least = u32::MAX;
        after_each(&log, BUDGETS[budget], |engine, view, _, log| {
            let task = view.segments.iter().find(|segment| segment.kind == SegmentKind::Task).unwrap();
            let Content::Text { text, .. } = &task.content else { panic!("{task:?}") };
            assert!(text.contains("TASK: make the tests of the parser pass"));
            // The newest whole batches that fit into a tenth of the budget are shown in full, not masked. A batch
            // that was masked in a tighter window is not shown again in a larger one.
            let policy = engine.policy();
            least = least.min(policy.budget);
            let (mut room, mut events) = (least / 10, policy.newest_events);
            let batches = batches(log);
            for batch in batches.iter().rev() {
                let tokens: u32 = batch.iter().map(|entry| entry.tokens + 16).sum();
                // A call with a late or missing result also has a placeholder.
                let items = batch.iter().map(|entry| match &entry.body {
                    EntryBody::Assistant { calls, .. } => 1 + calls.len(),
                    _ => 1,
                });
                let items = items.sum::<usize>();
                if tokens > room || items > events {
                    break;
                }
                (room, events) = (room - tokens, events - items);
                for entry in batch {
                    let place = view.segments.iter().find(|segment| is_in_history(segment)
                        && segment.covers.is_some_and(|range| range.first == entry.id));
                    let kind = place.map(|segment| segment.kind);
                    assert!(kind.is_some_and(|kind| kind != SegmentKind::Masked), "{} is {kind:?}", entry.id);
                }
            }
        });
    }

    #[test]
    fn what_people_wrote_stays_in_view(log in log(60), budget in 2_usize..BUDGETS.len()) {
        let mut least = u32::MAX;
        after_each(&log, BUDGETS[budget], |engine, view, _, log| {
            // A message dropped in a tighter window does not come back in a larger one.
            least = least.min(engine.policy().pin_tokens);
            let mut room = least / 2;
            let people = log[1..].iter().rev().filter_map(|entry| match &entry.body {
                EntryBody::User { text, .. } => Some((entry, text)),
                _ => None,
            });
            for (entry, text) in people {
                let cost = entry.tokens + 24;
                if cost > room || cost > least / 4 {
                    break;
                }
                room -= cost;
                let is_shown = view.segments.iter().any(|segment| {
                    let is_it = segment.covers.is_some_and(|range| range.first == entry.id);
                    let said = match &segment.content { Content::Text { text: said, .. } => said.contains(text.as_str()), _ => false };
                    is_it && said && (segment.kind == SegmentKind::Pin || is_in_history(segment))
                });
                assert!(is_shown, "what a person wrote in {} is not shown", entry.id);
            }
        });
    }

    #[test]
    fn people_thoughts_and_fresh_errors_are_never_masked(log in log(60), budget in 0_usize..BUDGETS.len()) {
        after_each(&log, BUDGETS[budget], |_, view, _, log| {
            let in_time = in_time(log);
            let newest_success = log.iter().rev().find(|entry| match &entry.body {
                EntryBody::Result(result) => !result.is_error && in_time.contains(&entry.id),
                _ => false,
            });
            for segment in view.segments.iter().filter(|segment| segment.kind == SegmentKind::Masked) {
                let id = segment.covers.unwrap().first;
                let entry = log.iter().find(|entry| entry.id == id).unwrap();
                match &entry.body {
                    EntryBody::Map { .. } => {}
                    EntryBody::Result(result) => {
                        let is_fresh = newest_success.is_none_or(|success| id > success.id);
                        let is_fresh_error = result.is_error && is_fresh && in_time.contains(&id);
                        assert!(!is_fresh_error, "{id} is an error that nothing has come right after");
                    }
                    other => panic!("{id} is masked: {other:?}"),
                }
            }
        });
    }

    #[test]
    fn an_epoch_never_makes_a_view_larger(log in log(60), budget in 0_usize..BUDGETS.len()) {
        let mut before = 0;
        let mut has_map = false;
        after_each(&log, BUDGETS[budget], |engine, view, appended, log| {
            let entry = log.last().unwrap();
            has_map |= matches!(entry.body, EntryBody::Map { .. });
            // A map moves into the head, another window changes the head, a late result has a heading.
            let map = if has_map { engine.policy().map_tokens } else { 0 };
            let is_window = matches!(entry.body, EntryBody::Window(_));
            if appended == Appended::Epoch && !is_window {
                let most = before + entry.tokens + map + 32;
                assert!(view.tokens <= most, "{} after {before} and {} at {}", view.tokens, entry.tokens, entry.id);
            }
            before = view.tokens;
        });
    }

    #[test]
    fn a_plan_stays_in_view(log in log(60), budget in 3_usize..BUDGETS.len()) {
        after_each(&log, BUDGETS[budget], |_, view, _, log| {
            let plan = log.iter().rev().find_map(|entry| match &entry.body {
                EntryBody::Plan { text } => Some((entry.id, !text.is_empty())),
                _ => None,
            });
            if let Some((id, true)) = plan {
                let shown = view.segments.iter().any(|segment| {
                    (segment.kind == SegmentKind::Plan || is_in_history(segment))
                        && segment.covers.is_some_and(|range| range.first == id)
                });
                assert!(shown, "the plan {id} is not shown");
            }
        });
    }

    #[test]
    fn each_dropped_event_is_covered_by_exactly_one_summary(log in log(60), budget in 0_usize..BUDGETS.len()) {
        after_each(&log, BUDGETS[budget], |_, view, _, log| check_coverage(view, log));
    }

    #[test]
    fn summaries_are_disjoint_contiguous_and_older_than_the_tail(log in log(80), budget in 0_usize..BUDGETS.len()) {
        after_each(&log, BUDGETS[budget], |_, view, _, log| {
            let ranges: Vec<_> =
                view.segments.iter().filter(|segment| is_summary(segment)).map(|segment| segment.covers.unwrap()).collect();
            for pair in ranges.windows(2) {
                assert!(pair[0].last < pair[1].first);
                let between = log.iter().filter(|entry| is_event(entry));
                let mut between = between.filter(|entry| entry.id > pair[0].last && entry.id < pair[1].first);
                assert!(between.next().is_none(), "a gap between {} and {}", pair[0], pair[1]);
            }
            if let (Some(last), Some(first)) = (ranges.last(), in_place(view).first()) {
                assert!(last.last < *first, "{last} reaches into the tail at {first}");
            }
            let levels: Vec<u8> = view.segments.iter().filter_map(|segment| match segment.kind {
                SegmentKind::Summary { level, .. } => Some(level),
                _ => None,
            }).collect();
            assert!(levels.is_sorted_by(|a, b| a >= b), "{levels:?}");
        });
    }

    #[test]
    fn between_epochs_a_view_is_a_byte_prefix_of_the_next(log in log(60), budget in 0_usize..BUDGETS.len()) {
        let mut before: Option<Vec<u8>> = None;
        after_each(&log, BUDGETS[budget], |_, view, appended, _| {
            let now = stable_bytes(view);
            if let (Some(before), Appended::Grown) = (&before, appended) {
                assert!(now.starts_with(before), "the stable part changed without an epoch");
            }
            before = Some(now);
        });
    }

    #[test]
    fn a_restart_or_a_fork_at_any_event_has_the_same_bytes(
        log in log(40), budget in 0_usize..BUDGETS.len(), crash in any::<prop::sample::Index>()
    ) {
        let crash = crash.index(log.len()) + 1;
        // One process that never stopped, and its views after each entry.
        let mut views = Vec::new();
        after_each(&log, BUDGETS[budget], |_, view, _, _| views.push(view.bytes()));
        // Another process that decodes the entries stored before the crash and continues.
        let stored: Vec<String> = log.iter().map(|entry| entry.encode().unwrap()).collect();
        let read = stored[..crash].iter().map(|line| Entry::decode(line).unwrap());
        let mut engine = Engine::from_log(settings(BUDGETS[budget]), read).unwrap();
        prop_assert_eq!(&engine.view().bytes(), &views[crash - 1]);
        for (at, line) in stored.iter().enumerate().skip(crash) {
            engine.append(Entry::decode(line).unwrap()).unwrap();
            prop_assert_eq!(&engine.view().bytes(), &views[at]);
        }
        // A fork does not affect the original.
        let fork = Engine::from_log(settings(BUDGETS[budget]), log[..crash].to_vec()).unwrap();
        prop_assert_eq!(&fork.view().bytes(), &views[crash - 1]);
    }

    #[test]
    fn model_summaries_keep_all_invariants(log in log(40), budget in 1_usize..4) {
        let mut engine = Engine::new(settings(BUDGETS[budget])).unwrap();
        let mut next = 0;
        let mut stored = Vec::new();
        let mut append = |engine: &mut Engine, body: EntryBody| {
            next += 1;
            let entry = Entry::new(EventId(next), 0, body);
            stored.push(entry.clone());
            engine.append(entry).unwrap();
            assert!(engine.tokens() <= engine.policy().high);
        };
        for entry in log {
            append(&mut engine, entry.body);
            for task in engine.due_summaries() {
                prop_assert!(task.check("").is_err());
                prop_assert!(task.check("built it [e999999]").is_err());
                let text = format!("Did: what had to be done [{}] {}", task.range, task.keep.join(" "));
                match task.check(&text) {
                    Ok(summary) => append(&mut engine, EntryBody::Summary(summary)),
                    Err(fault) => prop_assert!(matches!(fault, context::SummaryFault::TooLong { .. }), "{}", fault),
                }
            }
        }
        let again = Engine::from_log(settings(BUDGETS[budget]), stored).unwrap();
        prop_assert_eq!(again.view().bytes(), engine.view().bytes());
    }

    #[test]
    fn every_event_is_read_back_to_the_last_byte(log in log(12)) {
        let history: BTreeMap<EventId, Entry> = log.iter().map(|entry| (entry.id, entry.clone())).collect();
        for entry in log.iter().filter(|entry| is_event(entry)) {
            let text = context::recall::text_of(entry).into_owned();
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            // Forty lines at a time: the first, some from the middle, the last.
            let starts = [0, lines.len() / 3, lines.len() / 2, lines.len().saturating_sub(40)];
            for start in starts.into_iter().filter(|start| *start < lines.len()) {
                let end = (start + 40).min(lines.len());
                let range = context::recall::Lines { first: start + 1, last: end };
                let read = context::recall::history_read(&history, entry.id, range).unwrap();
                prop_assert_eq!(read, lines[start..end].concat());
            }
        }
    }

    #[test]
    fn entries_round_trip(log in log(20)) {
        for entry in log {
            prop_assert_eq!(Entry::decode(&entry.encode().unwrap()).unwrap(), entry);
        }
    }

    #[test]
    fn damaged_entries_are_refused_and_never_panic(log in log(3), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let line = log.last().unwrap().encode().unwrap();
        let mut bytes = line.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let decoded = String::from_utf8(bytes).ok().and_then(|text| Entry::decode(&text).ok());
        if let Some(entry) = decoded {
            let mut engine = Engine::new(settings(8_000)).unwrap();
            let _ = engine.append(entry);
            prop_assert!(engine.tokens() <= engine.policy().high);
        }
    }

    #[test]
    fn any_text_is_either_an_entry_or_an_error(text in "\\PC{0,200}") {
        let _ = Entry::decode(&text);
    }
}
