//! Why a connection was refused: a code for programs and an explanation for people.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

/// The reason code of a refusal or failure. Stable: programs match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonCode {
    /// The job has no network access.
    EgressOff,
    /// The host is not a package registry or code host.
    NotInPackages,
    /// The host is not in the job's allow list.
    NotInList,
    /// The address is in a refused range.
    RefusedRange,
    /// The host is allowed, but not on this port.
    PortNotAllowed,
    /// The host is allowed, but not for this method or path.
    RequestNotAllowed,
    /// The operator's ceiling forbids it for every job.
    AboveCeiling,
    /// A tunnel carries something other than TLS, and no rule allows that.
    WithoutTls,
    /// The server name in a TLS handshake differs from the host of the connection.
    ServerNameMismatch,
    /// A secret's placeholder was sent to a host that may not receive the value.
    SecretHostMismatch,
    /// The job has reached its limit of bytes or connections.
    BudgetExhausted,
    /// The server's certificate is not valid for it.
    BadCertificate,
    /// The name does not resolve.
    ResolveFailed,
    /// The server is unreachable or sent an invalid response.
    ConnectFailed,
    /// The response of a host of a secret has an encoding that cannot be searched for the value.
    UnscannableResponse,
    /// Resolving, connecting or the response took too long.
    Timeout,
    /// A proxy cannot serve this request.
    BadRequest,
    /// A request repeats a header that must be unique.
    DuplicateHeader,
    /// The sandbox has too many open connections.
    TooManyConnections,
    /// The log is closed because the job is ending.
    Ending,
}

impl ReasonCode {
    /// The serialized form of the code.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EgressOff => "egress_off",
            Self::NotInPackages => "not_in_packages",
            Self::NotInList => "not_in_list",
            Self::RefusedRange => "refused_range",
            Self::PortNotAllowed => "port_not_allowed",
            Self::RequestNotAllowed => "request_not_allowed",
            Self::AboveCeiling => "above_ceiling",
            Self::WithoutTls => "without_tls",
            Self::ServerNameMismatch => "server_name_mismatch",
            Self::SecretHostMismatch => "secret_host_mismatch",
            Self::BudgetExhausted => "budget_exhausted",
            Self::BadCertificate => "bad_certificate",
            Self::ResolveFailed => "resolve_failed",
            Self::ConnectFailed => "connect_failed",
            Self::UnscannableResponse => "unscannable_response",
            Self::Timeout => "timeout",
            Self::BadRequest => "bad_request",
            Self::DuplicateHeader => "duplicate_header",
            Self::TooManyConnections => "too_many_connections",
            Self::Ending => "ending",
        }
    }

    /// Whether the policy refused the connection, as opposed to a failure.
    #[must_use]
    pub fn is_policy(self) -> bool {
        self.status() == StatusCode::FORBIDDEN
    }

    /// Whether a user of the job may allow it, as opposed to only the operator.
    pub(crate) fn may_be_approved(self) -> bool {
        matches!(
            self,
            Self::EgressOff
                | Self::NotInPackages
                | Self::NotInList
                | Self::PortNotAllowed
                | Self::RequestNotAllowed
        )
    }

    /// Whether the policy refuses the host or port, as opposed to a single request.
    pub(crate) fn is_about_host(self) -> bool {
        self.may_be_approved() && self != Self::RequestNotAllowed
    }

    /// The status of the HTTP response that reports it.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::EgressOff
            | Self::NotInPackages
            | Self::NotInList
            | Self::RefusedRange
            | Self::PortNotAllowed
            | Self::RequestNotAllowed
            | Self::AboveCeiling
            | Self::WithoutTls
            | Self::ServerNameMismatch
            | Self::SecretHostMismatch
            | Self::BudgetExhausted => StatusCode::FORBIDDEN,
            Self::ResolveFailed | Self::ConnectFailed | Self::BadCertificate | Self::UnscannableResponse => {
                StatusCode::BAD_GATEWAY
            }
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::BadRequest | Self::DuplicateHeader => StatusCode::BAD_REQUEST,
            Self::TooManyConnections | Self::Ending => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// A refusal or failure with its explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Machine-readable reason.
    pub code: ReasonCode,
    /// The deciding rule, as written in the policy; empty if no rule decided.
    pub rule: String,
    /// One human-readable sentence.
    pub reason: String,
    /// What would allow it; empty if nothing would.
    pub remedy: String,
}

impl Refusal {
    /// A failure that no rule decided.
    pub(crate) fn failure(code: ReasonCode, reason: impl Into<String>) -> Self {
        Self { code, rule: String::new(), reason: reason.into(), remedy: String::new() }
    }

    /// The text that the client displays.
    #[must_use]
    pub fn explanation(&self) -> String {
        let mut text = format!("Caisson: {}\nreason: {}\n", self.reason, self.code.as_str());
        if !self.rule.is_empty() {
            text.push_str(&format!("rule: {}\n", self.rule));
        }
        if !self.remedy.is_empty() {
            text.push_str(&format!("to allow it: {}\n", self.remedy));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_code_display_matches_serde() {
        for code in [
            ReasonCode::EgressOff,
            ReasonCode::NotInPackages,
            ReasonCode::NotInList,
            ReasonCode::RefusedRange,
            ReasonCode::PortNotAllowed,
            ReasonCode::RequestNotAllowed,
            ReasonCode::AboveCeiling,
            ReasonCode::WithoutTls,
            ReasonCode::ServerNameMismatch,
            ReasonCode::SecretHostMismatch,
            ReasonCode::BudgetExhausted,
            ReasonCode::BadCertificate,
            ReasonCode::ResolveFailed,
            ReasonCode::ConnectFailed,
            ReasonCode::UnscannableResponse,
            ReasonCode::Timeout,
            ReasonCode::BadRequest,
            ReasonCode::DuplicateHeader,
            ReasonCode::TooManyConnections,
            ReasonCode::Ending,
        ] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
