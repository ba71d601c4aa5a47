//! The measurements. Each runs in a separate process with its own memory: one pass over a log with append, count,
//! index and view; a cold start; questions; the other strategies.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use context::recall::{Index, Query};
use context::{Engine, Entry, EntryBody, EventId, Factor, Fixed, Settings, View};
use serde::{Deserialize, Serialize};

use crate::baselines::{Cost, Event, Piece, Strategy};

/// Tokens of a system prompt and a dozen tools; at most a sixth of the budget.
const SYSTEM_TOKENS: u32 = 1_500;
const TOOLS_TOKENS: u32 = 2_500;

/// The end of a prompt as an agent writes it; different in every turn.
fn status(turn: u64) -> String {
    format!("[Status] 2026-11-15 10:{:02} UTC. Left: {} turns, $1.20.", turn % 60, 1_000_000 - turn)
}
/// For larger views only times and overruns are measured: comparing each view with the previous one would dominate.
const MAX_COMPARED: u32 = 200_000;

/// Every so many turns, the token count of the view is verified by counting its content again.
const RECOUNT_TURNS: u64 = 50;

pub(crate) fn settings(budget_tokens: u32) -> Settings {
    let fixed = Fixed {
        system_tokens: SYSTEM_TOKENS.min(budget_tokens / 16),
        tools_tokens: TOOLS_TOKENS.min(budget_tokens / 10),
    };
    Settings { budget_tokens, factor: Factor::ONE, fixed }
}

/// Times in ascending order.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) median_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) mean_ms: f64,
    pub(crate) most_ms: f64,
    pub(crate) count: usize,
}

impl Times {
    fn of(mut nanoseconds: Vec<u64>) -> Self {
        nanoseconds.sort_unstable();
        let at = |share: f64| -> f64 {
            let last = nanoseconds.len().saturating_sub(1);
            nanoseconds.get((last as f64 * share).round() as usize).map_or(0.0, |time| *time as f64 / 1e6)
        };
        let sum: u64 = nanoseconds.iter().sum();
        let count = nanoseconds.len();
        let mean_ms = sum as f64 / 1e6 / count.max(1) as f64;
        Self { median_ms: at(0.5), p99_ms: at(0.99), mean_ms, most_ms: at(1.0), count }
    }
}

/// The result of one pass.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Pass {
    pub(crate) budget: u32,
    pub(crate) events: u64,
    pub(crate) turns: u64,
    pub(crate) tokens: u64,
    pub(crate) text_bytes: u64,
    pub(crate) epochs: u32,
    pub(crate) overruns: u64,
    pub(crate) append: Times,
    pub(crate) view: Times,
    pub(crate) cost: Cost,
    pub(crate) index_bytes: u64,
    /// The process's peak memory.
    pub(crate) peak_mb: f64,
}

fn read(log: &Path) -> Result<impl Iterator<Item = Result<Entry>>> {
    let file = File::open(log).with_context(|| format!("open {}", log.display()))?;
    let lines = BufReader::with_capacity(256 * 1024, file).lines();
    Ok(lines.map(|line| Ok(Entry::decode(&line?)?)))
}

/// One pass over a log: append, count, index, and a view before each answer. Keeps the index in `folder` if given.
pub(crate) fn pass(log: &Path, budget: u32, folder: Option<&Path>) -> Result<Pass> {
    let mut engine = Engine::new(settings(budget))?;
    let mut index = folder.map(Index::open).transpose()?;
    let mut out = Pass { budget, ..Pass::default() };
    let (mut appends, mut views) = (Vec::new(), Vec::new());
    let (mut before, mut now): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
    for entry in read(log)? {
        let entry = entry?;
        if matches!(entry.body, EntryBody::Assistant { .. }) {
            let start = Instant::now();
            let view = engine.view().with_volatile(&status(out.turns));
            views.push(start.elapsed().as_nanos() as u64);
            let is_counted = out.turns.is_multiple_of(RECOUNT_TURNS) && budget <= MAX_COMPARED;
            out.overruns += u64::from(is_over(&view, is_counted));
            if budget <= MAX_COMPARED {
                pieces(&view, &mut now);
                out.cost.take(&before, &now);
                std::mem::swap(&mut before, &mut now);
            }
            out.turns += 1;
        }
        out.events += 1;
        out.text_bytes += context::recall::text_of(&entry).len() as u64;
        let time_ms = entry.time_ms;
        let start = Instant::now();
        let entry = Entry { tokens: entry.body.tokens(), ..entry };
        out.tokens += u64::from(entry.tokens);
        if let Some(index) = &mut index {
            index.add(&entry);
            // With the log's own clock, the index would commit at every event. Here only the batch size triggers a
            // commit.
            index.commit_if_due(time_ms / 1_000_000)?;
        }
        engine.append(entry)?;
        appends.push(start.elapsed().as_nanos() as u64);
    }
    if let Some(index) = &mut index {
        index.commit()?;
        out.index_bytes = index.bytes();
    }
    out.epochs = engine.view().epoch;
    (out.append, out.view) = (Times::of(appends), Times::of(views));
    out.peak_mb = peak_mb()?;
    Ok(out)
}

