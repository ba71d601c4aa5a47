//! What can go wrong between a request and its answer. No text in here holds a key: what providers say is cleaned
//! before it becomes part of an error.

use std::time::Duration;

use crate::answer::Usage;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Nothing is configured and no local server was found. A job waits for one.
    #[error("no model: none is configured and no local model server answers; {advice}")]
    NoModel {
        /// What a person can do.
        advice: String,
    },
    /// A setting is wrong.
    #[error("{key}: {detail}")]
    Settings {
        /// Which one.
        key: String,
        /// What is wrong and what is allowed.
        detail: String,
    },
    /// The request is longer than the model can take.
    #[error("asking {model}: the conversation is longer than the model can take: {detail}")]
    Overflow {
        /// Who was asked.
        model: String,
        /// Tokens of the request, where the provider says.
        requested: Option<u64>,
        /// Tokens the model takes, where the provider says.
        limit: Option<u64>,
        /// The provider's words.
        detail: String,
    },
    /// Too many requests.
    #[error("asking {model}: too many requests: {detail}")]
    RateLimited {
        /// Who was asked.
        model: String,
        /// How long to wait, where the provider says.
        retry_after: Option<Duration>,
        /// The provider's words.
        detail: String,
    },
    /// The key is missing, wrong, or not allowed to do this.
    #[error("asking {model}: {detail}")]
    Auth {
        /// Who was asked.
        model: String,
        /// That the key was not accepted, in the provider's words, or which key is missing.
        detail: String,
    },
    /// The account has no money left.
    #[error("asking {model}: the account cannot pay: {detail}")]
    NoCredit {
        /// Who was asked.
        model: String,
        /// The provider's words.
        detail: String,
    },
    /// The provider does not know the model.
    #[error("asking {model}: there is no such model: {detail}")]
    UnknownModel {
        /// Who was asked.
        model: String,
        /// The provider's words.
        detail: String,
    },
    /// The provider does not take the request as it is.
    #[error("asking {model}: the request was not accepted: {detail}")]
    Rejected {
        /// Who was asked.
        model: String,
        /// The provider's words.
        detail: String,
    },
    /// The provider will not answer this.
    #[error("asking {model}: the provider refuses to answer: {detail}")]
    Refused {
        /// Who was asked.
        model: String,
        /// The provider's words.
        detail: String,
    },
    /// The provider is in trouble.
    #[error("asking {model}: the provider is in trouble: {detail}")]
    Server {
        /// Who was asked.
        model: String,
        /// Status of the answer; 0 when the trouble was told inside a stream.
        status: u16,
        /// How long to wait, where the provider says.
        retry_after: Option<Duration>,
        /// The provider's words.
        detail: String,
    },
    /// Nobody answers at the address.
    #[error("asking {model}: cannot reach it: {detail}")]
    Unreachable {
        /// Who was asked.
        model: String,
        /// What failed.
        detail: String,
    },
    /// The answer broke off.
    #[error("asking {model}: the answer broke off: {detail}")]
    Cut {
        /// Who was asked.
        model: String,
        /// What failed.
        detail: String,
        /// Tokens that will be paid for all the same, as far as the provider told.
        lost: Usage,
    },
    /// Nothing came for too long.
    #[error("asking {model}: nothing came for {} s", silence.as_secs_f32())]
    Silent {
        /// Who was asked.
        model: String,
        /// How long.
        silence: Duration,
        /// Tokens that will be paid for all the same, as far as the provider told.
        lost: Usage,
    },
    /// The answer is not what the provider promises.
    #[error("asking {model}: the answer cannot be read: {detail}")]
    Malformed {
        /// Who was asked.
        model: String,
        /// What is wrong with it.
        detail: String,
    },
}

/// Whether asking again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retryable {
    /// The same request to the same model may succeed later.
    Later,
    /// Another model may answer; the same will not.
    OtherModel,
    /// The request or the settings must change first.
    No,
}

impl ModelError {
    /// Whether asking again may help, and whom.
    pub fn retryable(&self) -> Retryable {
        match self {
            Self::RateLimited { .. }
            | Self::Server { .. }
            | Self::Unreachable { .. }
            | Self::Cut { .. }
            | Self::Silent { .. }
            | Self::Malformed { .. } => Retryable::Later,
            Self::Auth { .. } | Self::NoCredit { .. } | Self::UnknownModel { .. } | Self::Refused { .. } => {
                Retryable::OtherModel
            }
            Self::NoModel { .. } | Self::Settings { .. } | Self::Overflow { .. } | Self::Rejected { .. } => {
                Retryable::No
            }
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.retryable() == Retryable::Later
    }

    /// How long the provider asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Server { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Tokens that are paid for although there is no answer, as far as the provider told.
    pub fn lost(&self) -> Usage {
        match self {
            Self::Cut { lost, .. } | Self::Silent { lost, .. } => *lost,
            _ => Usage::default(),
        }
    }

    /// A word that a program can match.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoModel { .. } => "no_model",
            Self::Settings { .. } => "model_settings",
            Self::Overflow { .. } => "context_overflow",
            Self::RateLimited { .. } => "rate_limited",
            Self::Auth { .. } => "model_auth",
            Self::NoCredit { .. } => "model_no_credit",
            Self::UnknownModel { .. } => "unknown_model",
            Self::Rejected { .. } => "model_rejected",
            Self::Refused { .. } => "model_refused",
            Self::Server { .. } => "model_server",
            Self::Unreachable { .. } => "model_unreachable",
            Self::Cut { .. } => "model_cut",
            Self::Silent { .. } => "model_silent",
            Self::Malformed { .. } => "model_malformed",
        }
    }
}
