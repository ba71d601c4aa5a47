//! Errors with a code that programs can match.

use std::fmt;

/// An error with a code that programs can match.
#[derive(Debug)]
pub(crate) struct CodedError {
    pub(crate) code: String,
    message: String,
}

impl CodedError {
    pub(crate) fn error(code: impl Into<String>, message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { code: code.into(), message: message.into() })
    }
}

/// Whether an error has one of these codes.
pub(crate) fn has_code(error: &anyhow::Error, codes: &[&str]) -> bool {
    error.downcast_ref::<CodedError>().is_some_and(|coded| codes.contains(&coded.code.as_str()))
}

impl fmt::Display for CodedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CodedError {}
