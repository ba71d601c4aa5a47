//! The terminal: whether there is one, its size, and raw mode.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::config::client_environment;

/// Whether to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    /// On a terminal.
    On,
    /// Without a terminal, or if `NO_COLOR` is set.
    Off,
}

impl Colours {
    /// The setting for standard output.
    pub(crate) fn of_output() -> Self {
        if std::io::stdout().is_terminal() && !client_environment::no_colour() { Self::On } else { Self::Off }
    }

    /// Colours a text, given an ANSI colour code.
    pub(crate) fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::On => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Off => text.to_owned(),
        }
    }
}

/// Whether the user can be asked questions.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

/// The size of the terminal on standard output, or a default.
pub(crate) fn size() -> Size {
    size_of(rustix::stdio::stdout())
}

/// The size of a terminal, or a default.
pub(crate) fn size_of(terminal: impl AsFd) -> Size {
    match tcgetwinsize(terminal) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => Size { rows: size.ws_row, columns: size.ws_col },
        _ => Size { rows: 24, columns: 80 },
    }
}

/// Moves to the start of the line and clears it.
pub(crate) const CLEAR_LINE: &str = "\r\x1b[2K";

/// Width of the progress bar in characters.
const BAR: u64 = 20;

/// A progress bar such as `[#####---------------]`.
pub(crate) fn bar(done: u64, all: u64) -> String {
    let filled = (done.min(all).saturating_mul(BAR)).checked_div(all).unwrap_or(0);
    let part = |mark: &str, count: u64| mark.repeat(usize::try_from(count).unwrap_or(0));
    format!("[{}{}]", part("#", filled), part("-", BAR - filled))
}

/// Standard input in raw mode: every key goes to the sandbox. Dropping it restores the previous mode.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter() -> Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin()).context("reading the mode of the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)
            .context("setting the mode of the terminal")?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A closed terminal is not an error.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Standard input that does not show what is typed. Dropping it restores the previous mode.
pub(crate) struct HiddenInput {
    before: Termios,
}

impl HiddenInput {
    pub(crate) fn enter() -> Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin()).context("reading the mode of the terminal")?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &hidden)
            .context("setting the mode of the terminal")?;
        Ok(Self { before })
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // A closed terminal is not an error.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Removes control characters, so that a job's output cannot manipulate the reader's terminal.
pub(crate) fn strip_control_characters(text: &str) -> String {
    text.chars().filter(|c| *c == '\t' || !c.is_control()).collect()
}
