//! Translates errors of the MCP library, whose texts describe its own internals, into errors that users and the model
//! can read. The original goes to the server's log.

use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::error::McpError;
use crate::http::Failure;
use crate::outcome::short;
use crate::stdio::LineError;

/// The library's own answer to a call whose session was replaced.
const REINITIALIZED: &str = "streamable HTTP session was re-initialized before the response arrived";
const ENDED: &str = "it has ended";

/// The error of a request.
pub(crate) fn request_error(error: &ServiceError) -> McpError {
    tracing::debug!(%error, "a request to an MCP server failed");
    match error {
        ServiceError::McpError(error) if error.message == REINITIALIZED => {
            McpError::ConnectionClosed("it has started a new session".into())
        }
        ServiceError::McpError(error) => McpError::ProtocolError(short(&error.message)),
        ServiceError::TransportSend(error) => McpError::ConnectionClosed(transport_error(error)),
        ServiceError::UnexpectedResponse => McpError::InvalidResponse("it belongs to another request".into()),
        _ => McpError::ConnectionClosed(ENDED.into()),
    }
}

/// The error of the initialization.
pub(crate) fn initialization_error(error: &ClientInitializeError) -> McpError {
    tracing::debug!(%error, "the initialization of an MCP server failed");
    McpError::Initialization(match error {
        ClientInitializeError::JsonRpcError(error) => short(&error.message),
        ClientInitializeError::TransportError { error, .. } => transport_error(error),
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            "it speaks only versions of MCP that are not supported".into()
        }
        ClientInitializeError::ConnectionClosed(_) | ClientInitializeError::Cancelled => ENDED.into(),
        _ => "its answer is none to a greeting".into(),
    })
}

/// The text of our own transports; a fixed one for errors of the library's part.
fn transport_error(error: &DynamicTransportError) -> String {
    if let Some(error) = error.error.downcast_ref::<LineError>() {
        return error.to_string();
    }
    match error.error.downcast_ref::<Failure>() {
        Some(StreamableHttpError::Client(error)) => error.to_string(),
        Some(StreamableHttpError::SessionExpired | StreamableHttpError::SessionRecoveryTimeout) => {
            "it does not know the session any more".into()
        }
        Some(StreamableHttpError::UnexpectedServerResponse(_) | StreamableHttpError::Deserialize(_)) => {
            "it sent something that is not MCP".into()
        }
        _ => ENDED.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use rmcp::model::ErrorData;

    use super::*;

    fn broken(error: impl std::error::Error + Send + Sync + 'static) -> ServiceError {
        let error = DynamicTransportError::from_parts("x", TypeId::of::<()>(), Box::new(error));
        ServiceError::TransportSend(error)
    }

    #[test]
    fn errors_of_the_library_are_described_in_own_words() {
        let said = |message: &'static str| ServiceError::McpError(ErrorData::internal_error(message, None));
        for (error, text) in [
            (said("no such issue"), "it answered: no such issue"),
            (said(REINITIALIZED), "its connection is gone: it has started a new session"),
            (ServiceError::TransportClosed, "its connection is gone: it has ended"),
            (ServiceError::Cancelled { reason: None }, "its connection is gone: it has ended"),
            (
                broken(Failure::UnexpectedServerResponse("expect json, got Accepted".into())),
                "its connection is gone: it sent something that is not MCP",
            ),
            (
                broken(Failure::SessionExpired),
                "its connection is gone: it does not know the session any more",
            ),
            (broken(Failure::TransportChannelClosed), "its connection is gone: it has ended"),
            (broken(std::io::Error::other("channel closed")), "its connection is gone: it has ended"),
        ] {
            assert_eq!(request_error(&error).to_string(), text);
        }
    }
}
