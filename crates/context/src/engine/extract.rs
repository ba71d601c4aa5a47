//! The rule-based summary: commands with exit codes, changed files, test counts, error lines, messages and answers.
//! Deterministic, with fixed sections and citations.

use std::collections::BTreeSet;

use super::unit::{ItemKind, Unit};
use crate::event_id::EventRange;
use crate::tokens;

/// With less room than this, no line fits.
const MIN_LINE: u32 = 12;

/// The sections of a summary, in display order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    Asked,
    Answers,
    Did,
    Wrote,
    Tests,
    Errors,
    Read,
}

impl Section {
    const ALL: [Section; 7] = [
        Section::Asked,
        Section::Answers,
        Section::Did,
        Section::Wrote,
        Section::Tests,
        Section::Errors,
        Section::Read,
    ];
    /// The order in which sections get the next line if not all lines fit.
    const SECTION_ORDER: [Section; 9] = [
        Section::Wrote,
        Section::Errors,
        Section::Did,
        Section::Wrote,
        Section::Tests,
        Section::Asked,
        Section::Did,
        Section::Wrote,
        Section::Answers,
    ];
    /// What was read without an effect gets only the room that all others leave.
    const LEFTOVER_ORDER: [Section; 1] = [Section::Read];

    fn title(self) -> &'static str {
        match self {
            Section::Asked => "Asked",
            Section::Answers => "Said",
            Section::Did => "Did",
            Section::Wrote => "Wrote",
            Section::Tests => "Tests",
            Section::Errors => "Errors",
            Section::Read => "Read",
        }
    }
}

/// One line of a summary, with its citation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    pub(super) section: Section,
    pub(super) text: String,
}

/// All candidate lines for the given units, newest last.
pub(super) fn lines_of<'a>(units: impl Iterator<Item = &'a Unit>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut files: BTreeSet<String> = BTreeSet::new();
    let mut push = |section, text: String| lines.push(Line { section, text });
    for item in units.flat_map(|unit| &unit.items) {
        let (id, facts) = (item.id, &item.facts);
        for file in &facts.written {
            if files.insert(file.clone()) {
                push(Section::Wrote, format!("{file} [{id}]"));
            }
        }
        if facts.label.is_empty() {
            continue;
        }
        match item.kind {
            ItemKind::User => push(Section::Asked, format!("{} [{id}]", facts.label)),
            ItemKind::Assistant => push(Section::Answers, format!("{} [{id}]", facts.label)),
            ItemKind::Plan => push(Section::Answers, format!("plan: {} [{id}]", facts.label)),
            ItemKind::Note => push(Section::Answers, format!("note: {} [{id}]", facts.label)),
            ItemKind::Map => {}
            ItemKind::Missing => push(Section::Did, format!("{}: no result", facts.label)),
            ItemKind::Late => push(Section::Did, format!("{} (late) [{id}]", facts.label)),
            // The section about files names what was written.
            ItemKind::Result { .. } if !facts.written.is_empty() => {}
            ItemKind::Result { exit_code, is_error } => {
                let outcome = match exit_code {
                    Some(code) => format!(": exit {code}"),
                    None if is_error => ": failed".to_owned(),
                    None => String::new(),
                };
                let section = if facts.is_read { Section::Read } else { Section::Did };
                push(section, format!("{}{outcome} [{id}]", facts.label));
            }
        }
        for tally in &facts.test_counts {
            push(Section::Tests, format!("{tally} [{id}]"));
        }
        for error in &facts.errors {
            push(Section::Errors, format!("{error} [{id}]"));
        }
    }
    lines
}

/// Merges the lines of several summaries without duplicates, and without those about what was only read.
pub(super) fn merge<'a>(summaries: impl Iterator<Item = &'a [Line]>) -> Vec<Line> {
    let mut seen: BTreeSet<(Section, String)> = BTreeSet::new();
    let mut merged = Vec::new();
    for line in summaries.flatten().filter(|line| line.section != Section::Read) {
        let statement = line.text.rsplit_once(" [").map_or(line.text.as_str(), |(statement, _)| statement);
        if seen.insert((line.section, statement.to_owned())) {
            merged.push(line.clone());
        }
    }
    merged
}

