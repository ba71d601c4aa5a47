//! The results as a Markdown table and as JSON.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::measure::Summary;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    /// Milliseconds; less is better.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Megabytes; less is better.
    #[serde(rename = "MB")]
    Megabytes,
    /// A rate per second; more is better.
    #[serde(rename = "per second")]
    PerSecond,
}

impl Unit {
    fn write(self, value: f64) -> String {
        match self {
            Self::Milliseconds if value.abs() < 10.0 => format!("{value:.2} ms"),
            Self::Milliseconds => format!("{value:.1} ms"),
            Self::Megabytes => format!("{value:.2} MB"),
            Self::PerSecond => format!("{value:.0} /s"),
        }
    }

    fn worst_name(self) -> &'static str {
        if self == Self::PerSecond { "p10" } else { "p90" }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The target is met.
    Pass,
    /// The target is missed.
    Miss,
    /// There is no target.
    None,
}

/// The target of a result.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    /// Our median may be at most this much.
    AtMost(f64),
    /// Our median must be at least this much.
    AtLeast(f64),
    /// The baseline must take at least this many times as long.
    TimesFaster(f64),
    /// We may take at most this many times as long as the baseline.
    TimesSlower(f64),
    /// For comparison only.
    None,
}

/// A baseline that our result is compared with.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Baseline {
    pub(crate) what: String,
    pub(crate) summary: Summary,
    /// Our value for the comparison, if it is not the result itself.
    pub(crate) against: Option<Summary>,
    pub(crate) target: Target,
}

/// The result of one benchmark.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    /// A description of the measurement.
    pub(crate) what: String,
    pub(crate) unit: Unit,
    /// Our own measurements.
    pub(crate) ours: Summary,
    /// The target for our own measurements alone.
    pub(crate) target: Target,
    pub(crate) beside: Vec<Baseline>,
    /// Remarks for the reader.
    pub(crate) notes: Vec<String>,
}

impl Figure {
    /// The worst of all comparisons.
    pub(crate) fn verdict(&self) -> Verdict {
        let verdicts: Vec<Verdict> = self
            .beside
            .iter()
            .map(|beside| self.judge(beside.target, Some(beside)))
            .chain([self.judge(self.target, None)])
            .collect();
        let worst = [Verdict::Miss, Verdict::Pass].into_iter().find(|verdict| verdicts.contains(verdict));
        worst.unwrap_or(Verdict::None)
    }

    fn judge(&self, target: Target, beside: Option<&Baseline>) -> Verdict {
        let ours = beside.and_then(|beside| beside.against).unwrap_or(self.ours).median;
        let theirs = beside.map_or(f64::NAN, |beside| beside.summary.median);
        let met = match target {
            Target::AtMost(most) => ours <= most,
            Target::AtLeast(least) => ours >= least,
            Target::TimesFaster(times) => theirs >= ours * times,
            Target::TimesSlower(times) => ours <= theirs * times,
            Target::None => return Verdict::None,
        };
        if met { Verdict::Pass } else { Verdict::Miss }
    }

    fn describe(&self, target: Target) -> String {
        match target {
            Target::AtMost(most) => format!("at most {}", self.unit.write(most)),
            Target::AtLeast(least) => format!("at least {}", self.unit.write(least)),
            Target::TimesFaster(times) => format!("at least {times}x faster"),
            Target::TimesSlower(times) => format!("at most {times}x"),
            Target::None => String::new(),
        }
    }

    fn compare(&self, beside: &Baseline) -> String {
        let (ours, theirs) = (beside.against.unwrap_or(self.ours).median, beside.summary.median);
        match (self.unit, theirs > ours) {
            (Unit::PerSecond, _) => format!("{:.1}x as many", ours / theirs),
            (Unit::Megabytes, true) => format!("{:.1}x less", theirs / ours),
            (Unit::Megabytes, false) => format!("{:.1}x more", ours / theirs),
            (Unit::Milliseconds, true) => format!("{:.1}x faster", theirs / ours),
            (Unit::Milliseconds, false) => format!("{:.1}x as long", ours / theirs),
        }
    }

