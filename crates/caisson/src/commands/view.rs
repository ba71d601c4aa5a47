//! Displays a job: lines of output, and on a terminal a progress bar below them; or JSON lines.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::interrupt::QUESTION;
use super::progress::Progress;
use crate::client::Client;
use crate::events;
use crate::terminal::{self, Colours};

/// How often the bar is redrawn.
const TICK: Duration = Duration::from_millis(200);
/// Moves to the start of the line and clears it.
pub(super) const CLEAR: &str = "\r\x1b[2K";

/// Displays a job.
pub(crate) enum View {
    /// Human-readable lines.
    People { progress: Progress, bar: Bar, question: Question },
    /// JSON lines.
    Programs,
}

/// Whether a question to the user is on the last line, where the bar would be.
pub(crate) type Question = Rc<Cell<bool>>;

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
pub(crate) enum Watched {
    /// The job has ended.
    Over,
    /// The reader of the output, such as `head`, has closed it.
    Unread,
}

/// Returns once the reader of a pipe on standard output has closed it.
async fn nobody_reads() {
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
            return Self::Programs;
        }
        let is_terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bar = if is_terminal { Bar::Hidden } else { Bar::None };
        Self::People { progress: Progress::new(Colours::of_output()), bar, question: Question::default() }
    }

    /// The flag that hides the bar while a question is shown.
    pub(crate) fn question(&self) -> Question {
        match self {
            Self::People { question, .. } => Rc::clone(question),
            Self::Programs => Question::default(),
        }
    }

    /// Prints a message in human-readable mode.
    pub(crate) fn say(&mut self, line: &str) {
        self.hide_bar();
        if matches!(self, Self::People { .. }) {
            let _ = super::print(&format!("{line}\n"));
        }
    }

    /// Prints where the job's result is.
    pub(crate) fn tell_result(&mut self, job: &str, path: &Path, bytes: u64) {
        match self {
            Self::People { .. } => self.say(&format!("result: {}", path.display())),
            Self::Programs => {
                self.show(&json!({"kind": "result", "data": {"job_id": job, "path": path, "bytes": bytes}}));
            }
        }
    }

    /// In JSON mode, prints the server's answer that says the job must wait. In the other mode its hint is printed
    /// elsewhere.
    pub(crate) fn tell_waiting(&mut self, accepted: &Value) {
        if matches!(self, Self::Programs) {
            self.show(&json!({"kind": "waiting", "data": accepted}));
        }
    }

    pub(crate) fn show(&mut self, event: &Value) {
        let text = match self {
            Self::People { progress, .. } => progress.show(event),
            Self::Programs => format!("{event}\n"),
        };
        if text.is_empty() {
            return;
        }
        self.hide_bar();
        let is_asked = self.question().get();
        if is_asked {
            paint(CLEAR);
        }
        // A closed output pipe does not stop the job.
        let _ = super::print(&text);
        if is_asked {
            paint(QUESTION);
        }
    }

    /// Shows all events of a job until it ends or the reader closes the output.
    pub(crate) async fn watch_while_read(&mut self, client: &Client, path: &str) -> Result<Watched> {
        tokio::select! {
            ended = self.watch(client, path) => ended.map(|()| Watched::Over),
            () = nobody_reads() => Ok(Watched::Unread),
        }
    }

    /// Shows all events of a job until it ends.
    pub(crate) async fn watch(&mut self, client: &Client, path: &str) -> Result<()> {
        // Only the bar shows model text before the answer is complete.
        let wants_words = matches!(self, Self::People { bar: Bar::Hidden | Bar::Painted, .. });
        let path = if wants_words { format!("{path}?deltas=true") } else { path.to_owned() };
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
        if let Self::People { progress, bar: bar @ (Bar::Hidden | Bar::Painted), question } = self
            && !question.get()
        {
            let line = progress.bar(usize::from(terminal::size().columns));
            paint(&format!("{CLEAR}{line}"));
            *bar = Bar::Painted;
        }
    }

    /// Clears the bar, so that lines can be printed.
    pub(crate) fn hide_bar(&mut self) {
        if let Self::People { bar: bar @ Bar::Painted, .. } = self {
            paint(CLEAR);
            *bar = Bar::Hidden;
        }
    }
}

/// Writes on the last line of the terminal. Ignores errors, since the terminal may be closed.
fn paint(text: &str) {
    let mut error = std::io::stderr().lock();
    let _ = write!(error, "{text}").and_then(|()| error.flush());
}
