//! The calls of a job that are in progress according to its log.

use std::collections::HashSet;

use job::{CallRef, Event, EventBody};

#[derive(Debug, Default)]
pub(crate) struct RunningCalls(HashSet<CallRef>);

impl RunningCalls {
    pub(crate) fn take(&mut self, event: &Event) {
        match (&event.body, &event.call) {
            (EventBody::CallStarted { .. }, Some(call)) => drop(self.0.insert(call.clone())),
            (EventBody::CallEnded(_), Some(call)) => drop(self.0.remove(call)),
            // The calls of the lost sandbox do not go on in the next one.
            (EventBody::SandboxLost { .. }, _) => self.0.clear(),
            _ => {}
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use job::CallEnd;
    use sandbox::{EndReason, SandboxId};

    use super::*;

    fn event(call: Option<&str>, body: EventBody) -> Event {
        let call = call.map(|id| CallRef { id: id.into(), attempt: 1 });
        Event { sequence: 1, time_ms: 0, call, actor: None, body }
    }

    fn started(call: &str) -> Event {
        let (tool, input) = ("shell".to_owned(), serde_json::Value::Null);
        event(Some(call), EventBody::CallStarted { step: None, tool, input })
    }

    #[test]
    fn calls_run_until_their_end_or_the_loss_of_their_sandbox() {
        let mut running = RunningCalls::default();
        running.take(&started("a"));
        running.take(&started("b"));
        running.take(&event(Some("a"), EventBody::CallEnded(CallEnd::default())));
        assert!(!running.is_empty());
        running.take(&event(Some("b"), EventBody::CallEnded(CallEnd::default())));
        assert!(running.is_empty());
        running.take(&started("c"));
        running.take(&event(
            None,
            EventBody::SandboxLost {
                sandbox: SandboxId::generate(),
                reason: EndReason::Lost,
                detail: String::new(),
                steps_kept: 0,
                kernels: Vec::new(),
            },
        ));
        assert!(running.is_empty());
    }
}
