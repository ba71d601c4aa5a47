//! `notes`: facts that the agent wants to remember. They stay in its prompt.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::event::{AgentEvent, ToolEnd};
use crate::host::Stopped;
use crate::tools::{CallContext, Tool, ToolFlow, ToolOutput, ToolRole};

/// The maximum length of a note.
const MAX_CHARACTERS: usize = 4000;

pub(super) struct Notes;

/// A note.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// A short name; the same name replaces the note.
    #[serde(alias = "title", alias = "key")]
    name: String,
    /// What to remember; empty to remove the note.
    #[serde(alias = "content", alias = "note")]
    text: String,
}

impl Tool for Notes {
    const NAME: &'static str = "notes";
    const DESCRIPTION: &'static str = "Keeps a note under a name: facts and decisions that you will need later. Notes \
        stay in view when older history does not.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole { is_control: true, ..ToolRole::OPTIONAL };

    async fn run(&self, input: Input, _call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        if input.name.trim().is_empty() || input.name.chars().count() > 100 {
            return Ok(ToolEnd::malformed("notes: `name` must have 1 to 100 characters").into());
        }
        if input.text.chars().count() > MAX_CHARACTERS {
            let text = format!("notes: a note has at most {MAX_CHARACTERS} characters; put more into a file");
            return Ok(ToolEnd::failed(text).into());
        }
        let action = if input.text.is_empty() { "removed" } else { "kept" };
        let end = ToolEnd::done(format!("the note `{}` is {action}", input.name));
        let events = vec![AgentEvent::NoteSaved { name: input.name, text: input.text }];
        Ok(ToolFlow::Done(ToolOutput { end, events }))
    }
}
