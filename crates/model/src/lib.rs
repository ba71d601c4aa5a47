//! Language models: one trait, the providers behind it, retries, prices, and a scripted server for tests.
//!
//! A caller builds a [`ModelRequest`], passes it to a [`Model`] created by [`connect`], and reads [`ModelEvent`]s
//! until the [`Answer`]. The next request sends the answer's parts back unchanged; parts that only one provider
//! understands, such as signatures of its reasoning, are opaque JSON. This crate handles retries, fallback to other
//! models, and tool calls for models without native ones, behind the same trait.
//!
//! Keys enter as [`Secret`] and leave only in a header to their own provider: no log line, error or `Debug` output of
//! this crate shows one.

mod anthropic;
mod catalogue;
mod chain;
mod choice;
mod connect;
mod discover;
mod draft;
mod embeddings;
mod endpoint;
mod error;
mod error_response;
mod event_parser;
mod events;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gemini;
mod http;
mod lenient;
mod message;
mod model_status;
mod name;
mod openai;
mod output;
mod price;
mod probe;
mod prompted;
mod provider;
mod request;
mod responses;
mod retry;
#[cfg(feature = "scripted")]
pub mod scripted;
mod secret;
mod settings;
mod sse;
mod trial;
mod usage;

use std::sync::Arc;

use async_trait::async_trait;

pub use choice::{ChosenModel, ModelChoice, NewModelChoice};
pub use connect::connect;
pub use discover::{Offer, Source, list};
pub use embeddings::{Embeddings, MAX_TEXTS};
pub use error::{ModelError, Retryable};
pub use message::{Image, Message, Opaque, Part, Reasoning, ResultPart, Role, ToolCall, ToolResult};
pub use model_status::{ModelOrigin, ModelStatus, ProviderInfo, Trouble, UsedModel, check_models};
pub use name::{Dialect, ModelName};
pub use output::{Answer, ModelEvent, ModelStream, StopReason, finish, read_stream};
pub use price::{LongPrice, Money, Price};
pub use provider::{PROVIDERS, Provider};
pub use request::{Effort, ModelRequest, OutputSchema, ToolChoice, ToolSpec};
pub use secret::Secret;
pub use settings::{ModelLimits, ModelOverrides, NamedBy, Settings, ToolMode};
pub use trial::{ModelTest, test_model};
pub use usage::Usage;

/// A language model.
///
/// Dropping the stream cancels the request: it closes the connection and stops further cost.
#[async_trait]
pub trait Model: Send + Sync {
    /// The model's name, such as `anthropic/claude-sonnet-4-5`. With fallbacks, the first model.
    fn name(&self) -> &ModelName;
    /// The model's limits and features. With fallbacks, those of the first model.
    fn limits(&self) -> ModelLimits;
    /// The first model, including fallbacks, whose price is unknown: a cost budget cannot be enforced for it.
    fn unpriced(&self) -> Option<&ModelName> {
        None
    }
    /// The cost of a request with this usage at the most expensive model; `None` if any price is unknown.
    fn cost_at_most(&self, _usage: &Usage) -> Option<Money> {
        None
    }
    /// How much it thinks if a request does not say; `None` for what the provider does by itself. With fallbacks, that of
    /// the first model.
    fn default_effort(&self) -> Option<Effort> {
        None
    }
    /// Whether the answers are scripted.
    fn is_recorded(&self) -> bool {
        false
    }
    /// Sends a request. The last item of the stream is [`ModelEvent::Answer`] or an error. A failure before the first
    /// byte may be returned here or as the first item: handle both alike. The request is shared, not copied, because
    /// it may be large.
    async fn stream(&self, request: Arc<ModelRequest>) -> Result<ModelStream, ModelError>;
}
