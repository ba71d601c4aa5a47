//! The secret of a key: shown once, kept as a digest.
//!
//! A token has 244 random bits, so a plain digest is enough: there is nothing to guess that a slow one would slow down.

use std::fmt;

use uuid::Uuid;

use crate::store::digest;

/// How every token begins, so that people and secret scanners know one when they see it.
const PREFIX: &str = "caisson_";
const RANDOM_CHARACTERS: usize = 64;

/// The secret of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new one.
    pub(crate) fn generate() -> Self {
        Self(format!("{PREFIX}{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
    }

    /// Reads one; nothing where it cannot be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let random = text.strip_prefix(PREFIX)?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (random.len() == RANDOM_CHARACTERS && random.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }

    /// What is stored of it.
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
    fn tokens_are_long_different_and_not_printed() {
        let (one, other) = (Token::generate(), Token::generate());
        assert_ne!(one, other);
        assert_eq!(Token::parse(one.reveal()), Some(one.clone()));
        assert_eq!(format!("{one:?}"), "***");
        assert_ne!(one.digest(), other.digest());
    }

    #[test]
    fn what_cannot_be_a_token_is_none() {
        let good = Token::generate();
        let upper = good.reveal().to_uppercase();
        let long = format!("{}0", good.reveal());
        for text in ["", "caisson_", "caisson_xyz", &upper, &long, &good.reveal()[1..]] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }
}
