//! What Mistral wants and others do not mind: ids of calls that are nine letters or digits, and no word of the user right after
//! results of tools.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Map;

use super::Flavour;
use super::wire::{Content, Message as Wire};
use crate::message::{Message, Part};

/// How long an id of a call is.
const ID_LETTERS: usize = 9;
/// What an id is made of.
const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// Parts of names of its models, wherever they are served.
const MODELS: [&str; 7] =
    ["mistral", "mixtral", "ministral", "magistral", "codestral", "devstral", "pixtral"];

/// How a model wants to be spoken to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manners {
    /// Whether its templates are those of Mistral.
    pub(super) is_mistral: bool,
}

impl Manners {
    /// Those of a model by its name, at whoever serves it.
    pub(super) fn of(model: &str, flavour: Flavour) -> Self {
        let name = model.to_lowercase();
        Self { is_mistral: flavour == Flavour::Mistral || MODELS.iter().any(|part| name.contains(part)) }
    }

    /// The id of a call as it is taken: the same for the call and its result.
    pub(super) fn id(self, id: &str) -> Cow<'_, str> {
        let fits = id.len() == ID_LETTERS && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
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
        Cow::Owned((0..ID_LETTERS).map(|_| letter()).collect())
    }
}

/// Puts a message of mere text at the end of the result before it, where there is one.
pub(super) fn add_to_result<'a>(messages: &mut [Wire<'a>], message: &'a Message) -> bool {
    let Some(Wire::Tool { content, .. }) = messages.last_mut() else { return false };
    let text = |part: &'a Part| if let Part::Text(text) = part { Some(text.as_str()) } else { None };
    let Some(texts) = message.parts.iter().map(text).collect::<Option<Vec<_>>>() else { return false };
    content.join(Content::Text(texts.join("\n\n").into()));
    true
}

/// What the model says to results before the user speaks again.
pub(super) fn between<'a>() -> Wire<'a> {
    let content = Some(Content::Text("I have read this.".into()));
    Wire::Assistant { content, tool_calls: Vec::new(), thought: Map::new() }
}
