//! The launcher's error type. Each error names the step that failed.

use std::io;

#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct LaunchError {
    /// What was being done, and to what.
    pub step: String,
    #[source]
    pub source: io::Error,
}

impl LaunchError {
    pub fn new(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { step: step.into(), source: source.into() }
    }
}

/// Adds the name of the step to an error.
pub(crate) trait Step<T> {
    /// Wraps the error with a step name that is computed only on failure.
    fn step(self, step: impl FnOnce() -> String) -> Result<T, LaunchError>;
    /// Wraps the error with a fixed step name.
    fn named(self, step: &'static str) -> Result<T, LaunchError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, LaunchError> {
        self.map_err(|error| LaunchError::new(step(), error))
    }

    fn named(self, step: &'static str) -> Result<T, LaunchError> {
        self.map_err(|error| LaunchError::new(step, error))
    }
}
