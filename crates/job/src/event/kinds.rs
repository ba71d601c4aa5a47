//! Filters on kinds of events.

use super::EventKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    All,
    Only(&'static [EventKind]),
    Except(&'static [EventKind]),
}

/// Output of calls, which is most of a long log.
pub const OUTPUT: Kinds = Kinds::Only(&OUTPUT_KINDS);

/// Everything except output of calls.
pub const WITHOUT_OUTPUT: Kinds = Kinds::Except(&OUTPUT_KINDS);

/// Start and end of calls.
pub const CALLS: Kinds = Kinds::Only(&[EventKind::CallStarted, EventKind::CallEnded]);

const OUTPUT_KINDS: [EventKind; 3] =
    [EventKind::CallOutput, EventKind::CallOutputDropped, EventKind::CallDisplay];
