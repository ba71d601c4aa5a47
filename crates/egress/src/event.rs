//! Egress events, and the guard that logs the end of every connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::meter::Meter;
use crate::refusal::{ReasonCode, Refusal};
use crate::refusals::Refusals;

/// An entry of the egress log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum EgressEvent {
    /// A connection was allowed and established. Sent before its first byte.
    Opened(Connection),
    /// The connection has ended. Sent exactly once after each [`EgressEvent::Opened`].
    Closed(Connection),
    /// A connection was refused or could not be established. No further event follows.
    Refused(Connection),
    /// A response was read to its end. Only if the proxy can read it: plain HTTP, and hosts whose TLS it terminates.
    Fetched(Fetch),
}

/// A response that passed through the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The connection that carried it.
    pub connection: u64,
    /// When it ended, in milliseconds since 1970.
    pub time_ms: u64,
    /// The call that sent the request, if known.
    pub call: Option<String>,
    pub method: String,
    /// The URL without user and query.
    pub url: String,
    pub status: u16,
    /// The size of the body.
    pub bytes: u64,
    /// SHA-256 of the body in hexadecimal; absent if the body is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The names of the secrets whose values were inserted into the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The rule by which a person allowed this request only; empty if nobody was asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
}

impl Connection {
    /// A connection of which only the id is known.
    pub(crate) fn numbered(id: u64) -> Self {
        Self {
            id,
            time_ms: now_ms(),
            call: None,
            method: String::new(),
            host: String::new(),
            port: 0,
            address: None,
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            verdict: Verdict::Allowed,
            code: None,
            rule: String::new(),
            reason: String::new(),
            remedy: String::new(),
            without_tls: false,
            repeated: 0,
        }
    }
}

impl EgressEvent {
    /// The connection, for events about a whole connection.
    #[must_use]
    pub fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Opened(connection) | Self::Closed(connection) | Self::Refused(connection) => {
                Some(connection)
            }
            Self::Fetched(_) => None,
        }
    }

    /// The call that it belongs to, if known.
    #[must_use]
    pub fn call(&self) -> Option<&str> {
        match self {
            Self::Fetched(fetch) => fetch.call.as_deref(),
            Self::Opened(connection) | Self::Closed(connection) | Self::Refused(connection) => {
                connection.call.as_deref()
            }
        }
    }
}

/// A connection or, for plain HTTP, a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Increases within one proxy.
    pub id: u64,
    /// When this event happened, in milliseconds since 1970.
    pub time_ms: u64,
    /// The call that made it, if the client sends the proxy's user name.
    pub call: Option<String>,
    /// `CONNECT`, or the method of a plain HTTP request; empty if the request could not be parsed.
    pub method: String,
    /// The requested name or address; empty if the request could not be parsed.
    pub host: String,
    /// The requested port; 0 if the request could not be parsed.
    pub port: u16,
    /// The address of the actual connection.
    pub address: Option<IpAddr>,
    /// Bytes sent to the server so far.
    pub bytes_up: u64,
    /// Bytes received from the server so far.
    pub bytes_down: u64,
    /// Time since the request was read.
    pub duration_ms: u64,
    pub verdict: Verdict,
    /// Machine-readable reason why it was refused, failed or ended early.
    pub code: Option<ReasonCode>,
    /// The deciding rule, as written in the policy.
    pub rule: String,
    /// Human-readable reason.
    pub reason: String,
    /// What would allow it; empty if it was allowed or nothing would.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// Whether a tunnel carried something other than TLS; known when it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_tls: bool,
    /// How many unlogged refusals with the same target and reason this event also stands for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The policy allowed it.
    Allowed,
    /// The policy refused it.
    Refused,
    /// The policy allowed it, but it failed.
    Failed,
}

pub(crate) type EventSender = mpsc::Sender<EgressEvent>;

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The pending log entries of one connection: a refusal, or its opening and its end. Each is sent exactly once, also
/// if the record is dropped early. Repeated equal refusals are combined.
pub(crate) struct Record {
    pending: Option<Connection>,
    stage: Stage,
    started: Instant,
    sender: EventSender,
    refusals: Arc<Refusals>,
    meter: Arc<Meter>,
}

