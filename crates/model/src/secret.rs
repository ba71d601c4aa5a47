//! A key that does not print itself.

use std::fmt;

/// A key. Prints as `***`, is not serializable, and shows itself only to who asks for it by name.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a key; white space around it, such as a file's last line end, is not part of it.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The key itself, for a header.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Replaces every copy of the key in a text: what a provider says may repeat what it was sent.
    #[must_use]
    pub fn hide_in(&self, text: &str) -> String {
        if self.0.len() < 4 { text.to_owned() } else { text.replace(&self.0, "***") }
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
