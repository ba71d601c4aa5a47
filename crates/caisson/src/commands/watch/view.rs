//! Displays a job: lines of output, and on a terminal a progress bar below them; or JSON lines.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::progress::Progress;
use super::prompt::{PROMPT, PromptFlag};
use crate::client::{Client, events};
use crate::output::print;
use crate::output::terminal::{self, CLEAR_LINE, Colours};

/// How often the bar is redrawn.
const TICK: Duration = Duration::from_millis(200);

/// Displays a job.
pub(crate) enum View {
    /// Human-readable lines.
    Text { progress: Progress, bar: Bar, question: PromptFlag },
    /// JSON lines.
    Json,
}

/// The progress bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bar {
    /// No terminal: no bar.
    None,
    /// On a terminal, not drawn at the moment.
    Hidden,
    /// Drawn.
    Painted,
}

/// Why watching a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchEnd {
    /// The job has ended.
    JobEnded,
    /// The reader of the output, such as `head`, has closed it.
    OutputClosed,
}

/// Returns once the reader of a pipe on standard output has closed it.
pub(crate) async fn output_closed() {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        let out = rustix::stdio::stdout();
        let mut wanted = [PollFd::new(&out, PollFlags::empty())];
        // Reports errors even though no events are requested; does not block.
        let found = poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if found.is_ok() && wanted[0].revents().intersects(PollFlags::ERR) {
            return;
        }
    }
}

impl View {
    pub(crate) fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        let is_terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bar = if is_terminal { Bar::Hidden } else { Bar::None };
        Self::Text { progress: Progress::new(Colours::of_output()), bar, question: PromptFlag::default() }
    }

    /// The flag that hides the bar while a question is shown.
    pub(crate) fn question(&self) -> PromptFlag {
        match self {
            Self::Text { question, .. } => Rc::clone(question),
            Self::Json => PromptFlag::default(),
        }
    }

    /// Prints a message in human-readable mode.
    pub(crate) fn say(&mut self, line: &str) {
        self.hide_bar();
        if matches!(self, Self::Text { .. }) {
            let _ = print(&format!("{line}\n"));
        }
    }

    /// Prints where the job's result is.
    pub(crate) fn show_result(&mut self, job: &str, path: &Path, bytes: u64) {
        match self {
            Self::Text { .. } => self.say(&format!("result: {}", path.display())),
            Self::Json => {
                self.show(&json!({"kind": "result", "data": {"job_id": job, "path": path, "bytes": bytes}}));
            }
        }
    }

    /// In JSON mode, prints the server's answer that says the job must wait. In the other mode its hint is printed
    /// elsewhere.
    pub(crate) fn show_waiting(&mut self, accepted: &Value) {
        if matches!(self, Self::Json) {
            self.show(&json!({"kind": "waiting", "data": accepted}));
        }
    }

    pub(crate) fn show(&mut self, event: &Value) {
        let text = match self {
            Self::Text { progress, .. } => progress.show(event),
            Self::Json => format!("{event}\n"),
        };
        if text.is_empty() {
            return;
        }
        self.hide_bar();
        let has_prompt = self.question().get();
        if has_prompt {
            paint(CLEAR_LINE);
        }
        // A closed output pipe does not stop the job.
        let _ = print(&text);
        if has_prompt {
            paint(PROMPT);
        }
    }

    /// Shows all events of a job until it ends or the reader closes the output.
    pub(crate) async fn watch_until_closed(&mut self, client: &Client, path: &str) -> Result<WatchEnd> {
        tokio::select! {
            ended = self.watch(client, path) => ended.map(|()| WatchEnd::JobEnded),
            () = output_closed() => Ok(WatchEnd::OutputClosed),
        }
    }

    /// Shows all events of a job until it ends.
    pub(crate) async fn watch(&mut self, client: &Client, path: &str) -> Result<()> {
        // Only the bar shows model text before the answer is complete.
        let wants_deltas = matches!(self, Self::Text { bar: Bar::Hidden | Bar::Painted, .. });
        let path = if wants_deltas { format!("{path}?deltas=true") } else { path.to_owned() };
        let view = RefCell::new(self);
        let mut following =
            std::pin::pin!(events::follow(client, &path, |event| view.borrow_mut().show(event)));
        let mut ticks = tokio::time::interval(TICK);
        // The first tick is immediate; a job that ends before the next needs no bar.
        ticks.tick().await;
        loop {
            tokio::select! {
                ended = following.as_mut() => {
                    view.borrow_mut().hide_bar();
                    return ended;
                }
                _ = ticks.tick() => view.borrow_mut().paint_bar(),
            }
        }
    }

    fn paint_bar(&mut self) {
        if let Self::Text { progress, bar: bar @ (Bar::Hidden | Bar::Painted), question } = self
            && !question.get()
        {
            let line = progress.bar(usize::from(terminal::size().columns));
            paint(&format!("{CLEAR_LINE}{line}"));
            *bar = Bar::Painted;
        }
    }

    /// Clears the bar, so that lines can be printed.
    pub(crate) fn hide_bar(&mut self) {
        if let Self::Text { bar: bar @ Bar::Painted, .. } = self {
            paint(CLEAR_LINE);
            *bar = Bar::Hidden;
        }
    }
}

/// Writes on the last line of the terminal. Ignores errors, since the terminal may be closed.
fn paint(text: &str) {
    let mut error = std::io::stderr().lock();
    let _ = write!(error, "{text}").and_then(|()| error.flush());
}
