//! Mistral's requirements, which other servers tolerate: call ids of nine letters or digits, and no user message
//! directly after tool results.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Map;

use super::Flavour;
use super::wire::{Content, Message as Wire};
use crate::message::{Message, Part};

/// The length of a call id.
const ID_LENGTH: usize = 9;
/// The characters of a call id.
const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// Substrings of Mistral model names, whichever server runs them.
const MODELS: [&str; 7] =
    ["mistral", "mixtral", "ministral", "magistral", "codestral", "devstral", "pixtral"];

/// The message format that a model requires.
#[derive(Debug, Clone, Copy)]
pub(super) struct MistralRules {
    /// Whether the model uses Mistral's chat template.
    pub(super) is_mistral: bool,
}

impl MistralRules {
    /// The format for a model, by its name and API flavour.
    pub(super) fn of(model: &str, flavour: Flavour) -> Self {
        let name = model.to_lowercase();
        Self { is_mistral: flavour == Flavour::Mistral || MODELS.iter().any(|part| name.contains(part)) }
    }

    /// A call id in an accepted form: the same for the call and its result.
    pub(super) fn id(self, id: &str) -> Cow<'_, str> {
        let fits = id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !self.is_mistral || fits {
            return Cow::Borrowed(id);
        }
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let mut number = hasher.finish();
        let mut letter = || {
            let place = usize::try_from(number % 36).unwrap_or_default();
            number /= 36;
            char::from(ALPHABET[place])
        };
        Cow::Owned((0..ID_LENGTH).map(|_| letter()).collect())
    }
}

/// Appends a text-only message to the preceding tool result; returns `false` if there is none.
pub(super) fn add_to_result<'a>(messages: &mut [Wire<'a>], message: &'a Message) -> bool {
    let Some(Wire::Tool { content, .. }) = messages.last_mut() else { return false };
    let text = |part: &'a Part| if let Part::Text(text) = part { Some(text.as_str()) } else { None };
    let Some(texts) = message.parts.iter().map(text).collect::<Option<Vec<_>>>() else { return false };
    content.join(Content::Text(texts.join("\n\n").into()));
    true
}

/// An assistant message between tool results and the next user message.
pub(super) fn between<'a>() -> Wire<'a> {
    let content = Some(Content::Text("I have read this.".into()));
    Wire::Assistant { content, tool_calls: Vec::new(), thought: Map::new() }
}
