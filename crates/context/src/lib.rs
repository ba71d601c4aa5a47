//! Turns a job's history into prompts. Long jobs produce more history than any model's window. This crate decides
//! what the model sees and makes the rest searchable.
//!
//! [`Engine`] folds the log into a [`View`]: a pure function of the log, the budget and [`POLICY_VERSION`]. Nothing
//! here accesses a model, a store or the network. Only the recall index accesses files, in a directory that the
//! caller provides.

pub mod citations;
mod engine;
mod entry;
mod error;
mod event_facts;
mod event_id;
pub mod explain;
pub mod map;
pub mod outline;
pub mod output_cap;
mod policy;
pub mod recall;
mod summary;
pub mod tokens;
mod tool_effect;
mod view;

pub use engine::{Appended, Engine};
pub use entry::{Blob, Call, CallResult, Entry, EntryBody, Factor, Image, Summary, Window};
pub use error::ContextError;
pub use event_id::{EventId, EventRange, ParseEventIdError};
pub use policy::{Fixed, MIN_BUDGET, MIN_TIGHTENED_BUDGET, POLICY_VERSION, Policy, Settings};
pub use summary::{PROMPT_VERSION, SummaryFault, SummaryTask};
pub use tokens::truncate;
pub use tool_effect::{ToolEffect, tool_effect, tools_with_effects};
pub use view::{Author, Content, Role, Segment, SegmentKind, View};
