//! The record of a connection: guarantees that its opening and its end, or its refusal, are logged exactly once.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::refusal_limiter::RefusalLimiter;
use crate::event::{Connection, EgressEvent, EventSender, Verdict, now_ms};
use crate::refusal::{ReasonCode, Refusal};
use crate::usage::Meter;

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
    refusals: Arc<RefusalLimiter>,
    meter: Arc<Meter>,
}

#[derive(Clone, Copy)]
enum Stage {
    Asked,
    Open,
}

impl Record {
    pub(crate) fn new(sender: EventSender, refusals: Arc<RefusalLimiter>, request: Connection) -> Self {
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
        let ending = || Refusal::failure(ReasonCode::Ending, "the sandbox is ending and its log is closed");
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
            Stage::Asked => self.refusals.count_refusal(connection).map(EgressEvent::Refused),
            Stage::Open => Some(EgressEvent::Closed(connection)),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let (Stage::Asked, Some(connection)) = (self.stage, &mut self.pending) {
            connection.verdict = Verdict::Failed;
        }
        let Some(event) = self.take(None, "closed by the client or with the sandbox".into()) else {
            return;
        };
        let Err(mpsc::error::TrySendError::Full(event)) = self.sender.try_send(event) else {
            return;
        };
        let sender = self.sender.clone();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { sender.send(event).await })),
            Err(_) => {
                tracing::warn!(?event, "cannot log the end of a connection, the server is stopping");
            }
        }
    }
}
