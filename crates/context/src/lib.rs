//! Turns a job's history into prompts. Long jobs produce more history than any model's window. This crate decides
//! what the model sees and makes the rest searchable.
//!
//! [`Engine`] folds the log into a [`View`]: a pure function of the log, the budget and [`POLICY_VERSION`]. Nothing
//! here accesses a model, a store or the network. Only the recall index accesses files, in a directory that the
//! caller provides.

mod ahead;
pub mod cite;
pub mod cut;
mod engine;
mod entry;
mod epoch;
mod error;
pub mod explain;
mod extract;
mod facts;
mod head;
pub mod map;
mod node;
pub mod outline;
pub mod output;
mod policy;
pub mod recall;
mod summary;
pub mod tokens;
mod unit;
mod view;

pub use engine::{Appended, Engine};
pub use entry::{
    Blob, Call, CallResult, Entry, EntryBody, EventId, EventRange, Factor, Image, Summary, Window,
};
pub use error::ContextError;
pub use policy::{Fixed, LEAST_BUDGET, LEAST_ROOM, POLICY_VERSION, Policy, Settings};
pub use summary::{PROMPT_VERSION, SummaryFault, SummaryTask};
pub use view::{Author, Content, Role, Segment, SegmentKind, View};