fn is_over(view: &View, is_counted: bool) -> bool {
    let counted: u32 = if is_counted {
        let count = |segment: &context::Segment| match &segment.content {
            context::Content::Fixed => segment.tokens,
            content => content.tokens(),
        };
        view.segments.iter().map(count).sum()
    } else {
        view.tokens
    };
    counted > view.budget || view.tokens > view.budget
}

/// Converts a view to pieces, as for the other strategies.
fn pieces(view: &View, out: &mut Vec<Piece>) {
    out.clear();
    out.extend(view.segments.iter().map(|segment| {
        let mut hash = DefaultHasher::new();
        segment.covers.hash(&mut hash);
        segment.kind.hash(&mut hash);
        match &segment.content {
            context::Content::Fixed => {}
            context::Content::Text { text, .. } | context::Content::Result { text, .. } => {
                text.hash(&mut hash)
            }
            context::Content::Assistant { text, calls, .. } => {
                text.hash(&mut hash);
                calls.len().hash(&mut hash);
            }
        }
        (hash.finish(), segment.tokens)
    }));
}

/// The peak memory of this process, in megabytes.
fn peak_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024.0 / 1e6)
}

/// A cold start: reads the log from disk, folds it and makes a view, including loading the vocabulary.
pub(crate) fn cold(log: &Path, budget: u32) -> Result<f64> {
    let start = Instant::now();
    // As in the server: the vocabulary loads while the log is read.
    context::tokens::prepare();
    let entries: Vec<Entry> = read(log)?.collect::<Result<_>>()?;
    let engine = Engine::from_log(settings(budget), entries)?;
    let view = engine.view();
    let elapsed = start.elapsed().as_secs_f64() * 1e3;
    anyhow::ensure!(!view.segments.is_empty(), "an empty view");
    Ok(elapsed)
}

/// Recall and latency of questions.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Answers {
    pub(crate) questions: usize,
    /// The share of evidence found among the first 1, 5, 10, 20, 50 results.
    pub(crate) recall: Vec<(usize, f64)>,
    pub(crate) time: Times,
}

/// The result counts at which recall is measured.
pub(crate) const DEPTHS: [usize; 5] = [1, 5, 10, 20, 50];

/// Runs all questions against the index.
pub(crate) fn ask(folder: &Path, questions: &[(String, Vec<u64>)]) -> Result<Answers> {
    let index = Index::open(folder)?;
    let mut found = [0.0_f64; DEPTHS.len()];
    let mut times = Vec::new();
    for (query, evidence) in questions {
        let start = Instant::now();
        let hits = index.search(Query::words(query, 50))?;
        times.push(start.elapsed().as_nanos() as u64);
        for (at, depth) in DEPTHS.iter().enumerate() {
            let first: Vec<u64> = hits.iter().take(*depth).map(|hit| hit.id.0).collect();
            let known = evidence.iter().filter(|id| first.contains(id)).count();
            found[at] += known as f64 / evidence.len().max(1) as f64;
        }
    }
    let share = |sum: f64| sum / questions.len().max(1) as f64;
    let recall = DEPTHS.iter().zip(found).map(|(depth, sum)| (*depth, share(sum))).collect();
    Ok(Answers { questions: questions.len(), recall, time: Times::of(times) })
}

/// Runs the other strategies over a log.
pub(crate) fn compare(log: &Path) -> Result<Vec<(String, Cost)>> {
    let mut strategies = [
        Strategy::Raw,
        Strategy::LastObservations { shown: 100 },
        Strategy::LastObservations { shown: 10 },
        Strategy::SummariseHalf { most: 80, first: 4, kept_from: 0, summaries: 0 },
    ];
    let mut entries = Vec::new();
    let mut turns = Vec::new();
    let fixed = Event { tokens: SYSTEM_TOKENS + TOOLS_TOKENS, is_observation: false };
    entries.push(fixed);
    for entry in read(log)? {
        let entry = entry?;
        if matches!(entry.body, EntryBody::Assistant { .. }) {
            turns.push(entries.len());
        }
        entries.push(Event::of(&entry));
    }
    let mut out = Vec::new();
    for strategy in &mut strategies {
        let mut cost = Cost::default();
        let (mut before, mut now): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
        for turn in &turns {
            strategy.prompt(&entries[..*turn], &mut now);
            cost.take(&before, &now);
            std::mem::swap(&mut before, &mut now);
        }
        out.push((strategy.name(), cost));
    }
    Ok(out)
}

/// Words that occur in exactly one event and look like identifiers, spread over the log.
pub(crate) fn rare_words(log: &Path, most: usize) -> Result<Vec<(String, Vec<u64>)>> {
    let mut seen: std::collections::HashMap<String, Option<EventId>> = std::collections::HashMap::new();
    for entry in read(log)? {
        let entry = entry?;
        context::recall::each_word(&context::recall::text_of(&entry), |word| {
            if word.len() >= 8 && word.contains('_') {
                let known = seen.entry(word.to_owned()).or_insert(Some(entry.id));
                if *known != Some(entry.id) {
                    *known = None;
                }
            }
        });
    }
    let mut rare: Vec<(EventId, String)> =
        seen.into_iter().filter_map(|(word, id)| id.map(|id| (id, word))).collect();
    rare.sort();
    let step = (rare.len() / most.max(1)).max(1);
    Ok(rare.into_iter().step_by(step).take(most).map(|(id, word)| (word, vec![id.0])).collect())
}
