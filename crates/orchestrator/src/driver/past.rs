//! What happened to a job before somebody took it up. The log is read page by page: of output only that of calls that have not
//! ended is kept, because that is where it goes on.

use std::collections::HashMap;

use crate::agent_log::AgentLog;
use crate::error::OrchestratorError;
use crate::event::{CallRef, Event, EventBody};
use crate::ids::{JobId, Sequence};
use crate::store::{PAGE, Store};

/// The past of a job.
#[derive(Default)]
pub(super) struct Past {
    /// What counts for what comes, in the order of the log.
    pub(super) events: Vec<Event>,
    /// The newest event that was read.
    pub(super) last: Sequence,
    outputs: HashMap<CallRef, Vec<Event>>,
}

impl Past {
    /// Reads it, and writes all of it into the log for people.
    pub(super) async fn read(
        store: &dyn Store,
        job: JobId,
        log: &mut AgentLog,
    ) -> Result<Self, OrchestratorError> {
        let mut past = Self::default();
        loop {
            let page = store.events(job, past.last, PAGE).await?;
            let is_last = page.len() < PAGE;
            log.append(&page);
            past.take(page);
            if is_last {
                return Ok(past.sorted());
            }
        }
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
    use crate::event::CallEnd;

    #[test]
    fn of_output_only_that_of_open_calls_is_kept() {
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
            done_by: None,
            body,
        });
        let mut past = Past::default();
        past.take(log.collect());
        let past = past.sorted();
        assert_eq!(past.last, 7);
        assert_eq!(past.events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [1, 3, 4, 6, 7]);
    }
}
