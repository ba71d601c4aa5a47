//! Streams a job's events live. The reader pulls: a slow reader holds one page of events in memory and nothing else.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use job::{Event, EventBody, JobId, Sequence};
use orchestrator::{Cursor, Delta, Orchestrator, OrchestratorError, Snapshot};
use tokio::sync::watch;

use crate::access::CloseSignal;
use crate::problem::Problem;

const PAGE: usize = 64;
/// The reconnect delay that browsers are told to use.
const RECONNECT_MS: u32 = 1000;
/// How long to wait after the event watch channel has closed.
const REWATCH_DELAY: Duration = Duration::from_secs(1);

/// The encoding of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventEncoding {
    ServerSent,
    /// One JSON object per line.
    Lines,
}

impl EventEncoding {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::ServerSent => "text/event-stream; charset=utf-8",
            Self::Lines => "application/x-ndjson",
        }
    }

    fn preamble(self) -> String {
        match self {
            Self::ServerSent => format!("retry: {RECONNECT_MS}\n\n"),
            Self::Lines => String::new(),
        }
    }

    fn write(self, text: &mut String, event: &Event) {
        let Ok(json) = serde_json::to_string(event) else { return };
        match self {
            // JSON contains no raw line breaks, so one `data` line holds it.
            Self::ServerSent => {
                text.push_str(&format!(
                    "id: {}\nevent: {}\ndata: {json}\n\n",
                    event.sequence,
                    event.body.kind()
                ));
            }
            Self::Lines => {
                text.push_str(&json);
                text.push('\n');
            }
        }
    }

    /// Encodes a model token delta. Deltas are not in the log, so they have no id: a reconnecting reader would
    /// otherwise resume at the wrong event.
    fn encode_delta(self, delta: &Delta) -> String {
        let Ok(json) = serde_json::to_string(delta) else { return String::new() };
        match self {
            Self::ServerSent => format!("event: delta\ndata: {json}\n\n"),
            Self::Lines => format!("{{\"kind\":\"delta\",\"data\":{json}}}\n"),
        }
    }

    fn heartbeat(self) -> &'static str {
        match self {
            Self::ServerSent => ": still here\n\n",
            Self::Lines => "\n",
        }
    }

    fn end(self, last: Sequence) -> String {
        match self {
            Self::ServerSent => format!("event: end\ndata: {{\"sequence\":{last}}}\n\n"),
            Self::Lines => String::new(),
        }
    }

    fn failure(self, problem: &Problem) -> String {
        let json = String::from_utf8_lossy(&problem.to_json()).into_owned();
        match self {
            Self::ServerSent => format!("event: problem\ndata: {json}\n\n"),
            Self::Lines => format!("{{\"kind\":\"problem\",\"data\":{json}}}\n"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogState {
    Open,
    Complete,
}

/// Whether the reader also receives model tokens as they arrive.
#[derive(Debug)]
pub(crate) enum DeltaSubscription {
    Off,
    On { cursor: Cursor, snapshots: Option<watch::Receiver<Snapshot>> },
}

impl DeltaSubscription {
    pub(crate) fn on() -> Self {
        Self::On { cursor: Cursor::default(), snapshots: None }
    }

    /// Waits for the next delta. Never returns if the reader did not ask for deltas or the job has no driver.
    async fn next(&mut self) -> Delta {
        let Self::On { cursor, snapshots: Some(snapshots) } = self else {
            return std::future::pending().await;
        };
        loop {
            if let Some(delta) = cursor.next(&snapshots.borrow_and_update()) {
                return delta;
            }
            if snapshots.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Subscribes to the job's driver, which may have just started.
    fn subscribe(&mut self, orchestrator: &Orchestrator, job: JobId) {
        if let Self::On { snapshots, .. } = self
            && snapshots.as_ref().is_none_or(|snapshots| snapshots.has_changed().is_err())
        {
            *snapshots = orchestrator.listen(job);
        }
    }
}

/// A reader's position in the log of a job.
pub(crate) struct EventFollower {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) job: JobId,
    /// The sequence number of the last event sent.
    pub(crate) after: Sequence,
    pub(crate) log_state: LogState,
    pub(crate) deltas: DeltaSubscription,
    pub(crate) encoding: EventEncoding,
    pub(crate) heartbeat: Duration,
    pub(crate) closing: CloseSignal,
}

enum Phase {
    Preamble,
    Read,
    Done,
}

impl EventFollower {
    /// The response body: all events after the position, then new ones until the job is over.
    pub(crate) fn follow(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        let watch = self.orchestrator.watch(self.job);
        futures::stream::unfold(
            (self, watch, Phase::Preamble),
            |(mut follower, mut watch, phase)| async move {
                let (text, phase) = match phase {
                    // Sent at once to confirm the connection.
                    Phase::Preamble => (follower.encoding.preamble(), Phase::Read),
                    Phase::Read => follower.next(&mut watch).await,
                    Phase::Done => return None,
                };
                Some((Ok(Bytes::from(text)), (follower, watch, phase)))
            },
        )
    }

    async fn next(&mut self, watch: &mut watch::Receiver<Sequence>) -> (String, Phase) {
        loop {
            if self.closing.token().is_cancelled() {
                return (String::new(), Phase::Done);
            }
            // Mark as seen before reading, so that events that arrive meanwhile wake the wait below.
            watch.borrow_and_update();
            match self.orchestrator.events(self.job, self.after, PAGE).await {
                Ok(events) if !events.is_empty() => return (self.take(&events), Phase::Read),
                Ok(_) if self.log_state == LogState::Complete => {
                    return (self.encoding.end(self.after), Phase::Done);
                }
                Ok(_) => {}
                Err(error) => return (self.encoding.failure(&error.into()), Phase::Done),
            }
            self.deltas.subscribe(&self.orchestrator, self.job);
            tokio::select! {
                // Events take precedence over deltas: a turn must start before its tokens arrive.
                biased;
                changed = watch.changed() => if changed.is_err() {
                    tokio::time::sleep(REWATCH_DELAY).await;
                    *watch = self.orchestrator.watch(self.job);
                    if let Err(error) = self.check_if_over().await {
                        return (self.encoding.failure(&error.into()), Phase::Done);
                    }
                },
                () = self.closing.token().cancelled() => {}
                delta = self.deltas.next() => return (self.encoding.encode_delta(&delta), Phase::Read),
                () = tokio::time::sleep(self.heartbeat) => {
                    // A reader that claims a position beyond the end of the log would otherwise wait forever.
                    return match self.check_if_over().await {
                        Ok(()) => (self.encoding.heartbeat().to_owned(), Phase::Read),
                        Err(error) => (self.encoding.failure(&error.into()), Phase::Done),
                    };
                }
            }
        }
    }

    async fn check_if_over(&mut self) -> Result<(), OrchestratorError> {
        if self.orchestrator.job(self.job).await?.state.is_over() {
            self.log_state = LogState::Complete;
        }
        Ok(())
    }

    fn take(&mut self, events: &[Event]) -> String {
        let mut text = String::new();
        for event in events {
            self.encoding.write(&mut text, event);
            self.after = event.sequence;
            if ends_job(event) {
                self.log_state = LogState::Complete;
            }
        }
        text
    }
}

fn ends_job(event: &Event) -> bool {
    matches!(&event.body, EventBody::StateChanged { state, .. } if state.is_over())
}

#[cfg(test)]
mod tests {
    use job::JobState;

    use super::*;

    fn event(state: JobState) -> Event {
        let body = EventBody::StateChanged { state, code: None, reason: Some("line\nbreak".into()) };
        Event { sequence: 7, time_ms: 5, call: None, actor: None, body }
    }

    #[test]
    fn a_server_sent_event_has_id_kind_and_one_line_of_data() {
        let mut text = String::new();
        EventEncoding::ServerSent.write(&mut text, &event(JobState::Running));
        let expected = concat!(
            "id: 7\nevent: state_changed\n",
            r#"data: {"sequence":7,"time_ms":5,"kind":"state_changed","data":{"state":"running","reason":"line\nbreak"}}"#,
            "\n\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_line_is_one_json_object() {
        let mut text = String::new();
        EventEncoding::Lines.write(&mut text, &event(JobState::Running));
        assert_eq!(text.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event(JobState::Running));
    }

    #[test]
    fn deltas_have_no_event_id() {
        let delta = Delta { turn: 2, text: "a\nb".into(), ..Delta::default() };
        let expected = "event: delta\ndata: {\"turn\":2,\"text\":\"a\\nb\"}\n\n";
        assert_eq!(EventEncoding::ServerSent.encode_delta(&delta), expected);
        assert_eq!(EventEncoding::Lines.encode_delta(&delta).lines().count(), 1);
    }

    #[test]
    fn heartbeat_and_end_have_the_expected_format() {
        assert!(EventEncoding::ServerSent.heartbeat().starts_with(':'));
        assert_eq!(EventEncoding::ServerSent.end(9), "event: end\ndata: {\"sequence\":9}\n\n");
        assert_eq!(EventEncoding::Lines.end(9), "");
        let problem = Problem::bad_request("x", "y");
        assert!(EventEncoding::ServerSent.failure(&problem).starts_with("event: problem\ndata: {"));
        let line: serde_json::Value = serde_json::from_str(&EventEncoding::Lines.failure(&problem)).unwrap();
        assert_eq!(line["data"]["code"], "x");
    }

    #[test]
    fn only_final_states_end_the_stream() {
        assert!(!ends_job(&event(JobState::Collecting)));
        assert!(ends_job(&event(JobState::Complete)));
        assert!(ends_job(&event(JobState::Cancelled)));
    }
}
