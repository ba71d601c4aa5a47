//! The tables: each result with its target, then all strategies side by side.

use std::fmt::Write as _;

use serde::Serialize;

use crate::baselines::Cost;
use crate::measure::{Answers, Pass};

/// A history of at least this many tokens counts as large.
const LARGE: u64 = 9_000_000;
const MEDIUM: u64 = 900_000;

/// All results for one history.
#[derive(Debug, Serialize)]
pub(crate) struct History {
    pub(crate) name: String,
    /// The share of observations in the text.
    pub(crate) observations: f64,
    pub(crate) passes: Vec<Pass>,
    pub(crate) cold_ms: f64,
    pub(crate) answers: Answers,
    pub(crate) prose: Answers,
    pub(crate) others: Vec<(String, Cost)>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) histories: Vec<History>,
}

/// A result and its target.
struct Line {
    what: String,
    figure: String,
    target: String,
    /// `None` if there is no target for this size.
    is_met: Option<bool>,
}

/// Formats a number with a thousands separator.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let start = digits.len() % 3;
    let mut out = digits[..start].to_owned();
    for at in (start..digits.len()).step_by(3) {
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(&digits[at..at + 3]);
    }
    out
}

impl History {
    fn lines(&self) -> Vec<Line> {
        let Some(main) = self.passes.first() else { return Vec::new() };
        let (is_medium, is_large) = (main.tokens >= MEDIUM, main.tokens >= LARGE);
        let mut lines = Vec::new();
        let mut line = |what: &str, figure: String, target: &str, is_met: Option<bool>| {
            lines.push(Line { what: what.to_owned(), figure, target: target.to_owned(), is_met });
        };
        for pass in &self.passes {
            let what = format!(
                "budget overruns in {} views, budget {}",
                thousands(pass.turns),
                thousands(pass.budget.into())
            );
            line(&what, pass.overruns.to_string(), "0", Some(pass.overruns == 0));
        }
        let view = &main.view;
        let figure =
            format!("{:.2} ms (median {:.2}, most {:.2})", view.p99_ms, view.median_ms, view.most_ms);
        line("view build, warm, p99", figure, "<= 5 ms", is_medium.then_some(view.p99_ms <= 5.0));
        let is_met = (is_medium && !is_large).then_some(self.cold_ms <= 250.0);
        line(
            "view build, cold from disk, vocabulary included",
            format!("{:.0} ms", self.cold_ms),
            "<= 250 ms at 1M",
            is_met,
        );
        let append = &main.append;
        let figure = format!(
            "{:.2} ms (mean {:.2}, p99 {:.2}, most {:.0})",
            append.median_ms, append.mean_ms, append.p99_ms, append.most_ms
        );
        line("append + count + index, median", figure, "<= 1 ms", Some(append.median_ms <= 1.0));
        for pass in self.passes.iter().filter(|pass| pass.cost.prompts > 0) {
            let hit = pass.cost.hit();
            let least = match pass.budget {
                100_000 => Some(0.97),
                32_000 => Some(0.94),
                _ => None,
            };
            let what = format!("prefix hit, budget {}", thousands(pass.budget.into()));
            let target = least.map_or(String::new(), |least| format!(">= {least:.2}"));
            // With less history than a few epochs the hit rate means little.
            line(&what, format!("{hit:.3}"), &target, least.filter(|_| is_medium).map(|least| hit >= least));
        }
        let recall =
            self.answers.recall.iter().find(|(depth, _)| *depth == 5).map_or(0.0, |(_, share)| *share);
        let figure = format!("{recall:.4} of {}", thousands(self.answers.questions as u64));
        line("recall@5 of a rare identifier", figure, ">= .995", Some(recall >= 0.995));
        let p99 = self.answers.time.p99_ms.max(self.prose.time.p99_ms);
        let figure = format!(
            "{p99:.2} ms (identifiers {:.2}, sentences {:.2})",
            self.answers.time.p99_ms, self.prose.time.p99_ms
        );
        line("recall query, p99", figure, "<= 20 ms", Some(p99 <= 20.0));
        let ratio = main.index_bytes as f64 / main.text_bytes.max(1) as f64;
        line("index size / raw text", format!("{ratio:.3}"), "<= 0.35", Some(ratio <= 0.35));
        line(
            "resident memory, most",
            format!("{:.0} MB", main.peak_mb),
            "<= 150 MB",
            Some(main.peak_mb <= 150.0),
        );
        lines
    }

    fn render(&self, out: &mut String) {
        let Some(main) = self.passes.first() else { return };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "## {}\n\n{} tokens, {} events, {} turns, {:.1} MB of text, {:.0} % of it observations\n",
            self.name,
            thousands(main.tokens),
            thousands(main.events),
            thousands(main.turns),
            main.text_bytes as f64 / 1e6,
            self.observations * 100.0,
        );
        let _ = writeln!(out, "| what | figure | target | |\n|---|---|---|---|");
        for line in self.lines() {
            let verdict = line.is_met.map_or("", |is_met| if is_met { "pass" } else { "MISSED" });
            let _ = writeln!(out, "| {} | {} | {} | {verdict} |", line.what, line.figure, line.target);
        }
        let _ = writeln!(
            out,
            "\n| strategy | mean / max prompt (k tokens) | prefix hit | relative cost | bounded |\n|---|---|---|---|---|"
        );
        for (name, cost) in &self.others {
            let bounded = if name.starts_with("summarise") { "by events, not tokens" } else { "no" };
            write_cost(out, name, cost, bounded);
        }
        for pass in self.passes.iter().filter(|pass| pass.cost.prompts > 0) {
            let name = format!("Caisson, budget {} ({} epochs)", thousands(pass.budget.into()), pass.epochs);
            write_cost(out, &name, &pass.cost, "yes");
        }
        out.push('\n');
    }
}

fn write_cost(out: &mut String, name: &str, cost: &Cost, bounded: &str) {
    let mean = cost.tokens as f64 / cost.prompts.max(1) as f64 / 1e3;
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        out,
        "| {name} | {mean:.0} / {:.1} | {:.3} | {:.1} | {bounded} |",
        cost.largest as f64 / 1e3,
        cost.hit(),
        cost.relative(),
    );
}

/// Formats the recall for questions with evidence.
pub(crate) fn answers(answers: &Answers) -> String {
    let mut out = format!("{} questions, p99 {:.2} ms\n", answers.questions, answers.time.p99_ms);
    for (depth, share) in &answers.recall {
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "recall@{depth}: {share:.4}");
    }
    out
}

impl Report {
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        self.histories.iter().for_each(|history| history.render(&mut out));
        out
    }

    pub(crate) fn is_met(&self) -> bool {
        self.histories.iter().flat_map(History::lines).all(|line| line.is_met != Some(false))
    }
}
