//! The log of a job as a new driver reads it. It is read page by page. Output is kept only for calls that have not
//! ended, because the driver continues those.

use std::collections::HashMap;

use job::{CallRef, Event, EventBody, JobId, Kinds, Sequence};
use store::Store;

use crate::error::OrchestratorError;
use crate::recorder::agent_log::AgentLog;

#[derive(Default)]
pub(super) struct LoadedLog {
    /// The relevant events, in log order.
    pub(super) events: Vec<Event>,
    /// The newest event that was read.
    pub(super) last: Sequence,
    outputs: HashMap<CallRef, Vec<Event>>,
}

impl LoadedLog {
    /// Reads the log, and writes all of it to the human-readable agent log.
    pub(super) async fn read(
        store: &dyn Store,
        job: JobId,
        log: &mut AgentLog,
    ) -> Result<Self, OrchestratorError> {
        let mut past = Self::default();
        let mut take = |events: Vec<Event>| {
            log.append(&events);
            past.take(events);
        };
        store.each_page(job, Kinds::All, 0, &mut take).await?;
        Ok(past.sorted())
    }

    fn take(&mut self, page: Vec<Event>) {
        for event in page {
            self.last = event.sequence;
            match (&event.body, &event.call) {
                (
                    EventBody::CallOutput { .. }
                    | EventBody::CallOutputDropped { .. }
                    | EventBody::CallDisplay { .. },
                    Some(call),
                ) => {
                    self.outputs.entry(call.clone()).or_default().push(event);
                    continue;
                }
                (EventBody::CallEnded(_), Some(call)) => drop(self.outputs.remove(call)),
                _ => {}
            }
            self.events.push(event);
        }
    }

    fn sorted(mut self) -> Self {
        self.events.extend(std::mem::take(&mut self.outputs).into_values().flatten());
        self.events.sort_by_key(|event| event.sequence);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use job::{CallEnd, Fence, JobDefaults, NewJob};
    use store::{NewRecord, SqliteStore};

    /// Pages are also limited by size, so a short page is not necessarily the last one.
    #[tokio::test]
    async fn large_log_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
        let id = JobId::generate();
        let json = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;
        let spec = serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default()).unwrap();
        store.create(NewRecord { id, spec, events: Vec::new(), idempotency: None }).await.unwrap();
        let notes = (0..4).map(|_| EventBody::Note { text: "x".repeat(5 << 20) }.into()).collect();
        store.append(id, Fence::Anybody, notes).await.unwrap();
        let mut log = AgentLog::start(&folder.path().join("agent.log")).unwrap();
        let past = LoadedLog::read(&store, id, &mut log).await.unwrap();
        assert_eq!((past.last, past.events.len()), (5, 5));
    }

    #[test]
    fn only_output_of_open_calls_is_kept() {
        let output = || EventBody::CallOutput {
            stream: "stdout".into(),
            next_chunk: 1,
            text: "x".into(),
            base64: false,
            held_bytes: 0,
        };
        let start =
            || EventBody::CallStarted { step: None, tool: "shell".into(), input: serde_json::Value::Null };
        let end = || EventBody::CallEnded(CallEnd::default());
        let told = [
            ("a", start()),
            ("a", output()),
            ("b", start()),
            ("b", output()),
            ("a", output()),
            ("a", end()),
            ("b", output()),
        ];
        let log = told.into_iter().zip(1..).map(|((id, body), sequence)| Event {
            sequence,
            time_ms: 0,
            call: Some(CallRef { id: id.into(), attempt: 1 }),
            actor: None,
            body,
        });
        let mut past = LoadedLog::default();
        past.take(log.collect());
        let past = past.sorted();
        assert_eq!(past.last, 7);
        assert_eq!(past.events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [1, 3, 4, 6, 7]);
    }
}
