//! Shows the progress of an image build: a bar on a terminal, otherwise lines, or JSON for programs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use image::{BuildEvent, Stage};

use super::duration_text;
use crate::terminal::{self, harmless};

/// How often to print a line without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

enum Form {
    Json,
    Bar,
    Lines,
}

/// Turns build events into output.
pub(crate) struct Progress {
    form: Form,
    started: Instant,
    stage_started: Instant,
    last_line: Instant,
    bar_shown: bool,
}

impl Progress {
    pub(crate) fn new(json: bool) -> Self {
        let form = match json {
            true => Form::Json,
            false if std::io::stderr().is_terminal() => Form::Bar,
            false => Form::Lines,
        };
        let now = Instant::now();
        Self { form, started: now, stage_started: now, last_line: now, bar_shown: false }
    }

    pub(crate) fn show(&mut self, event: &BuildEvent) {
        if matches!(event, BuildEvent::Started { .. }) {
            self.stage_started = Instant::now();
            self.last_line = Instant::now();
        }
        match self.form {
            Form::Json => {
                let line = serde_json::to_string(event).unwrap_or_default() + "\n";
                // If the reader of the output is gone, the build goes on.
                let _ = super::print(&line);
            }
            Form::Bar => self.show_bar(event),
            Form::Lines => {
                let is_progress = matches!(event, BuildEvent::Progress { .. });
                if !is_progress || self.last_line.elapsed() >= LINE_INTERVAL {
                    self.last_line = Instant::now();
                    super::say(&line_of(event, self.elapsed()));
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

fn place(stage: Stage) -> String {
    format!("[{}/{}] {:<8}", stage.number(), Stage::ALL.len(), stage.name())
}

fn bar(stage: Stage, percent: Option<u8>, doing: &str, elapsed: Duration) -> String {
    let filled = terminal::bar(percent.unwrap_or(0).into(), 100);
    let percent = percent.map_or_else(|| "    ".to_owned(), |percent| format!("{percent:>3}%"));
    format!("{} {filled} {percent}  {}  {}", place(stage), time(elapsed), harmless(doing))
}

fn line_of(event: &BuildEvent, total: Duration) -> String {
    match event {
        BuildEvent::Started { stage } => format!("{} ...", place(*stage)),
        BuildEvent::Cached { stage } => format!("{} was done before", place(*stage)),
        BuildEvent::Progress { stage, percent, doing } => {
            let percent = percent.map(|percent| format!("{percent}%  ")).unwrap_or_default();
            format!("{} {percent}{}  ({} so far)", place(*stage), harmless(doing), time(total))
        }
        BuildEvent::Done { stage, elapsed } => format!("{} done in {}", place(*stage), time(*elapsed)),
        BuildEvent::Note { text } => harmless(text),
    }
}

fn time(duration: Duration) -> String {
    duration_text(Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_stage_share_and_time() {
        let line = bar(Stage::Packages, Some(50), "installing curl", Duration::from_secs(61));
        assert_eq!(line, "[2/6] packages [##########----------]  50%  1m 01s  installing curl");
        let line = line_of(&BuildEvent::Cached { stage: Stage::Base }, Duration::ZERO);
        assert_eq!(line, "[1/6] base     was done before");
    }
}