/// A summary within its token limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extract {
    pub(super) text: String,
    pub(super) tokens: u32,
    /// The lines that the text contains.
    pub(super) lines: Vec<Line>,
}

/// Builds a summary of at most `most` tokens from the lines. Sections take turns. Within a section, lines are chosen
/// evenly over the whole range, the ends first.
pub(super) fn compose(
    range: EventRange,
    level: u8,
    tokens_folded: u64,
    lines: &[Line],
    most: u32,
) -> Extract {
    let head = match level {
        1 => format!("Summary of events [{range}] ({tokens_folded} tokens; history_read gives any of them)"),
        _ => format!("Summary of events [{range}] ({tokens_folded} tokens, level {level})"),
    };
    let mut queues: Vec<(Section, Vec<usize>)> = Vec::new();
    for section in Section::ALL {
        let all: Vec<usize> =
            lines.iter().enumerate().filter(|(_, line)| line.section == section).map(|(at, _)| at).collect();
        queues.push((section, spread(&all)));
    }
    let mut room = most.saturating_sub(tokens::count(&head) + 2 + 4 * Section::ALL.len() as u32);
    let mut kept: BTreeSet<usize> = BTreeSet::new();
    for order in [Section::SECTION_ORDER.as_slice(), &Section::LEFTOVER_ORDER] {
        // Each round removes lines from the queues, so the loop ends.
        while room >= MIN_LINE {
            let mut is_done = true;
            for turn in order {
                let Some((_, queue)) = queues.iter_mut().find(|(section, _)| section == turn) else {
                    continue;
                };
                let Some(at) = queue.pop() else { continue };
                is_done = false;
                let cost = tokens::count(&lines[at].text) + 3;
                if cost <= room {
                    room -= cost;
                    kept.insert(at);
                }
            }
            if is_done {
                break;
            }
        }
    }
    finish(&head, lines, kept, most)
}

/// Renders the lines and drops some until the text fits: lines were counted one by one, and the joined text may take
/// a few more tokens.
fn finish(head: &str, lines: &[Line], mut kept: BTreeSet<usize>, most: u32) -> Extract {
    loop {
        let text = render(head, lines, &kept);
        let tokens = tokens::count(&text) + tokens::MESSAGE_OVERHEAD;
        if tokens <= most || kept.is_empty() {
            let text = if tokens <= most {
                text
            } else {
                crate::tokens::truncate::head(&text, most.saturating_sub(tokens::MESSAGE_OVERHEAD))
            };
            let tokens = tokens::count(&text) + tokens::MESSAGE_OVERHEAD;
            return Extract { text, tokens, lines: kept.iter().map(|at| lines[*at].clone()).collect() };
        }
        kept.pop_last();
    }
}

fn render(head: &str, lines: &[Line], kept: &BTreeSet<usize>) -> String {
    let mut text = head.to_owned();
    for section in Section::ALL {
        let mut chosen = kept.iter().map(|at| &lines[*at]).filter(|line| line.section == section).peekable();
        if chosen.peek().is_none() {
            continue;
        }
        text.push_str(&format!("\n{}:", section.title()));
        for line in chosen {
            text.push_str("\n- ");
            text.push_str(&line.text);
        }
    }
    text
}

/// Orders the lines so that any prefix is spread over the whole range; the caller pops from the end. The newest and
/// the oldest come first, then the middles of the gaps.
fn spread(all: &[usize]) -> Vec<usize> {
    let mut order = Vec::with_capacity(all.len());
    let mut taken = vec![false; all.len()];
    let mut step = all.len().max(1);
    loop {
        for at in (0..all.len()).rev().step_by(step) {
            if !taken[at] {
                taken[at] = true;
                order.push(all[at]);
            }
        }
        if step == 1 {
            break;
        }
        step = step.div_ceil(2);
    }
    order.reverse();
    order
}
