//! What can go wrong while a sandbox is made. Each error names the step, so that one line tells where it stopped.

use std::io;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct LaunchError {
    /// What was being done to what.
    pub step: String,
    /// The cause.
    #[source]
    pub source: io::Error,
}

impl LaunchError {
    /// A failed step.
    pub fn new(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { step: step.into(), source: source.into() }
    }
}

/// Names the step that a result belongs to.
pub(crate) trait Step<T> {
    /// Wraps the error with the name of the step.
    fn step(self, step: impl FnOnce() -> String) -> Result<T, LaunchError>;
    /// Wraps the error with a fixed name of the step.
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
