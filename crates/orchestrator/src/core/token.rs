//! The secret of an API key: shown once, stored as a digest.
//!
//! A token has 244 random bits, so a plain SHA-256 digest is enough: a slow password hash would add nothing.

use std::fmt;

use store::digest;
use uuid::Uuid;

/// Prefix of every token, so that people and secret scanners recognize one.
const PREFIX: &str = "caisson_";
const RANDOM_CHARACTERS: usize = 64;

#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub(crate) fn generate() -> Self {
        Self(format!("{PREFIX}{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// `None` if the text is not a well-formed token.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let random = text.strip_prefix(PREFIX)?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (random.len() == RANDOM_CHARACTERS && random.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }

    /// The digest that is stored.
    pub(crate) fn digest(&self) -> [u8; 32] {
        digest(self.0.as_bytes())
    }

    /// The secret itself, to be shown once.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_unique_and_hidden_in_debug_output() {
        let (one, other) = (Token::generate(), Token::generate());
        assert_ne!(one, other);
        assert_eq!(Token::parse(one.reveal()), Some(one.clone()));
        assert_eq!(format!("{one:?}"), "***");
        assert_ne!(one.digest(), other.digest());
    }

    #[test]
    fn malformed_tokens_are_rejected() {
        let good = Token::generate();
        let upper = good.reveal().to_uppercase();
        let long = format!("{}0", good.reveal());
        for text in ["", "caisson_", "caisson_xyz", &upper, &long, &good.reveal()[1..]] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }
}
