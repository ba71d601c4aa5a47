//! Shows the progress of an image build: a bar on a terminal, otherwise lines, or JSON for programs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use image::{BuildEvent, Stage};

use crate::output::terminal::{self, strip_control_characters};
use crate::output::{duration_text, print, say};

/// How often to print a line without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// How progress is shown.
enum ProgressStyle {
    Json,
    Bar,
    Lines,
}

/// Turns build events into output.
pub(crate) struct Progress {
    style: ProgressStyle,
    started: Instant,
    stage_started: Instant,
    last_line: Instant,
    bar_shown: bool,
}

impl Progress {
    pub(crate) fn new(json: bool) -> Self {
        let style = match json {
            true => ProgressStyle::Json,
            false if std::io::stderr().is_terminal() => ProgressStyle::Bar,
            false => ProgressStyle::Lines,
        };
        let now = Instant::now();
        Self { style, started: now, stage_started: now, last_line: now, bar_shown: false }
    }

    pub(crate) fn show(&mut self, event: &BuildEvent) {
        if matches!(event, BuildEvent::Started { .. }) {
            self.stage_started = Instant::now();
            self.last_line = Instant::now();
        }
        match self.style {
            ProgressStyle::Json => {
                let line = serde_json::to_string(event).unwrap_or_default() + "\n";
                // If the reader of the output is gone, the build goes on.
                let _ = print(&line);
            }
            ProgressStyle::Bar => self.show_bar(event),
            ProgressStyle::Lines => {
                let is_progress = matches!(event, BuildEvent::Progress { .. });
                if !is_progress || self.last_line.elapsed() >= LINE_INTERVAL {
                    self.last_line = Instant::now();
                    say(&line_of(event, self.elapsed()));
                }
            }
        }
    }

    fn show_bar(&mut self, event: &BuildEvent) {
        self.clear();
        match event {
            BuildEvent::Progress { stage, percent, doing } => {
                let width = usize::from(terminal::size().columns).saturating_sub(1);
                let line = bar(*stage, *percent, doing, self.stage_started.elapsed());
                eprint!("{}", line.chars().take(width).collect::<String>());
                self.bar_shown = true;
            }
            BuildEvent::Started { stage } => {
                eprint!("{}", bar(*stage, None, "", Duration::ZERO));
                self.bar_shown = true;
            }
            other => eprintln!("{}", line_of(other, self.elapsed())),
        }
        let _ = std::io::stderr().flush();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.bar_shown) {
            eprint!("\r\x1b[K");
        }
    }

    /// Clears the bar before other output.
    pub(crate) fn end(&mut self) {
        self.clear();
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

fn stage_label(stage: Stage) -> String {
    format!("[{}/{}] {:<8}", stage.number(), Stage::ALL.len(), stage.name())
}

fn bar(stage: Stage, percent: Option<u8>, doing: &str, elapsed: Duration) -> String {
    let filled = terminal::bar(percent.unwrap_or(0).into(), 100);
    let percent = percent.map_or_else(|| "    ".to_owned(), |percent| format!("{percent:>3}%"));
    format!(
        "{} {filled} {percent}  {}  {}",
        stage_label(stage),
        time(elapsed),
        strip_control_characters(doing)
    )
}

fn line_of(event: &BuildEvent, total: Duration) -> String {
    match event {
        BuildEvent::Started { stage } => format!("{} ...", stage_label(*stage)),
        BuildEvent::Cached { stage } => format!("{} already done", stage_label(*stage)),
        BuildEvent::Progress { stage, percent, doing } => {
            let percent = percent.map(|percent| format!("{percent}%  ")).unwrap_or_default();
            format!(
                "{} {percent}{}  ({} so far)",
                stage_label(*stage),
                strip_control_characters(doing),
                time(total)
            )
        }
        BuildEvent::Done { stage, elapsed } => format!("{} done in {}", stage_label(*stage), time(*elapsed)),
        BuildEvent::Note { text } => strip_control_characters(text),
    }
}

fn time(duration: Duration) -> String {
    duration_text(Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_stage_percentage_and_time() {
        let line = bar(Stage::Packages, Some(50), "installing curl", Duration::from_secs(61));
        assert_eq!(line, "[2/6] packages [##########----------]  50%  1m 01s  installing curl");
        let line = line_of(&BuildEvent::Cached { stage: Stage::Base }, Duration::ZERO);
        assert_eq!(line, "[1/6] base     already done");
    }
}
