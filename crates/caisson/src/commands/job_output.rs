//! What a job printed: the output of its steps, its notebook cells and its agent's commands.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::watch::view::{WatchEnd, output_closed};
use crate::client::{Client, events};
use crate::output::say;
use crate::output::terminal::strip_control_characters;

/// A standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

/// What was printed to one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Output {
    stream: Stream,
    bytes: Vec<u8>,
}

/// Prints the output of a job: all of it, or the last lines of it so far, and then what follows until the job ends.
pub(super) async fn show(client: &Client, id: &str, tail: Option<usize>, follow: bool) -> Result<WatchEnd> {
    let path = format!("/v1/jobs/{id}/events");
    let mut printer = Printer::new();
    let mut position = 0;
    // Following alone starts at the beginning.
    if !follow || tail.is_some() {
        let mut last_lines = tail.map(LastLines::new);
        while let Some((events, last)) = events::page(client, &path, position).await? {
            for event in &events {
                printer.note(event);
                let Some(output) = output_of(event) else { continue };
                match &mut last_lines {
                    Some(lines) => lines.add(&output),
                    None if printer.print(&output)? => {}
                    None => return Ok(WatchEnd::OutputClosed),
                }
            }
            position = last;
        }
        for line in last_lines.into_iter().flat_map(|lines| lines.lines) {
            if !printer.print(&line)? {
                return Ok(WatchEnd::OutputClosed);
            }
        }
    }
    if follow {
        let following = events::follow_after(client, &path, position, |event| {
            printer.note(event);
            if let Some(output) = output_of(event) {
                // A closed output ends the wait below.
                let _ = printer.print(&output);
            }
        });
        tokio::select! {
            ended = following => ended?,
            () = output_closed() => return Ok(WatchEnd::OutputClosed),
        }
    }
    if let Some(hint) = printer.hint(id) {
        say(&hint);
    }
    Ok(WatchEnd::JobEnded)
}

/// What an event printed, if anything. Calls of API clients do not count, as with `docker exec`.
fn output_of(event: &Value) -> Option<Output> {
    if event["call"]["id"].as_str().is_none_or(|call| call.starts_with("api-")) {
        return None;
    }
    let data = &event["data"];
    let (stream, bytes) = match event["kind"].as_str()? {
        "call_output" => {
            let text = data["text"].as_str()?;
            let bytes = match data["base64"] == true {
                true => STANDARD.decode(text).ok()?,
                false => text.as_bytes().to_vec(),
            };
            let is_error = data["stream"] == "stderr";
            (if is_error { Stream::Stderr } else { Stream::Stdout }, bytes)
        }
        "call_output_dropped" => {
            let text = format!("[{} bytes of output were dropped]\n", data["bytes"]);
            (Stream::Stderr, text.into_bytes())
        }
        "call_display" => {
            let text = data["text"].as_str().filter(|text| !text.is_empty())?;
            let stream = if data["error"].is_object() { Stream::Stderr } else { Stream::Stdout };
            (stream, format!("{text}\n").into_bytes())
        }
        _ => return None,
    };
    Some(Output { stream, bytes })
}

/// Prints output to the standard streams of this process.
struct Printer {
    is_stdout_terminal: bool,
    is_stderr_terminal: bool,
    has_output: bool,
    has_lost_output: bool,
}

impl Printer {
    fn new() -> Self {
        Self {
            is_stdout_terminal: io::stdout().is_terminal(),
            is_stderr_terminal: io::stderr().is_terminal(),
            has_output: false,
            has_lost_output: false,
        }
    }

    /// Notes whether the job printed anything, and whether it is still known.
    fn note(&mut self, event: &Value) {
        self.has_output |= output_of(event).is_some();
        let is_output = event["data"]["kind"].as_str().is_some_and(|kind| kind.starts_with("call_output"));
        self.has_lost_output |= event["kind"] == "payload_dropped" && is_output;
    }

    /// Prints output; returns `false` if the reader has closed it.
    fn print(&self, output: &Output) -> Result<bool> {
        let written = match output.stream {
            Stream::Stdout => write(&mut io::stdout().lock(), &output.bytes, self.is_stdout_terminal),
            Stream::Stderr => write(&mut io::stderr().lock(), &output.bytes, self.is_stderr_terminal),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true).context("writing the output"),
        }
    }

    /// What to tell the user if output is missing.
    fn hint(&self, id: &str) -> Option<String> {
        let events = format!("`caisson logs {id} --events` shows what it did");
        if self.has_lost_output {
            Some(format!("output of this job was deleted because of its age; {events}"))
        } else {
            (!self.has_output).then(|| format!("this job has printed nothing; {events}"))
        }
    }
}

fn write(to: &mut impl Write, bytes: &[u8], is_terminal: bool) -> io::Result<()> {
    let bytes = if is_terminal { Cow::Owned(for_terminal(bytes)) } else { Cow::Borrowed(bytes) };
    to.write_all(&bytes).and_then(|()| to.flush())
}

