//! Rebuilds an agent's state from a log alone, to show what its model saw at any event.

use context::{Engine, EntryBody, Settings, Window};

use super::{Conversation, VisionSupport};
use crate::budget::Budget;
use crate::error::AgentError;
use crate::event::{AgentEvent, SequencedEvent};

/// The state after these events. `None` before the first model request, because the window is unknown until then.
///
/// # Errors
/// The log has a window that is too small to work with, or a rules version that this program does not know.
pub fn replay(log: &[SequencedEvent]) -> Result<Option<Conversation>, AgentError> {
    let Some(window) = first_window(log) else { return Ok(None) };
    check_versions(log)?;
    let engine = Engine::new(Settings::from(window))?;
    let mut conversation = Conversation::new(engine, Budget::default(), VisionSupport::of(window));
    for logged in log {
        conversation.apply(logged);
    }
    Ok(Some(conversation))
}

/// The window that the log's context engine starts with.
pub(crate) fn first_window(log: &[SequencedEvent]) -> Option<&Window> {
    windows(log).next()
}

/// Rejects a log that was written with newer rules than this program knows.
pub(crate) fn check_versions(log: &[SequencedEvent]) -> Result<(), AgentError> {
    windows(log).try_for_each(|window| Ok(window.check_version()?))
}

fn windows(log: &[SequencedEvent]) -> impl Iterator<Item = &Window> {
    log.iter().filter_map(|logged| match &logged.event {
        AgentEvent::ContextChanged(EntryBody::Window(window)) => Some(window),
        _ => None,
    })
}
