//! `history_read`: shows an earlier event, or the complete output of a call, by lines.

use context::output_cap::{Limits, count_lines};
use context::recall::{History, Lines, Part, history_read};
use context::{ContextError, Entry, EventId};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::conversation::{HISTORY_READ_TOOL, Record, RecordKind};
use crate::event::ToolEnd;
use crate::host::Stopped;
use crate::recall::entry_of;
use crate::tools::{CallContext, Importance, Tool, ToolFlow, ToolRole};

/// No version has ever cut an output smaller than this, so it is complete as it is.
const NEVER_CUT_BYTES: usize = 40_000;
const NEVER_CUT_LINES: usize = 1_900;
/// How many tenths of the output budget the lines may take. The rest is for the note on how to continue.
const TENTHS: usize = 8;

pub(super) struct HistoryRead;

/// What to show.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// The event or the call, as it is named where something is left out.
    #[serde(alias = "id", alias = "call")]
    event: String,
    /// First line to show, 1 when absent.
    #[serde(default)]
    from_line: Option<usize>,
    /// Last line to show; the answer says where to go on when that is too much.
    #[serde(default)]
    to_line: Option<usize>,
    /// For a very long line: how many bytes of it to leave out.
    #[serde(default)]
    from_byte: Option<usize>,
}

impl Tool for HistoryRead {
    const NAME: &'static str = HISTORY_READ_TOOL;
    const DESCRIPTION: &'static str = "Shows an earlier event of this job, or the whole output of a call of which only a part was shown, by lines.";
    type Input = Input;
    const ROLE: ToolRole =
        ToolRole { importance: Importance::Always, is_control: true, ..ToolRole::OPTIONAL };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let wanted = input.event.trim();
        let records = call.conversation.records();
        let number = wanted.trim_start_matches(['e', 'E', '[']).trim_end_matches(']').parse::<u64>().ok();
        let fits =
            |record: &&Record| Some(record.sequence) == number || record.call.as_deref() == Some(wanted);
        let Some(place) = records.iter().position(|record| fits(&record)) else {
            let can_search = call.toolbox.find("history_search").is_some();
            let advice = if can_search { "; `history_search` finds events by words" } else { "" };
            let text = format!("history_read: there is no event `{wanted}`{advice}");
            return Ok(ToolEnd::failed(text).into());
        };
        let record = &records[place];
        let first = input.from_line.unwrap_or(1).max(1);
        let limits = Limits::for_budget(call.conversation.engine().policy().budget).tenths(TENTHS);
        let part = Part {
            lines: Lines { first, last: input.to_line.unwrap_or(usize::MAX) },
            from_byte: input.from_byte.unwrap_or(0),
            limits,
        };
        let original = WholeEvent {
            text: match &record.whole {
                Some(blob) => call.host.stored_text(&blob.digest).await?,
                None => None,
            },
            entry: match (&record.call, &record.whole) {
                (Some(of), None) if may_be_cut(&record.text) => old_output(call, records, place, of).await?,
                _ => entry_of(record, record.text.clone()),
            },
        };
        Ok(match history_read(&original, original.entry.id, part) {
            Ok(text) => ToolEnd::done(text),
            Err(error) => ToolEnd::failed(format!("history_read: {error}")),
        }
        .into())
    }
}

/// An event and its complete text, if that is longer than the event's own.
struct WholeEvent {
    entry: Entry,
    text: Option<String>,
}

impl History for WholeEvent {
    fn entry(&self, _: EventId) -> Result<Option<Entry>, ContextError> {
        Ok(Some(self.entry.clone()))
    }

    fn blob(&self, _: &str) -> Result<Option<String>, ContextError> {
        Ok(self.text.clone())
    }
}

fn may_be_cut(text: &str) -> bool {
    text.len() >= NEVER_CUT_BYTES || count_lines(text) >= NEVER_CUT_LINES
}

/// The output of a call from a log without stored outputs, assembled from its chunks.
async fn old_output(
    call: &CallContext<'_>,
    records: &[Record],
    place: usize,
    of: &str,
) -> Result<Entry, Stopped> {
    let record = &records[place];
    // A call cannot have printed anything before the answer that requested it.
    let asked = records[..place].iter().rev().find(|record| record.kind == RecordKind::Answer);
    let after = asked.map_or(0, |record| record.sequence);
    let output = call.host.output_of(of, after, record.sequence).await?;
    let text = output.filter(|output| output.len() > record.text.len());
    Ok(entry_of(record, text.unwrap_or_else(|| record.text.clone())))
}
