//! What the person or program in front sees of a job: lines, and on a terminal a bar below them.

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

/// How often the bar is painted anew.
const TICK: Duration = Duration::from_millis(200);
/// Goes to the start of the line and clears it.
pub(super) const CLEAR: &str = "\r\x1b[2K";

/// Shows a job.
pub(crate) enum View {
    /// Lines for people.
    People { progress: Progress, bar: Bar, question: Question },
    /// JSON lines.
    Programs,
}

/// Whether a person is being asked something on the last line, where the bar would be.
pub(crate) type Question = Rc<Cell<bool>>;

/// The line at the bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bar {
    /// No terminal: no bar.
    None,
    /// On a terminal, not painted now.
    Hidden,
    /// Painted.
    Painted,
}

/// How watching a job came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The job is over.
    Over,
    /// Whoever read the output, such as `head`, has seen enough.
    Unread,
}

/// Returns once the reader of a pipe on standard output has gone.
async fn nobody_reads() {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        let out = rustix::stdio::stdout();
        let mut wanted = [PollFd::new(&out, PollFlags::empty())];
        // Errors are told whether asked for or not; without waiting.
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

    /// Set while a person is asked: the bar stays away.
    pub(crate) fn question(&self) -> Question {
        match self {
            Self::People { question, .. } => Rc::clone(question),
            Self::Programs => Question::default(),
        }
    }

    /// Says something to people.
    pub(crate) fn say(&mut self, line: &str) {
        self.hide_bar();
        if matches!(self, Self::People { .. }) {
            let _ = super::print(&format!("{line}\n"));
        }
    }

    /// Says where the result of the job is.
    pub(crate) fn tell_result(&mut self, job: &str, path: &Path, bytes: u64) {
        match self {
            Self::People { .. } => self.say(&format!("result: {}", path.display())),
            Self::Programs => {
                self.show(&json!({"kind": "result", "data": {"job_id": job, "path": path, "bytes": bytes}}));
            }
        }
    }

    /// Says to programs that the job waits, with what the server has answered. People are told by the hint in it.
    pub(crate) fn tell_waiting(&mut self, accepted: &Value) {
        if matches!(self, Self::Programs) {
            self.show(&json!({"kind": "waiting", "data": accepted}));
        }
    }

    /// Shows an event.
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
        // A reader that has gone does not stop the job.
        let _ = super::print(&text);
        if is_asked {
            paint(QUESTION);
        }
    }

    /// Shows all events of a job until it is over, or until nobody reads them any more.
    pub(crate) async fn watch_while_read(&mut self, client: &Client, path: &str) -> Result<Watched> {
        tokio::select! {
            ended = self.watch(client, path) => ended.map(|()| Watched::Over),
            () = nobody_reads() => Ok(Watched::Unread),
        }
    }

    /// Shows all events of a job until it is over.
    pub(crate) async fn watch(&mut self, client: &Client, path: &str) -> Result<()> {
        // Only the bar shows words before the answer is there.
        let wants_words = matches!(self, Self::People { bar: Bar::Hidden | Bar::Painted, .. });
        let path = if wants_words { format!("{path}?deltas=true") } else { path.to_owned() };
        let view = RefCell::new(self);
        let mut following =
            std::pin::pin!(events::follow(client, &path, |event| view.borrow_mut().show(event)));
        let mut ticks = tokio::time::interval(TICK);
        // The first tick comes at once; a job that is over sooner needs no bar.
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

    /// Takes the bar away, so that lines can be printed.
    pub(crate) fn hide_bar(&mut self) {
        if let Self::People { bar: bar @ Bar::Painted, .. } = self {
            paint(CLEAR);
            *bar = Bar::Hidden;
        }
    }
}

/// Writes on the last line of the terminal. One that is gone needs nothing.
fn paint(text: &str) {
    let mut error = std::io::stderr().lock();
    let _ = write!(error, "{text}").and_then(|()| error.flush());
}
