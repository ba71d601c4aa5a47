//! The progress of a tool call, and of the input request that it waits for.

use model::ToolCall;

use crate::input_request::InputAnswer;

/// A tool call of the newest answer.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenCall {
    pub call: ToolCall,
    pub stage: Stage,
}

/// The progress of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Not started.
    Waiting,
    /// SequencedEvent as started at this time, in milliseconds since 1970.
    Started {
        time_ms: i64,
    },
    Ended,
}

/// The state of a request to a person.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nobody has answered yet.
    Open,
    /// Nobody answered before the deadline.
    TimedOut,
    Answered(InputAnswer),
}