/// Removes what could manipulate the reader's terminal.
fn for_terminal(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<String> = text.split('\n').map(strip_control_characters).collect();
    lines.join("\n").into_bytes()
}

/// The last lines of output, of both streams together.
struct LastLines {
    limit: usize,
    lines: VecDeque<Output>,
}

impl LastLines {
    fn new(limit: usize) -> Self {
        Self { limit, lines: VecDeque::new() }
    }

    fn add(&mut self, output: &Output) {
        for bytes in output.bytes.split_inclusive(|byte| *byte == b'\n') {
            let last = self.lines.iter_mut().rev().find(|line| line.stream == output.stream);
            match last.filter(|line| line.bytes.last() != Some(&b'\n')) {
                Some(unfinished) => unfinished.bytes.extend_from_slice(bytes),
                None => self.lines.push_back(Output { stream: output.stream, bytes: bytes.to_vec() }),
            }
            if self.lines.len() > self.limit {
                self.lines.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(call: &str, kind: &str, data: &Value) -> Option<(Stream, String)> {
        let event = json!({"kind": kind, "call": {"id": call, "attempt": 1}, "data": data});
        output_of(&event).map(|output| (output.stream, String::from_utf8(output.bytes).unwrap()))
    }

    #[test]
    fn output_goes_to_the_stream_that_it_was_printed_to() {
        let of = |stream: &str| json!({"stream": stream, "text": "a\u{1b}[1m"});
        for (stream, expected) in
            [("stdout", Stream::Stdout), ("stderr", Stream::Stderr), ("terminal", Stream::Stdout)]
        {
            let text = "a\u{1b}[1m".to_owned();
            assert_eq!(printed("step-1", "call_output", &of(stream)), Some((expected, text)));
        }
        let binary = json!({"stream": "stdout", "text": "aGk=", "base64": true});
        assert_eq!(printed("turn-1-1", "call_output", &binary), Some((Stream::Stdout, "hi".into())));
    }

    #[test]
    fn results_and_errors_of_cells_are_output_with_a_line_end() {
        let result = json!({"display": "result", "text": "42"});
        assert_eq!(printed("step-1", "call_display", &result), Some((Stream::Stdout, "42\n".into())));
        let error = json!({"display": "error", "text": "NameError: x", "error": {"name": "NameError"}});
        assert_eq!(
            printed("step-1", "call_display", &error),
            Some((Stream::Stderr, "NameError: x\n".into()))
        );
        assert_eq!(printed("step-1", "call_display", &json!({"display": "clear", "text": ""})), None);
        let dropped = printed("step-1", "call_output_dropped", &json!({"bytes": 7})).unwrap();
        assert_eq!(dropped, (Stream::Stderr, "[7 bytes of output were dropped]\n".into()));
    }

    #[test]
    fn commands_of_api_clients_and_other_events_print_nothing() {
        let text = json!({"stream": "stdout", "text": "a"});
        assert_eq!(printed("api-0193", "call_output", &text), None);
        assert_eq!(printed("step-1", "note", &text), None);
        assert_eq!(output_of(&json!({"kind": "note", "data": {"text": "a"}})), None);
    }

    #[test]
    fn tail_counts_lines_of_both_streams_and_joins_pieces() {
        let last = |limit: usize, pieces: &[(Stream, &str)]| -> String {
            let mut lines = LastLines::new(limit);
            for (stream, text) in pieces {
                lines.add(&Output { stream: *stream, bytes: text.as_bytes().to_vec() });
            }
            lines.lines.iter().map(|line| String::from_utf8(line.bytes.clone()).unwrap()).collect()
        };
        let (out, err) = (Stream::Stdout, Stream::Stderr);
        assert_eq!(last(2, &[(out, "1\n2\n"), (out, "3"), (out, "3\n")]), "2\n33\n");
        assert_eq!(last(3, &[(out, "1\n2"), (err, "e\n"), (out, "2\n3")]), "22\ne\n3");
        assert_eq!(last(0, &[(out, "1\n2")]), "");
        assert_eq!(last(9, &[(out, "1\n2")]), "1\n2");
    }

    #[test]
    fn terminal_receives_no_control_characters() {
        assert_eq!(for_terminal(b"a\x1b[2J\tb\r\nc\xff\n"), "a[2J\tb\nc\u{fffd}\n".as_bytes());
        let mut out = Vec::new();
        write(&mut out, b"a\x1b[2J\xff", false).unwrap();
        assert_eq!(out, b"a\x1b[2J\xff");
    }

    #[test]
    fn hint_says_why_there_is_no_output() {
        let mut printer = Printer::new();
        assert!(printer.hint("1c2d").is_some_and(|hint| hint.contains("printed nothing")));
        printer.note(&json!({"kind": "call_output", "call": {"id": "step-1"}, "data": {"text": "a"}}));
        assert_eq!(printer.hint("1c2d"), None);
        printer.note(&json!({"kind": "payload_dropped", "data": {"kind": "call_output"}}));
        assert!(printer.hint("1c2d").is_some_and(|hint| hint.contains("because of its age")));
    }
}
