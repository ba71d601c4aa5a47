//! Errors of model requests. They contain no keys: text from providers is redacted before it becomes part of an
//! error.

use std::time::Duration;

use crate::usage::Usage;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// No model is configured, and no local server was found. A job waits for one.
    #[error("no model: none is configured and no local model server answers; {advice}")]
    NoModel {
        /// What the user can do.
        advice: String,
    },
    #[error("{key}: {detail}")]
    Settings {
        key: String,
        /// What is wrong, and what is allowed.
        detail: String,
    },
    /// The request exceeds the model's context window.
    #[error("asking {model}: the conversation is longer than the model can take: {detail}")]
    Overflow {
        model: String,
        /// Tokens of the request, if the provider reports them.
        requested: Option<u64>,
        /// The model's limit, if the provider reports it.
        limit: Option<u64>,
        /// The provider's message.
        detail: String,
    },
    #[error("asking {model}: too many requests: {detail}")]
    RateLimited {
        model: String,
        /// How long to wait, if the provider says.
        retry_after: Option<Duration>,
        /// The provider's message.
        detail: String,
    },
    /// The key is missing, wrong, or lacks permission.
    #[error("asking {model}: {detail}")]
    Auth {
        model: String,
        /// The provider's message that it did not accept the key, or which key is missing.
        detail: String,
    },
    /// The account has no credit left.
    #[error("asking {model}: the account cannot pay: {detail}")]
    NoCredit {
        model: String,
        /// The provider's message.
        detail: String,
    },
    #[error("asking {model}: there is no such model: {detail}")]
    UnknownModel {
        model: String,
        /// The provider's message.
        detail: String,
    },
    /// The provider does not accept the request.
    #[error("asking {model}: the request was not accepted: {detail}")]
    Rejected {
        model: String,
        /// The provider's message.
        detail: String,
    },
    /// The provider refuses to answer.
    #[error("asking {model}: the provider refuses to answer: {detail}")]
    Refused {
        model: String,
        /// The provider's message.
        detail: String,
    },
    /// The provider has a temporary problem.
    #[error("asking {model}: the provider is in trouble: {detail}")]
    Server {
        model: String,
        /// HTTP status; 0 if the error arrived inside a stream.
        status: u16,
        /// How long to wait, if the provider says.
        retry_after: Option<Duration>,
        /// The provider's message.
        detail: String,
    },
    /// The address is unreachable.
    #[error("asking {model}: cannot reach it: {detail}")]
    Unreachable {
        model: String,
        /// What failed.
        detail: String,
    },
    /// The answer was cut off.
    #[error("asking {model}: the answer broke off: {detail}")]
    Cut {
        model: String,
        /// What failed.
        detail: String,
        /// Tokens that are billed anyway, as far as the provider reported them.
        lost: Usage,
    },
    /// Nothing arrived within the silence timeout.
    #[error("asking {model}: nothing came for {} s", silence.as_secs_f32())]
    Silent {
        model: String,
        silence: Duration,
        /// Tokens that are billed anyway, as far as the provider reported them.
        lost: Usage,
    },
    /// The response does not match the API.
    #[error("asking {model}: the answer cannot be read: {detail}")]
    Malformed { model: String, detail: String },
}

/// Whether a retry may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retryable {
    /// The same request to the same model may succeed later.
    Later,
    /// Another model may answer; the same one will not.
    OtherModel,
    /// The request or the settings must change first.
    No,
}

impl ModelError {
    /// Whether a retry may help, and with which model.
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

    /// Tokens that are billed although there is no answer, as far as the provider reported them.
    pub fn lost(&self) -> Usage {
        match self {
            Self::Cut { lost, .. } | Self::Silent { lost, .. } => *lost,
            _ => Usage::default(),
        }
    }

    /// A stable error code for programs.
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
            Self::Silent { .. } => "model_timeout",
            Self::Malformed { .. } => "model_malformed",
        }
    }
}
