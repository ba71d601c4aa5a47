//! Talks to a process with one JSON message per line. The process may outlive the connection.
//!
//! A call uses the agent's call id as its request id on the wire. After a restart of this server, it can therefore
//! find the answer to a pending call in the process's output ([`RecoveredAnswers`]), and does not repeat the call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::outcome::short;

/// The metadata field of a request that carries the agent's call id.
pub(crate) const CALL_FIELD: &str = "caisson/call";
/// The maximum number of kept answers to unknown requests.
const MAX_RECOVERED: usize = 256;

/// A line for the process.
pub struct OutgoingLine {
    /// The line, including the line feed.
    pub line: Vec<u8>,
    /// Reports whether the line was written.
    pub written: oneshot::Sender<Result<(), String>>,
}

/// A line from the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub bytes: Vec<u8>,
    /// Whether the process printed it before this connection; only answers count then.
    pub is_old: bool,
}

/// Answers to requests of an earlier connection, and output that is not MCP.
#[derive(Clone, Default)]
pub struct RecoveredAnswers {
    shared: Arc<Mutex<Shared>>,
    changed: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct Shared {
    answers: HashMap<String, Value>,
    noise: Option<String>,
}

impl RecoveredAnswers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, id: String, answer: Value) {
        let mut shared = self.lock();
        if shared.answers.len() < MAX_RECOVERED {
            shared.answers.insert(id, answer);
        }
        drop(shared);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Waits for the answer to a call of an earlier connection.
    pub(crate) async fn answer(&self, call: &str) -> Value {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Some(answer) = self.lock().answers.remove(call) {
                return answer;
            }
            // The sender is a field of `self`, so this cannot fail.
            let _ = changed.changed().await;
        }
    }

    /// The first line that was not a message, if any.
    #[must_use]
    pub fn noise(&self) -> Option<String> {
        self.lock().noise.clone()
    }

    fn record_unparsed(&self, line: &[u8]) {
        let text = short(String::from_utf8_lossy(line).trim());
        self.lock().noise.get_or_insert(text);
    }
}

/// A transport over the lines of a process.
pub struct LineTransport {
    prefix: String,
    outgoing: mpsc::Sender<OutgoingLine>,
    incoming: mpsc::Receiver<Line>,
    ids: Arc<Mutex<HashMap<String, Value>>>,
    recovered: RecoveredAnswers,
}

/// A line could not be written.
#[derive(Debug, thiserror::Error)]
#[error("writing to the process: {0}")]
pub struct LineError(String);

impl LineTransport {
    /// Creates a transport over these channels. The prefix distinguishes request ids from those of earlier
    /// connections.
    #[must_use]
    pub fn new(
        prefix: String,
        outgoing: mpsc::Sender<OutgoingLine>,
        incoming: mpsc::Receiver<Line>,
    ) -> (Self, RecoveredAnswers) {
        let recovered = RecoveredAnswers::default();
        let lines = Self { prefix, outgoing, incoming, ids: Arc::default(), recovered: recovered.clone() };
        (lines, recovered)
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, HashMap<String, Value>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the id of a request by its id on the wire.
    fn rename(&self, message: &mut Value) {
        if message["method"] == "notifications/cancelled" {
            let ours = message["params"]["requestId"].clone();
            let wire = self.ids().iter().find(|(_, id)| **id == ours).map(|(wire, _)| wire.clone());
            if let Some(wire) = wire {
                message["params"]["requestId"] = wire.into();
            }
            return;
        }
        if message.get("method").is_none() || message.get("id").is_none() {
            return;
        }
        let wire = match message["params"]["_meta"][CALL_FIELD].as_str() {
            Some(call) => call.to_owned(),
            None => format!("{}{}", self.prefix, message["id"]),
        };
        let ours = std::mem::replace(&mut message["id"], wire.clone().into());
        self.ids().insert(wire, ours);
    }

    /// Parses a line; `None` if it is not a message for this connection.
    fn parse_line(&self, line: &Line) -> Option<RxJsonRpcMessage<RoleClient>> {
        let mut message = match serde_json::from_slice::<Value>(&line.bytes) {
            Ok(message) if message.is_object() => message,
            _ => {
                if !line.bytes.trim_ascii().is_empty() {
                    self.recovered.record_unparsed(&line.bytes);
                }
                return None;
            }
        };
        let is_answer = message.get("method").is_none() && message.get("id").is_some();
        if is_answer {
            let wire = message["id"].as_str().unwrap_or_default().to_owned();
            match self.ids().remove(&wire) {
                Some(ours) => message["id"] = ours,
                None => {
                    self.recovered.put(wire, message);
                    return None;
                }
            }
        } else if line.is_old {
            return None;
        }
        serde_json::from_value(message)
            .inspect_err(|error| tracing::debug!(%error, "a message of an MCP server was not understood"))
            .ok()
    }
}

impl Transport<RoleClient> for LineTransport {
    type Error = LineError;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), LineError>> + Send + 'static {
        let encoded = serde_json::to_value(item).map(|mut message| {
            self.rename(&mut message);
            let mut line = message.to_string().into_bytes();
            line.push(b'\n');
            line
        });
        let outgoing = self.outgoing.clone();
        async move {
            let line = encoded.map_err(|error| {
                tracing::debug!(%error, "a message for an MCP server was not encoded");
                LineError("the message cannot be encoded".into())
            })?;
            let (written, confirmation) = oneshot::channel();
            let gone = || LineError("it has ended".into());
            outgoing.send(OutgoingLine { line, written }).await.map_err(|_| gone())?;
            confirmation.await.map_err(|_| gone())?.map_err(LineError)
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let line = self.incoming.recv().await?;
            if let Some(message) = self.parse_line(&line) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), LineError> {
        self.incoming.close();
        Ok(())
    }
}
