//! The events of a job as a client sees them: a stream that resumes after a break, without gaps or repeats.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::server::{Server, pause};

#[derive(Debug, Clone)]
pub struct Event {
    /// Position in the job's log.
    pub sequence: u64,
    pub kind: String,
    /// The whole event, including the envelope.
    pub json: Value,
}

impl Event {
    #[must_use]
    pub fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// Whether the event changes the job to this state.
    #[must_use]
    pub fn is_state(&self, state: &str) -> bool {
        self.is("state_changed") && self.json["data"]["state"] == state
    }

    /// Whether the event ends the job.
    #[must_use]
    pub fn is_end(&self) -> bool {
        ["complete", "failed", "cancelled"].iter().any(|state| self.is_state(state))
    }

    /// The call that the event belongs to, as `id.attempt`.
    #[must_use]
    pub fn call(&self) -> String {
        match self.json["call"]["id"].as_str() {
            Some(id) => format!("{id}.{}", self.json["call"]["attempt"]),
            None => String::new(),
        }
    }

    #[must_use]
    pub fn data(&self) -> &Value {
        &self.json["data"]
    }
}

/// Follows the events of one job: asserts that sequence numbers have no gaps and resumes the stream after a break.
pub struct Follower<'a> {
    server: &'a Server,
    job: String,
    stream: Option<BufReader<reqwest::blocking::Response>>,
    /// All events so far.
    pub events: Vec<Event>,
}

impl<'a> Follower<'a> {
    pub(crate) fn new(server: &'a Server, job: &str) -> Self {
        Self { server, job: job.to_owned(), stream: None, events: Vec::new() }
    }

    /// The sequence number of the newest event.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.events.last().map_or(0, |event| event.sequence)
    }

    /// Reads on until an event matches, and returns it. Panics if the job ends first or after four minutes.
    #[track_caller]
    pub fn until(&mut self, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        let deadline = Instant::now() + Duration::from_secs(240);
        loop {
            assert!(Instant::now() < deadline, "no event `{what}` came; so far: {}", self.summary());
            let Some(event) = self.next_event() else {
                assert!(!self.is_over(), "the job is over without `{what}`: {}", self.summary());
                pause();
                continue;
            };
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Reads on until the job has ended.
    #[track_caller]
    pub fn until_end(&mut self) -> Event {
        self.until("the end of the job", Event::is_end)
    }

    /// How many of the events so far match.
    #[must_use]
    pub fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    /// The output of a call on one stream, or on all streams if `stream` is empty. Base64 is not decoded.
    #[must_use]
    pub fn output(&self, call: &str, stream: &str) -> String {
        let of_call = self.events.iter().filter(|event| event.is("call_output") && event.call() == call);
        of_call
            .filter(|event| stream.is_empty() || event.data()["stream"] == stream)
            .filter_map(|event| event.data()["text"].as_str())
            .collect()
    }

    /// The kinds of all events so far, for assertion messages.
    #[must_use]
    pub fn summary(&self) -> String {
        let kinds = self.events.iter().map(|event| match event.kind.as_str() {
            "state_changed" => format!("{}:{}", event.sequence, event.data()),
            "call_ended" | "sandbox_lost" | "note" => {
                format!("{}:{} {}", event.sequence, event.kind, event.data())
            }
            kind => format!("{}:{kind} {}", event.sequence, event.call()),
        });
        kinds.collect::<Vec<_>>().join(", ")
    }

    fn is_over(&self) -> bool {
        self.events.last().is_some_and(Event::is_end)
    }

    /// The next event; `None` if the stream broke or ended.
    fn next_event(&mut self) -> Option<Event> {
        if self.stream.is_none() {
            let request = self.server.request(reqwest::Method::GET, &format!("/v1/jobs/{}/events", self.job));
            let request = request.header("Last-Event-ID", self.last_sequence().to_string());
            let response = request.timeout(Duration::from_secs(180)).send().ok()?;
            assert_eq!(response.status(), 200, "opening the event stream");
            let media_type =
                response.headers().get("content-type").map(|value| value.to_str().unwrap_or_default());
            assert!(media_type.is_some_and(|media| media.starts_with("text/event-stream")), "{media_type:?}");
            self.stream = Some(BufReader::with_capacity(256 * 1024, response));
        }
        let Some(frame) = self.stream.as_mut().and_then(read_frame) else {
            self.stream = None;
            return None;
        };
        assert_ne!(frame.kind, "problem", "the stream ended with {}", frame.data);
        if frame.kind == "end" {
            assert!(self.is_over(), "the stream says that the job is over: {}", self.summary());
            self.stream = None;
            return None;
        }
        let json: Value =
            serde_json::from_str(&frame.data).unwrap_or_else(|error| panic!("{error}: {}", frame.data));
        let sequence =
            json["sequence"].as_u64().unwrap_or_else(|| panic!("an event without sequence: {json}"));
        assert_eq!(frame.id, sequence.to_string(), "the stream's id is not the event's sequence");
        assert_eq!(sequence, self.last_sequence() + 1, "a gap or a repeat after: {}", self.summary());
        let event = Event { sequence, kind: json["kind"].as_str().unwrap_or_default().to_owned(), json };
        if event.is("sandbox_requested") {
            self.server.remember_sandbox(event.data()["sandbox"].as_str().unwrap_or_default());
        }
        self.events.push(event.clone());
        Some(event)
    }
}

#[derive(Default)]
struct Frame {
    id: String,
    kind: String,
    data: String,
}

/// Reads one server-sent event and skips comments (heartbeats). `None` at the end of the stream and after a break.
fn read_frame(stream: &mut BufReader<reqwest::blocking::Response>) -> Option<Frame> {
    let mut frame = Frame::default();
    loop {
        let mut line = String::new();
        // An incomplete line was cut off by the break.
        if stream.read_line(&mut line).ok()? == 0 || !line.ends_with('\n') {
            return None;
        }
        let line = line.trim_end_matches(['\n', '\r']);
        match line.split_once(':') {
            None if line.is_empty() && !frame.data.is_empty() => return Some(frame),
            Some(("id", value)) => value.trim_start().clone_into(&mut frame.id),
            Some(("event", value)) => value.trim_start().clone_into(&mut frame.kind),
            Some(("data", value)) => {
                if !frame.data.is_empty() {
                    frame.data.push('\n');
                }
                frame.data.push_str(value.strip_prefix(' ').unwrap_or(value));
            }
            _ => {}
        }
    }
}
