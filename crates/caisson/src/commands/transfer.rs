//! The progress of a file transfer: on a terminal, a line that disappears at the end; otherwise nothing.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use reqwest::Method;

use crate::client::Client;
use crate::output::say;
use crate::output::size_text;
use crate::output::terminal::{self, CLEAR_LINE, bar, strip_control_characters};

/// The minimum time between two updates.
const TICK: Duration = Duration::from_millis(200);

/// Downloads a file from a path of the server.
pub(super) async fn receive(client: &Client, path: &str, name: &str, into: &mut impl Write) -> Result<u64> {
    let response = client.send(client.request(Method::GET, path)).await?;
    let transfer = Transfer::receiving(response.content_length());
    transfer.of(name);
    let mut body = response.bytes_stream();
    let mut count = 0;
    while let Some(bytes) = body.next().await {
        let bytes = bytes.context("reading the result")?;
        into.write_all(&bytes).context("writing the result")?;
        transfer.add(bytes.len());
        count += bytes.len() as u64;
    }
    into.flush().context("writing the result")?;
    Ok(count)
}

/// A file transfer. Clones share the progress line, which disappears with the last of them.
#[derive(Clone)]
pub(crate) struct Transfer(Arc<Mutex<Line>>);

struct Line {
    doing: &'static str,
    name: String,
    moved_bytes: u64,
    /// `None` if unknown.
    total_bytes: Option<u64>,
    begun: Instant,
    painted: Option<Instant>,
    has_terminal: bool,
}

impl Transfer {
    /// An upload of `total_bytes`.
    pub(crate) fn sending(total_bytes: u64) -> Self {
        Self::begin("sending", Some(total_bytes))
    }

    /// A download of `total_bytes`, if known.
    pub(crate) fn receiving(total_bytes: Option<u64>) -> Self {
        Self::begin("receiving", total_bytes)
    }

    /// A download of unknown size.
    pub(crate) fn receiving_uncounted() -> Self {
        Self::receiving(None)
    }

    fn begin(doing: &'static str, total_bytes: Option<u64>) -> Self {
        let line = Line {
            doing,
            name: String::new(),
            moved_bytes: 0,
            total_bytes,
            begun: Instant::now(),
            painted: None,
            has_terminal: std::io::stderr().is_terminal(),
        };
        Self(Arc::new(Mutex::new(line)))
    }

    /// Sets the name of the current file.
    pub(crate) fn of(&self, name: &str) {
        self.with(|line| {
            line.name = strip_control_characters(name);
            line.paint();
        });
    }

    /// Counts transferred bytes.
    pub(crate) fn add(&self, bytes: usize) {
        self.with(|line| {
            line.moved_bytes += bytes as u64;
            line.paint();
        });
    }

    /// Prints a message above the line.
    pub(crate) fn say(&self, words: &str) {
        self.with(Line::clear);
        say(words);
    }

    fn with(&self, change: impl FnOnce(&mut Line)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Line {
    fn paint(&mut self) {
        if !self.has_terminal || self.painted.is_some_and(|painted| painted.elapsed() < TICK) {
            return;
        }
        let width = usize::from(terminal::size_of(std::io::stderr()).columns).saturating_sub(1);
        let line: String = self.text(self.begun.elapsed()).chars().take(width).collect();
        let mut err = std::io::stderr().lock();
        // A closed terminal is not an error.
        let _ = write!(err, "{CLEAR_LINE}{line}").and_then(|()| err.flush());
        self.painted = Some(Instant::now());
    }

    fn text(&self, elapsed: Duration) -> String {
        let moved = size_text(self.moved_bytes);
        let how_far = match self.total_bytes {
            Some(total) => {
                // An empty file is complete.
                let bar = if total == 0 { bar(1, 1) } else { bar(self.moved_bytes, total) };
                format!("{bar} {moved} of {}", size_text(total))
            }
            None => moved,
        };
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        let pace = size_text(self.moved_bytes.saturating_mul(1000) / millis);
        format!("{} {how_far}  {pace}/s  {}", self.doing, self.name)
    }

    fn clear(&mut self) {
        if self.painted.take().is_some() {
            let mut err = std::io::stderr().lock();
            let _ = write!(err, "{CLEAR_LINE}").and_then(|()| err.flush());
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_line_shows_progress_speed_and_name() {
        let transfer = Transfer::sending(4 << 20);
        transfer.of("a\u{1b}[2J.txt");
        transfer.add(1 << 20);
        let text = |transfer: &Transfer| {
            let mut text = String::new();
            transfer.with(|line| text = line.text(Duration::from_millis(500)));
            text
        };
        assert_eq!(text(&transfer), "sending [#####---------------] 1.0 MiB of 4.0 MiB  2.0 MiB/s  a[2J.txt");
        transfer.add(9 << 20);
        assert!(
            text(&transfer).contains("[####################] 10.0 MiB of 4.0 MiB"),
            "{}",
            text(&transfer)
        );
        let unknown = Transfer::receiving_uncounted();
        unknown.add(1 << 20);
        assert_eq!(text(&unknown), "receiving 1.0 MiB  2.0 MiB/s  ");
        assert!(text(&Transfer::sending(0)).contains("[####################] 0"));
    }
}
