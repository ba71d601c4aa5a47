//! The terminal in front: whether there is one, how large it is, and its raw mode.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::config_client;

/// Whether lines have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    /// On a terminal.
    On,
    /// Elsewhere, and where `NO_COLOR` says so.
    Off,
}

impl Colours {
    /// Those for standard output.
    pub(crate) fn of_output() -> Self {
        if std::io::stdout().is_terminal() && !config_client::no_colour() { Self::On } else { Self::Off }
    }

    /// Paints a text, by the number of a colour.
    pub(crate) fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::On => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Off => text.to_owned(),
        }
    }
}

/// Whether a person can be asked.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

/// The size of the terminal on standard output, or the usual one.
pub(crate) fn size() -> Size {
    size_of(rustix::stdio::stdout())
}

/// The size of a terminal, or the usual one.
pub(crate) fn size_of(terminal: impl AsFd) -> Size {
    match tcgetwinsize(terminal) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => Size { rows: size.ws_row, columns: size.ws_col },
        _ => Size { rows: 24, columns: 80 },
    }
}

/// Characters between the brackets of a progress bar.
const BAR: u64 = 20;

/// A progress bar such as `[#####---------------]`.
pub(crate) fn bar(done: u64, all: u64) -> String {
    let filled = (done.min(all).saturating_mul(BAR)).checked_div(all).unwrap_or(0);
    let part = |mark: &str, count: u64| mark.repeat(usize::try_from(count).unwrap_or(0));
    format!("[{}{}]", part("#", filled), part("-", BAR - filled))
}

/// Standard input in raw mode: every key goes to the other side. Put back when it goes out of scope.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Switches it on.
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
        // A terminal that is gone needs no mode.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}

/// What a job says must not be able to steer the terminal of whoever reads it.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| *c == '\t' || !c.is_control()).collect()
}
