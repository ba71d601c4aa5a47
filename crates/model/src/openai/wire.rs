//! The wire format of chat completions. Types borrow their data, so that the body of a long conversation is
//! serialized without a copy.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

#[derive(Serialize)]
pub(super) struct Body<'a> {
    pub(super) model: &'a str,
    pub(super) messages: Vec<Message<'a>>,
    pub(super) stream: bool,
    pub(super) stream_options: StreamOptions,
    /// Tools and other options.
    #[serde(flatten)]
    pub(super) options: Map<String, Value>,
}

/// Options of a stream.
#[derive(Serialize)]
pub(super) struct StreamOptions {
    include_usage: bool,
}

/// Makes the stream end with its token usage.
pub(super) const STREAM: StreamOptions = StreamOptions { include_usage: true };

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(super) enum Message<'a> {
    System {
        content: Content<'a>,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        content: Option<Content<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
        /// The model's reasoning, under the field name that its server uses.
        #[serde(flatten)]
        thought: Map<String, Value>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Content<'a>,
    },
}

/// Plain text, or a list of parts.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Content<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Part<'a>>),
}

impl<'a> Content<'a> {
    /// Appends content: text to text, otherwise as parts.
    pub(super) fn join(&mut self, more: Content<'a>) {
        let known = std::mem::replace(self, Self::Parts(Vec::new()));
        *self = match (known, more) {
            (Self::Text(known), Self::Text(more)) => Self::Text(format!("{known}\n\n{more}").into()),
            (known, more) => Self::Parts(known.into_parts().into_iter().chain(more.into_parts()).collect()),
        };
    }

    fn into_parts(self) -> Vec<Part<'a>> {
        match self {
            Self::Text(text) => vec![Part::text(text)],
            Self::Parts(parts) => parts,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part<'a> {
    Text {
        text: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ImageUrl {
        image_url: ImageUrl,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
}

impl<'a> Part<'a> {
    pub(super) fn text(text: Cow<'a, str>) -> Self {
        Self::Text { text, cache_control: None }
    }

    /// The text of a text part.
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            Self::ImageUrl { .. } => None,
        }
    }
}

/// Marks the end of a prefix that later requests repeat.
#[derive(Serialize)]
pub(super) struct CacheControl {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
}

/// An image as a data URL.
#[derive(Serialize)]
pub(super) struct ImageUrl {
    pub(super) url: String,
}

#[derive(Serialize)]
pub(super) struct Call<'a> {
    pub(super) id: Cow<'a, str>,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) function: Function<'a>,
}

/// The called function; its arguments are serialized as a JSON string.
#[derive(Serialize)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    #[serde(serialize_with = "as_text")]
    pub(super) arguments: Cow<'a, Value>,
}

fn as_text<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
