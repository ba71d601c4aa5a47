//! The output of an agent's process: events for the log, and a transcript for the model.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use job::{Event, EventBody};
use protocol::OutputChunk;
use tokio::time::Instant;

use super::super::call::Consumer;
use super::super::{LimitHints, OutputSink};
use super::transcript::Transcript;
use crate::error::OrchestratorError;

pub(super) struct ProcessOutput {
    sink: OutputSink,
    transcript: Transcript,
    /// The chunk that the log has without its last bytes, and how many these are.
    incomplete: Option<(u64, usize)>,
}

impl ProcessOutput {
    /// The model has seen the chunks before `from_chunk`.
    pub(super) fn new(mut sink: OutputSink, from_chunk: u64) -> Self {
        sink.start_at(from_chunk);
        Self { sink, transcript: Transcript::default(), incomplete: None }
    }

    /// Restores the state from the call's events in the log, after a restart.
    pub(super) fn resume(&mut self, past: &[Event]) {
        self.sink.resume(past);
        for event in past {
            match &event.body {
                EventBody::CallOutput { text, base64, next_chunk, held_bytes, .. } => {
                    if *base64 {
                        self.transcript.take(&STANDARD.decode(text).unwrap_or_default());
                    } else {
                        self.transcript.take(text.as_bytes());
                    }
                    let last_chunk = next_chunk.saturating_sub(1);
                    self.incomplete = (*held_bytes > 0).then_some((last_chunk, *held_bytes));
                }
                EventBody::CallOutputDropped { bytes, .. } => {
                    self.transcript.skip(*bytes);
                    self.incomplete = None;
                }
                EventBody::CallDisplay { shown, .. } => {
                    self.transcript.take(format!("{}\n", shown.text).as_bytes());
                    self.incomplete = None;
                }
                _ => {}
            }
        }
    }

    /// Limits that the messages on stderr refer to.
    pub(super) fn limit_hints(&mut self) -> LimitHints {
        self.sink.limit_hints()
    }

    pub(super) fn into_transcript(self) -> Transcript {
        self.transcript
    }
}

impl Consumer for ProcessOutput {
    fn wanted_chunk(&self) -> u64 {
        self.sink.wanted_chunk()
    }

    async fn take(&mut self, chunk: OutputChunk) -> Result<(), OrchestratorError> {
        if chunk.sequence >= self.sink.wanted_chunk() {
            let mut unseen = chunk.clone();
            if let Some((sequence, bytes)) = self.incomplete.take()
                && sequence == chunk.sequence
            {
                let seen = chunk.bytes.len().saturating_sub(bytes);
                unseen.bytes = chunk.bytes.slice(seen..);
            }
            self.transcript.take_chunk(&unseen);
        }
        self.sink.take(chunk).await
    }

    async fn skip(&mut self, next_chunk: u64, bytes: u64) -> Result<(), OrchestratorError> {
        self.transcript.skip(bytes);
        self.sink.skip(next_chunk, bytes).await
    }

    fn flush_at(&self) -> Option<Instant> {
        self.sink.flush_at()
    }

    async fn flush(&mut self) -> Result<(), OrchestratorError> {
        self.sink.flush().await
    }

    async fn flush_all(&mut self) -> Result<(), OrchestratorError> {
        self.sink.flush_all().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use job::{CallRef, JobDefaults, JobId, NewJob};
    use protocol::OutputStream;

    use super::*;
    use crate::driver::Captured;
    use crate::recorder::Recorder;
    use crate::recorder::agent_log::AgentLog;
    use store::{Created, NewRecord, SqliteStore, Store};

    async fn output(folder: &std::path::Path, call: &CallRef) -> ProcessOutput {
        let store = Arc::new(SqliteStore::open(&folder.join("caisson.db")).unwrap());
        let id = JobId::generate();
        let spec = serde_json::from_str::<NewJob>(r#"{"task":"x"}"#).unwrap();
        let spec = spec.check(&JobDefaults::default()).unwrap();
        let record = NewRecord { id, spec, events: Vec::new(), idempotency: None };
        let Created::New(view) = store.create(record).await.unwrap() else { panic!("it is new") };
        let generation = store.claim(id, 60_000).await.unwrap().unwrap();
        let log = AgentLog::start(&folder.join("agent.log")).unwrap();
        let recorder = Arc::new(Recorder::new(store, id, generation, *view, log, 1));
        ProcessOutput::new(OutputSink::new(recorder, call.clone(), None, Captured::new(0)), 0)
    }

    #[tokio::test]
    async fn text_that_the_log_has_is_not_repeated_after_a_restart_within_a_character() {
        let folder = tempfile::tempdir().unwrap();
        let call = CallRef { id: "call".into(), attempt: 1 };
        let mut output = output(folder.path(), &call).await;
        let body = EventBody::CallOutput {
            stream: "stdout".into(),
            next_chunk: 1,
            text: "caf".into(),
            base64: false,
            held_bytes: 1,
        };
        output.resume(&[Event { sequence: 2, time_ms: 0, call: Some(call), actor: None, body }]);
        assert_eq!(output.wanted_chunk(), 0, "the chunk is incomplete in the log");
        for (sequence, bytes) in [(0, &b"caf\xc3"[..]), (1, &b"\xa9\n"[..])] {
            let chunk =
                OutputChunk { sequence, stream: OutputStream::Stdout, bytes: Bytes::from_static(bytes) };
            output.take(chunk).await.unwrap();
        }
        assert_eq!(output.into_transcript().into_parts().0, "caf\u{e9}\n");
    }
}