    fn number(&self, summary: Summary) -> String {
        let (median, worst) = (self.unit.write(summary.median), self.unit.write(summary.p90));
        format!("{median} ({} {worst}, n={})", self.unit.worst_name(), summary.runs)
    }
}

/// All results of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    /// In the order of measurement.
    pub(crate) figures: Vec<Figure>,
}

/// A general description of the machine.
#[derive(Debug, Serialize)]
struct Machine {
    processors: usize,
    kernel: String,
    load_at_the_end: String,
}

impl Report {
    /// A report on these results and this machine.
    pub(crate) fn new(figures: Vec<Figure>) -> Self {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let machine = Machine {
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: kernel.split('-').next().unwrap_or_default().to_owned(),
            load_at_the_end: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
        };
        Self { machine, figures }
    }

    pub(crate) fn to_json(&self) -> Result<String> {
        let mut value = serde_json::to_value(self)?;
        if let Some(figures) = value["figures"].as_array_mut() {
            for (json, figure) in figures.iter_mut().zip(&self.figures) {
                json["verdict"] = serde_json::to_value(figure.verdict())?;
            }
        }
        Ok(serde_json::to_string_pretty(&value)?)
    }

    pub(crate) fn to_markdown(&self) -> String {
        let mut text =
            String::from("| what | Caisson | beside | | ratio | target | |\n|---|---|---|---|---|---|---|\n");
        for figure in &self.figures {
            let (what, ours) = (&figure.what, figure.number(figure.ours));
            let mut first = format!("| {what} | {ours} |");
            if !matches!(figure.target, Target::None) || figure.beside.is_empty() {
                let (target, verdict) =
                    (figure.describe(figure.target), mark(figure.judge(figure.target, None)));
                let _ = writeln!(text, "{first} | | | {target} | {verdict} |");
                first = "| | |".into();
            }
            for beside in &figure.beside {
                let number = figure.number(beside.summary);
                let (ratio, target) = (figure.compare(beside), figure.describe(beside.target));
                let verdict = mark(figure.judge(beside.target, Some(beside)));
                let _ =
                    writeln!(text, "{first} {} | {number} | {ratio} | {target} | {verdict} |", beside.what);
                first = "| | |".into();
            }
        }
        text.push('\n');
        for figure in &self.figures {
            for note in &figure.notes {
                let _ = writeln!(text, "- {}: {note}", figure.name);
            }
        }
        let Machine { processors, kernel, load_at_the_end } = &self.machine;
        let _ = writeln!(
            text,
            "- machine: {processors} processors, Linux {kernel}, load at the end {load_at_the_end}"
        );
        text
    }
}

fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Miss => "**miss**",
        Verdict::None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ours: f64, theirs: f64, target: Target) -> Figure {
        let summary = |median| Summary { median, p90: median, runs: 30 };
        Figure {
            name: "cold",
            what: "cold sandbox".into(),
            unit: Unit::Milliseconds,
            ours: summary(ours),
            target: Target::AtMost(10.0),
            beside: vec![Baseline { what: "docker".into(), summary: summary(theirs), against: None, target }],
            notes: Vec::new(),
        }
    }

    #[test]
    fn one_missed_comparison_fails_the_result() {
        assert_eq!(figure(5.0, 100.0, Target::TimesFaster(20.0)).verdict(), Verdict::Pass);
        assert_eq!(figure(5.1, 100.0, Target::TimesFaster(20.0)).verdict(), Verdict::Miss);
        assert_eq!(figure(11.0, 1000.0, Target::TimesFaster(20.0)).verdict(), Verdict::Miss);
        assert_eq!(figure(5.0, 2.0, Target::TimesSlower(2.5)).verdict(), Verdict::Pass);
        assert_eq!(figure(5.0, 1.9, Target::TimesSlower(2.5)).verdict(), Verdict::Miss);
    }

    #[test]
    fn the_table_has_a_line_for_each_target() {
        let report = Report::new(vec![figure(5.0, 100.0, Target::TimesFaster(20.0))]);
        let table = report.to_markdown();
        assert!(table.contains("| at most 10.0 ms | pass |"), "{table}");
        assert!(table.contains("| 20.0x faster | at least 20x faster | pass |"), "{table}");
        assert!(report.to_json().unwrap().contains("\"verdict\": \"pass\""));
    }
}
