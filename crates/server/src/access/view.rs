//! The views of a job that shared links show.

use std::fmt;
use std::str::FromStr;

/// A view of a job that can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Desktop,
    Terminal,
    Files,
    Output,
    Events,
    Notebook,
    Port(u16),
}

impl View {
    /// The list of views for error messages.
    pub(crate) const NAMES: &str =
        "desktop, terminal, files, output, events, notebook, or a port such as 5173";
}

impl fmt::Display for View {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Desktop => "desktop",
            Self::Terminal => "terminal",
            Self::Files => "files",
            Self::Output => "output",
            Self::Events => "events",
            Self::Notebook => "notebook",
            Self::Port(port) => return write!(out, "{port}"),
        };
        out.write_str(name)
    }
}

impl FromStr for View {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "desktop" => Self::Desktop,
            "terminal" => Self::Terminal,
            "files" => Self::Files,
            "output" => Self::Output,
            "events" => Self::Events,
            "notebook" => Self::Notebook,
            other => match other.parse() {
                // Digits alone: no sign and no leading zero.
                Ok(port @ 1..) if other.starts_with(|first| matches!(first, '1'..='9')) => Self::Port(port),
                _ => {
                    return Err(format!(
                        "`{}` is not a view; expected one of {}",
                        other.escape_debug(),
                        Self::NAMES
                    ));
                }
            },
        })
    }
}
