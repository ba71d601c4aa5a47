//! What can go wrong with a sandbox.

use crate::spec::{Isolation, LimitKind, SandboxId};

/// A failure of a backend.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The host lacks something that every sandbox needs.
    #[error("{what}; {remedy}")]
    HostUnfit {
        /// What is missing.
        what: String,
        /// What the operator can do.
        remedy: String,
    },
    /// A limit was asked for that this host cannot enforce.
    #[error("this host cannot enforce the {limit} limit that was asked for: {why}")]
    LimitUnenforceable {
        /// Which one.
        limit: LimitKind,
        /// Why not.
        why: String,
    },
    /// A limit is outside what is possible.
    #[error("the {limit} limit {value} is not possible: {allowed}")]
    LimitOutOfRange {
        /// Which one.
        limit: LimitKind,
        /// What was asked for.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// More isolation was asked for than this backend gives.
    #[error("{asked:?} isolation was asked for, this backend gives {given:?}")]
    TooWeak {
        /// Asked for.
        asked: Isolation,
        /// Given.
        given: Isolation,
    },
    /// There is no such image.
    #[error("there is no image {0}")]
    NoImage(String),
    /// There is no such sandbox, or it has ended.
    #[error("sandbox {id} is not running: {why}")]
    NotRunning {
        /// Which.
        id: SandboxId,
        /// Why not.
        why: String,
    },
    /// Setting up a sandbox failed at a step.
    #[error("setting up sandbox {id}: {step}")]
    Setup {
        /// Which.
        id: SandboxId,
        /// What was being done.
        step: String,
        /// The cause, where there is one.
        #[source]
        source: Option<std::io::Error>,
    },
    /// Something outside the sandbox failed.
    #[error("{doing}")]
    Io {
        /// What was being done to what.
        doing: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl SandboxError {
    /// Whether the same call may succeed later without anyone changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Setup { .. } => true,
            Self::HostUnfit { .. }
            | Self::LimitUnenforceable { .. }
            | Self::LimitOutOfRange { .. }
            | Self::TooWeak { .. }
            | Self::NoImage(_)
            | Self::NotRunning { .. } => false,
        }
    }
}
