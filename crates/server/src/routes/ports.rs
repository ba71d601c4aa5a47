//! The open ports of a sandbox, and WebSocket connections to them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::BytesMut;
use job::JobId;
use orchestrator::{OrchestratorError, PortStream};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use utoipa::ToSchema;

use crate::access::takeover_gate::TakeoverGate;
use crate::extract::{AppState, JobPath, PortPath};
use crate::openapi::{JobProblems, PortProblems, SandboxProblems, WebSocketProblems};
use crate::problem::Problem;
use crate::streams::{
    ClientMessage, CloseReason, InputMode, InvalidViewerMessage, SocketReader, SocketWriter, Upgrade,
    ViewerFilter,
};

/// The size limit of a message to the client.
const CHUNK_BYTES: usize = 64 * 1024;

/// What listens in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PortsAnswer {
    /// In rising order.
    ports: Vec<PortAnswer>,
}

/// A port that something listens on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PortAnswer {
    /// Its number.
    port: u16,
}

/// List open ports
///
/// The ports on the sandbox's loopback interface with a listener.
#[utoipa::path(
    get, path = "/ports", tag = "sandbox", operation_id = "job_ports",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 200, description = "The ports", body = PortsAnswer), JobProblems, SandboxProblems)
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    JobPath(id): JobPath,
) -> Result<Json<PortsAnswer>, Problem> {
    let mut ports = state.orchestrator.ports(id).await?;
    ports.sort_unstable();
    ports.dedup();
    Ok(Json(PortsAnswer { ports: ports.into_iter().map(|port| PortAnswer { port }).collect() }))
}

/// Connect to a port (WebSocket)
///
/// Binary messages carry one TCP connection in both directions. Closing one closes the other.
#[utoipa::path(
    get, path = "/ports/{port}", tag = "sandbox", operation_id = "job_port",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("port" = u16, Path, description = "An open port of the sandbox", minimum = 1, maximum = 65535),
    ),
    responses(
        (status = 101, description = "A WebSocket"),
        JobProblems,
        SandboxProblems,
        WebSocketProblems,
        PortProblems
    )
)]
pub(crate) async fn connect(
    State(state): State<AppState>,
    PortPath { job, port }: PortPath,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    let stream = state.orchestrator.open_port(job, port).await.map_err(|error| explain(error, port))?;
    Ok(upgrade.start(move |writer, reader| relay(stream, RelayMode::Bytes, writer, reader)))
}

fn explain(error: OrchestratorError, port: u16) -> Problem {
    match error {
        OrchestratorError::Link(protocol::ProtocolError::Refused(why)) => {
            let detail = format!("cannot connect to port {port} of the sandbox: {why}");
            Problem::new(StatusCode::BAD_GATEWAY, "port_unreachable", detail)
        }
        other => other.into(),
    }
}

/// How a connection is relayed.
pub(crate) enum RelayMode {
    /// Unchanged.
    Bytes,
    /// As the VNC connection of a desktop viewer, whose input is dropped while the viewer may only watch.
    Desktop(TakeoverGate),
}

/// Relays bytes between a WebSocket and a connection in a sandbox.
pub(crate) async fn relay(
    mut port: PortStream,
    mode: RelayMode,
    mut writer: SocketWriter,
    mut reader: SocketReader,
) {
    let close_reason = {
        let (from_port, to_port) = tokio::io::split(&mut port.stream);
        tokio::select! {
            close_reason = relay_to_client(from_port, &mut writer) => close_reason,
            close_reason = relay_to_port(&mut reader, mode, to_port) => close_reason,
        }
    };
    let _ = port.stream.shutdown().await;
    writer.close(close_reason, reader).await;
}

async fn relay_to_client<T: AsyncReadExt>(mut port: ReadHalf<T>, writer: &mut SocketWriter) -> CloseReason {
    let mut piece = BytesMut::new();
    loop {
        piece.reserve(CHUNK_BYTES);
        let mut bounded = (&mut port).take(CHUNK_BYTES as u64);
        let sent = tokio::select! {
            read = bounded.read_buf(&mut piece) => match read {
                Ok(0) => return CloseReason::Done,
                Ok(_) => writer.bytes(piece.split().freeze()).await,
                Err(_) => return CloseReason::Failed,
            },
            () = writer.ping_due() => writer.ping().await,
        };
        if sent.is_err() {
            return CloseReason::Done;
        }
    }
}

async fn relay_to_port<T: AsyncWriteExt>(
    reader: &mut SocketReader,
    mode: RelayMode,
    mut port: WriteHalf<T>,
) -> CloseReason {
    let mut viewer = ViewerFilter::new();
    loop {
        match reader.next().await {
            ClientMessage::Bytes(bytes) => {
                let bytes = match &mode {
                    RelayMode::Bytes => bytes,
                    RelayMode::Desktop(gate) => match viewer.take(&bytes, input_mode(gate)) {
                        Ok(bytes) => bytes,
                        Err(InvalidViewerMessage) => return CloseReason::UnsupportedData,
                    },
                };
                let written = async {
                    port.write_all(&bytes).await?;
                    port.flush().await
                };
                if written.await.is_err() {
                    // Output that the peer sent before it closed may still be on its way to the client.
                    std::future::pending::<()>().await;
                }
            }
            ClientMessage::Text(_) => return CloseReason::UnsupportedData,
            ClientMessage::Gone => return CloseReason::Done,
            ClientMessage::TooLarge => return CloseReason::MessageTooLarge,
            ClientMessage::Closing => return CloseReason::ServerShutdown,
        }
    }
}

fn input_mode(gate: &TakeoverGate) -> InputMode {
    if gate.check().is_ok() { InputMode::Full } else { InputMode::ViewOnly }
}
