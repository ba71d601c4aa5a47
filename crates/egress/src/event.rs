//! The log: what is told of every connection, and the guard that never forgets to tell of its end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::meter::Meter;
use crate::refusal::{ReasonCode, Refusal};
use crate::refusals::Refusals;

/// Something happened at the way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum EgressEvent {
    /// A connection was allowed and stands. Sent before the first byte passes.
    Opened(Connection),
    /// It has ended; follows every [`EgressEvent::Opened`] once.
    Closed(Connection),
    /// A connection was refused, or could not be made. Nothing follows.
    Refused(Connection),
    /// An answer was read to its end, where the proxy can read it: plain HTTP, and hosts whose TLS ends here.
    Fetched(Fetch),
}

/// An answer that passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The connection that carried it.
    pub connection: u64,
    /// When it ended, in milliseconds since 1970.
    pub time_ms: u64,
    /// The call that asked, where it is known.
    pub call: Option<String>,
    /// The method of the request.
    pub method: String,
    /// The address of the page, without user and query.
    pub url: String,
    /// The status of the answer.
    pub status: u16,
    /// Bytes of the body.
    pub bytes: u64,
    /// SHA-256 of the body in hexadecimal; absent where it broke off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The secrets whose values were put into the request, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The rule by which a person has allowed this request alone; empty where nobody was asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
}

impl Connection {
    /// A connection of which nothing is known but its number.
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
    /// The connection it is about, where it tells of one as a whole.
    #[must_use]
    pub fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Opened(connection) | Self::Closed(connection) | Self::Refused(connection) => {
                Some(connection)
            }
            Self::Fetched(_) => None,
        }
    }

    /// The call that it belongs to, where it is known.
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

/// What is known of a connection; a request of plain HTTP counts as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Counts up within one proxy.
    pub id: u64,
    /// When this event happened, in milliseconds since 1970.
    pub time_ms: u64,
    /// The call that made it, where the client passes the proxy's user name on.
    pub call: Option<String>,
    /// `CONNECT`, or the method of a plain HTTP request; empty when the request could not be read.
    pub method: String,
    /// The name or address that was asked for; empty when the request could not be read.
    pub host: String,
    /// The port that was asked for, 0 when the request could not be read.
    pub port: u16,
    /// The address that was connected to.
    pub address: Option<IpAddr>,
    /// Bytes sent to the server so far.
    pub bytes_up: u64,
    /// Bytes received from the server so far.
    pub bytes_down: u64,
    /// Time since the request was read.
    pub duration_ms: u64,
    /// What was decided.
    pub verdict: Verdict,
    /// For programs: why it was refused or failed, or why it was ended before its time.
    pub code: Option<ReasonCode>,
    /// The rule that decided, as it is written in the policy.
    pub rule: String,
    /// For people.
    pub reason: String,
    /// What would allow it; empty where it was allowed, or nothing would.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// Whether a tunnel carried something other than TLS; known at its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_tls: bool,
    /// How many more refusals of the same place, for the same reason, this one stands for: those that came in between.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The policy said yes.
    Allowed,
    /// The policy said no.
    Refused,
    /// The policy had no objection, but it could not be done.
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

/// What will be told of one connection: a refusal, or its opening and its end. Told exactly once each, also when the
/// record is dropped halfway; refusals that are many and equal are told together.
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

    /// The counters of the connection.
    pub(crate) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    /// The number of the connection.
    pub(crate) fn id(&self) -> u64 {
        self.pending.as_ref().map_or(0, |connection| connection.id)
    }

    /// Notes which rule decides.
    pub(crate) fn set_rule(&mut self, rule: String) {
        if let Some(connection) = &mut self.pending {
            connection.rule = rule;
        }
    }

    /// Notes that the tunnel carries something other than TLS.
    pub(crate) fn set_without_tls(&mut self) {
        if let Some(connection) = &mut self.pending {
            connection.without_tls = true;
        }
    }

    /// Tells the log of a refusal.
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

    /// Tells the log that the connection stands. Without a log there is no connection.
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

    /// Tells the log that the connection has ended, and how.
    pub(crate) async fn close(mut self, code: Option<ReasonCode>, reason: String) {
        self.finish(code, reason).await;
    }

    async fn finish(&mut self, code: Option<ReasonCode>, reason: String) {
        // The record is taken only once there is room: dropped while waiting, it is still there to be told.
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
