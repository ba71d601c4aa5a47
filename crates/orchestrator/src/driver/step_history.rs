//! `memory.json` and `context.txt` of a step job: its calls with their output, as data and as text. The agent of a task
//! job writes its own while it works.

use std::collections::HashMap;
use std::fmt::Write as _;

use job::{CallEnd, CallRef, Event, EventBody, EventKind, JobId, Kinds, Sequence, what_happened};
use serde::Serialize;
use serde_json::{Value, json};

use super::file_list::write_whole;
use crate::core::Core;
use crate::data_folder::result_files::{CONTEXT, MEMORY};
use crate::error::OrchestratorError;

/// The events that a history is made of.
const OF_CALLS: Kinds = Kinds::Only(&[
    EventKind::CallStarted,
    EventKind::CallOutput,
    EventKind::CallOutputDropped,
    EventKind::CallDisplay,
    EventKind::CallEnded,
]);
/// Maximum size of the output, and of the result, of one call; the log has all of it.
const MAX_BYTES: usize = 16 * 1024;

/// Writes both files from the log.
pub(super) async fn write_step_history(core: &Core, job: JobId) -> Result<(), OrchestratorError> {
    let mut history = History::default();
    core.store.each_page(job, OF_CALLS, 0, &mut |events| history.add(events)).await?;
    let folder = core.folder.job(job);
    let written = tokio::task::spawn_blocking(move || {
        write_whole(&folder.join(MEMORY), history.memory().as_bytes())?;
        write_whole(&folder.join(CONTEXT), history.text().as_bytes())
    });
    let written = written.await.map_err(std::io::Error::other).and_then(|written| written);
    written.map_err(OrchestratorError::io("writing the history of the steps"))
}

#[derive(Default)]
struct History {
    calls: Vec<CallRecord>,
    /// Positions in `calls`.
    positions: HashMap<CallRef, usize>,
}

/// One call, in `memory.json`.
#[derive(Serialize)]
struct CallRecord {
    /// The event that started it.
    event: Sequence,
    time_ms: i64,
    call: String,
    attempt: u32,
    tool: String,
    input: Value,
    /// The beginning of its output.
    output: String,
    /// Bytes of output that are only in the log.
    #[serde(skip_serializing_if = "is_zero")]
    omitted_bytes: usize,
    /// `None` while it runs.
    end: Option<CallEnd>,
    /// Tool and input for people.
    #[serde(skip)]
    title: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl CallRecord {
    fn print(&mut self, text: &str) {
        let room = text.floor_char_boundary(MAX_BYTES.saturating_sub(self.output.len()));
        let (shown, omitted) = text.split_at(room);
        self.output.push_str(shown);
        self.omitted_bytes += omitted.len();
    }
}

impl History {
    fn add(&mut self, events: Vec<Event>) {
        for event in events {
            let Some(call) = event.call else { continue };
            if let EventBody::CallStarted { tool, input, .. } = &event.body {
                self.positions.insert(call.clone(), self.calls.len());
                self.calls.push(CallRecord {
                    event: event.sequence,
                    time_ms: event.time_ms,
                    call: call.id,
                    attempt: call.attempt,
                    tool: tool.clone(),
                    input: input.clone(),
                    output: String::new(),
                    omitted_bytes: 0,
                    end: None,
                    title: what_happened(&event.body),
                });
                continue;
            }
            let Some(record) = self.positions.get(&call).and_then(|position| self.calls.get_mut(*position))
            else {
                continue;
            };
            match event.body {
                EventBody::CallOutput { base64: true, .. } => record.print("[output that is not text]\n"),
                EventBody::CallOutput { text, .. } => record.print(&text),
                EventBody::CallOutputDropped { bytes, .. } => {
                    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                    record.omitted_bytes = record.omitted_bytes.saturating_add(bytes);
                }
                EventBody::CallDisplay { shown, .. } => {
                    record.print(&shown.text);
                    record.print("\n");
                }
                EventBody::CallEnded(mut end) => {
                    end.result = end.result.filter(|result| result.to_string().len() <= MAX_BYTES);
                    record.end = Some(end);
                }
                _ => {}
            }
        }
    }

    fn memory(&self) -> String {
        serde_json::to_string_pretty(&json!({ "history": self.calls })).unwrap_or_default()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for record in &self.calls {
            let _ = writeln!(text, "# {} {}", record.call, record.title);
            if !record.output.is_empty() {
                let _ = writeln!(text, "{}", record.output.trim_end_matches('\n'));
            }
            if record.omitted_bytes > 0 {
                let _ = writeln!(text, "[{} more bytes of output are in the log]", record.omitted_bytes);
            }
            if let Some(end) = &record.end {
                if let Some(result) = &end.result {
                    let _ = writeln!(text, "{result}");
                }
                let _ = writeln!(text, "[{}]", what_happened(&EventBody::CallEnded(end.clone())));
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use job::CallStatus;

    use super::*;

    fn history(calls: Vec<(&str, EventBody)>) -> History {
        let event = |(call, body): (&str, EventBody)| Event {
            sequence: 7,
            time_ms: 1000,
            call: Some(CallRef { id: call.to_owned(), attempt: 1 }),
            actor: None,
            body,
        };
        let mut history = History::default();
        history.add(calls.into_iter().map(event).collect());
        history
    }

    fn started(command: &str) -> EventBody {
        EventBody::CallStarted { step: Some(0), tool: "shell".into(), input: json!({"command": command}) }
    }

    fn output(text: &str) -> EventBody {
        EventBody::CallOutput {
            stream: "stdout".into(),
            next_chunk: 1,
            text: text.into(),
            base64: false,
            held_bytes: 0,
        }
    }

    #[test]
    fn history_has_each_call_with_its_output_and_end() {
        let ended = CallEnd { status: CallStatus::Succeeded, exit_code: Some(0), ..CallEnd::default() };
        let history = history(vec![
            ("step-1.1", started("make")),
            ("step-2.1", started("ls")),
            ("step-1.1", output("built\n")),
            ("step-1.1", EventBody::CallEnded(ended)),
        ]);
        let memory: Value = serde_json::from_str(&history.memory()).unwrap();
        let [first, second] = [&memory["history"][0], &memory["history"][1]];
        assert_eq!((&first["call"], &first["output"]), (&json!("step-1.1"), &json!("built\n")), "{memory}");
        assert_eq!((&first["end"]["exit_code"], &second["end"]), (&json!(0), &Value::Null), "{memory}");
        assert_eq!(
            history.text(),
            "# step-1.1 shell {\"command\":\"make\"}\nbuilt\n[succeeded after 0 ms]\n\n\
             # step-2.1 shell {\"command\":\"ls\"}\n\n"
        );
    }

    #[test]
    fn long_output_is_cut_in_the_history() {
        let long = "ä".repeat(MAX_BYTES);
        let dropped = EventBody::CallOutputDropped { bytes: 5, next_chunk: 9 };
        let history =
            history(vec![("step-1.1", started("x")), ("step-1.1", output(&long)), ("step-1.1", dropped)]);
        assert_eq!(history.calls[0].output.len(), MAX_BYTES);
        assert_eq!(history.calls[0].omitted_bytes, MAX_BYTES + 5);
        assert!(history.text().contains("[16389 more bytes of output are in the log]"));
    }
}