#[derive(Clone, Copy)]
enum Stage {
    Asked,
    Open,
}

impl Record {
    pub(crate) fn new(sender: EventSender, refusals: Arc<Refusals>, request: Connection) -> Self {
        Self {
            pending: Some(request),
            stage: Stage::Asked,
            started: Instant::now(),
            sender,
            refusals,
            meter: Meter::new(),
        }
    }

    pub(crate) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    pub(crate) fn id(&self) -> u64 {
        self.pending.as_ref().map_or(0, |connection| connection.id)
    }

    /// Sets the deciding rule.
    pub(crate) fn set_rule(&mut self, rule: String) {
        if let Some(connection) = &mut self.pending {
            connection.rule = rule;
        }
    }

    /// Marks that the tunnel carries something other than TLS.
    pub(crate) fn set_without_tls(&mut self) {
        if let Some(connection) = &mut self.pending {
            connection.without_tls = true;
        }
    }

    /// Logs a refusal.
    pub(crate) async fn refuse(mut self, refusal: &Refusal) {
        if let Some(connection) = &mut self.pending {
            if !refusal.rule.is_empty() {
                connection.rule.clone_from(&refusal.rule);
            }
            connection.remedy.clone_from(&refusal.remedy);
            connection.verdict = if refusal.code.is_policy() { Verdict::Refused } else { Verdict::Failed };
        }
        self.finish(Some(refusal.code), refusal.reason.clone()).await;
    }

    /// Logs that the connection is established. Fails if the log is closed: there are no unlogged connections.
    pub(crate) async fn open(mut self, address: IpAddr) -> Result<Self, Refusal> {
        let ending = || Refusal::failure(ReasonCode::Ending, "the job is ending and its log is closed");
        let permit = self.sender.clone().reserve_owned().await.map_err(|_| ending())?;
        let connection = self.pending.as_mut().ok_or_else(ending)?;
        connection.address = Some(address);
        connection.time_ms = now_ms();
        connection.duration_ms = elapsed_ms(self.started);
        permit.send(EgressEvent::Opened(connection.clone()));
        self.stage = Stage::Open;
        Ok(self)
    }

    /// Logs the end of the connection.
    pub(crate) async fn close(mut self, code: Option<ReasonCode>, reason: String) {
        self.finish(code, reason).await;
    }

    async fn finish(&mut self, code: Option<ReasonCode>, reason: String) {
        // Take the record only once the channel has room: if this future is dropped while waiting, `Drop` still logs
        // the record.
        let permit = self.sender.clone().reserve_owned().await;
        if let (Some(event), Ok(permit)) = (self.take(code, reason), permit) {
            permit.send(event);
        }
    }

    fn take(&mut self, code: Option<ReasonCode>, reason: String) -> Option<EgressEvent> {
        let mut connection = self.pending.take()?;
        connection.code = code;
        connection.reason = reason;
        connection.time_ms = now_ms();
        connection.duration_ms = elapsed_ms(self.started);
        (connection.bytes_up, connection.bytes_down) = self.meter.bytes();
        match self.stage {
            Stage::Asked => self.refusals.weigh(connection).map(EgressEvent::Refused),
            Stage::Open => Some(EgressEvent::Closed(connection)),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let (Stage::Asked, Some(connection)) = (self.stage, &mut self.pending) {
            connection.verdict = Verdict::Failed;
        }
        let Some(event) = self.take(None, "given up by the client or ended with the sandbox".into()) else {
            return;
        };
        let Err(mpsc::error::TrySendError::Full(event)) = self.sender.try_send(event) else {
            return;
        };
        let sender = self.sender.clone();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { sender.send(event).await })),
            Err(_) => {
                tracing::warn!(?event, "the end of a connection could not be logged, the server is stopping");
            }
        }
    }
}
