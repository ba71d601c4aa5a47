//! Language models: one trait, the providers behind it, retry, price, and a scripted server for tests.
//!
//! A caller makes a [`ModelRequest`], hands it to a [`Model`] that [`connect`] made, and reads [`ModelEvent`]s until
//! the [`Answer`]. What the answer's parts are, the next request sends back as they are: parts that only one provider
//! understands (signatures of its reasoning) travel as opaque JSON. Retry, fallback to another model, and tool calls
//! for models that have none of their own are done in here, behind the same trait.
//!
//! Keys come in as [`Secret`] and leave only in a header to their own provider: no log line, no error, no `Debug` of
//! this crate shows one.

mod answer;
mod anthropic;
mod catalogue;
mod chain;
mod connect;
mod discover;
mod draft;
mod embeddings;
mod error;
mod events;
mod fault;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gemini;
mod http;
mod lenient;
mod message;
mod name;
mod openai;
mod price;
mod probe;
mod prompted;
mod provider;
mod reader;
mod request;
mod responses;
mod retry;
#[cfg(feature = "scripted")]
pub mod scripted;
mod secret;
mod settings;
mod sse;
mod survey;

use std::sync::Arc;

use async_trait::async_trait;

pub use answer::{Answer, ModelEvent, ModelStream, StopReason, Usage, finish, listen};
pub use connect::connect;
pub use discover::{Offer, Source, list};
pub use embeddings::{Embeddings, MOST_TEXTS};
pub use error::{ModelError, Retryable};
pub use message::{Image, Message, Opaque, Part, Reasoning, ResultPart, Role, ToolCall, ToolResult};
pub use name::{Dialect, ModelName};
pub use price::{LongPrice, Money, Price};
pub use provider::{PROVIDERS, Provider};
pub use request::{Effort, ModelRequest, OutputSchema, ToolChoice, ToolSpec};
pub use secret::Secret;
pub use settings::{ModelLimits, Settings, ToolMode};
pub use survey::{Survey, Trouble, UsedModel, survey};

/// A language model that can be asked.
///
/// Dropping the stream ends the request: the connection is closed and nothing more is paid for.
#[async_trait]
pub trait Model: Send + Sync {
    /// What it is called, such as `anthropic/claude-sonnet-4-5`. Of a list with fallbacks, the first.
    fn name(&self) -> &ModelName;
    /// What it can take and do. Of a list with fallbacks, the first.
    fn limits(&self) -> ModelLimits;
    /// The first of the list whose price nobody knows: a budget of money cannot hold it.
    fn unpriced(&self) -> Option<&ModelName> {
        None
    }
    /// What a request that needs so many tokens costs at the dearest of the list; unknown where a price is.
    fn cost_at_most(&self, _usage: &Usage) -> Option<Money> {
        None
    }
    /// Whether its answers were written down beforehand.
    fn is_recorded(&self) -> bool {
        false
    }
    /// Asks. The last item of the stream is [`ModelEvent::Answer`], or an error. What fails before the first byte may
    /// be told here or as the first item: treat both alike. A request is shared, not copied: a long one is large.
    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError>;
}
