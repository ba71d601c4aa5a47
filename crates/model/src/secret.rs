//! A key that is never printed.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// A key. It prints as `***`, is not serializable, and is only accessible through [`Secret::reveal`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Stores a key without surrounding white space, such as the line feed at the end of a file.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The key itself, for a header.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Redacts every copy of the key in a text: a provider's message may repeat what it received.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        if self.0.len() < 4 { text.to_owned() } else { text.replace(&self.0, "***") }
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::new(&text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}
