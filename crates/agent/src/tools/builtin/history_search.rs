//! `history_search`: finds earlier events by words, including those that are no longer in view.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::conversation::{HISTORY_SEARCH_TOOL, search};
use crate::event::ToolEnd;
use crate::host::Stopped;
use crate::tools::{CallContext, Tool, ToolFlow, ToolRole};

const MAX_FOUND: usize = 5;

pub(super) struct HistorySearch;

/// What to look for.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// Words, identifiers, paths, or a day such as 2026-11-15.
    #[serde(alias = "words")]
    query: String,
}

impl Tool for HistorySearch {
    const NAME: &'static str = HISTORY_SEARCH_TOOL;
    const DESCRIPTION: &'static str = "Finds earlier events of this job, also those that are no longer in view, by words, \
        identifiers or paths. `history_read` shows one in full.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole { is_control: true, ..ToolRole::OPTIONAL };

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let records = call.conversation.records();
        if call.recall.has_index() {
            match call.recall.search(&input.query, records, call.host.now_ms()).await {
                Ok(text) => return Ok(ToolEnd::done(text).into()),
                // A full disk must not make the history unavailable.
                Err(error) => tracing::warn!(%error, "the history is searched without its index"),
            }
        }
        let found = search(records, &input.query, MAX_FOUND);
        if found.is_empty() {
            return Ok(ToolEnd::done(format!("nothing in the history has `{}`", input.query)).into());
        }
        let mut text = String::new();
        for found in found {
            let kind = format!("{:?}", found.record.kind).to_lowercase();
            let _ = writeln!(text, "e{} {kind}: {}", found.record.sequence, found.line);
        }
        Ok(ToolEnd::done(text).into())
    }
}
