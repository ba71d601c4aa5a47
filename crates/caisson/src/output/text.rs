//! Prints text, and formats values for people.

use std::io::Write;

use anyhow::{Context, Result};
use serde_json::Value;

/// Prints a command's output. A closed output pipe, as with `head`, is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("writing the output")
        }
        _ => Ok(()),
    }
}

/// Prints a JSON document.
pub(crate) fn print_json(document: &Value) -> Result<()> {
    print(&format!("{document:#}\n"))
}

/// Prints a message on standard error.
pub(crate) fn say(line: &str) {
    // A closed terminal is not an error.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A value as text; empty if there is none.
pub(crate) fn value_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A timestamp without fractions of a second.
pub(crate) fn time_text(moment: &Value) -> String {
    let moment = moment.as_str().unwrap_or_default();
    moment.get(..19).unwrap_or(moment).replace('T', " ")
}

/// A human-readable duration.
pub(crate) fn duration_text(milliseconds: Option<u64>) -> String {
    match milliseconds {
        None => String::new(),
        Some(milliseconds @ ..1_000) => format!("{milliseconds} ms"),
        Some(milliseconds @ ..60_000) => format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100),
        Some(milliseconds) => {
            let seconds = milliseconds / 1000;
            match seconds / 3600 {
                0 => format!("{}m {:02}s", seconds / 60, seconds % 60),
                hours => format!("{hours}h {:02}m", seconds % 3600 / 60),
            }
        }
    }
}

/// A human-readable size.
pub(crate) fn size_text(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes < 1024.0 { format!("{mebibytes:.1} MiB") } else { format!("{:.1} GiB", mebibytes / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spans_are_told_in_two_units_at_most() {
        let shown = [Some(5), Some(1_234), Some(61_000), Some(3_660_000), None].map(duration_text);
        assert_eq!(shown, ["5 ms", "1.2 s", "1m 01s", "1h 01m", ""]);
    }

    #[test]
    fn sizes_are_told_in_one_unit() {
        assert_eq!([1 << 20, 1536 << 20].map(size_text), ["1.0 MiB", "1.5 GiB"]);
    }
}
