//! A job's network limits, and what it has used of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// A job's network limits. Absent limits do not apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// Bytes sent and received, in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of connections. Each plain HTTP request counts as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Bytes per second, sent and received together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

/// What a job has used, for counting across restarts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes sent and received, in total.
    pub bytes: u64,
    pub connections: u64,
}

/// Counts the usage of all connections of a job.
#[derive(Debug)]
pub(crate) struct Ledger {
    allowance: Allowance,
    bytes: AtomicU64,
    connections: AtomicU64,
    limit_refusal: Notify,
    /// When the bytes so far would have been transferred at the allowed rate, in microseconds after `started`.
    paid_until: AtomicU64,
    started: Instant,
}

impl Ledger {
    pub(crate) fn new(allowance: Allowance, used: Used) -> Self {
        Self {
            allowance,
            bytes: AtomicU64::new(used.bytes),
            connections: AtomicU64::new(used.connections),
            limit_refusal: Notify::new(),
            paid_until: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// Counts one connection, or refuses it if the limit is reached.
    pub(crate) fn connect(&self, target: &Target) -> Result<(), Refusal> {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        match self.allowance.connections {
            Some(most) if before >= most => Err(limit_refusal(target, &format!("{most} connections"))),
            _ if self.is_used_up() => {
                Err(limit_refusal(target, &format!("{} bytes", self.allowance.bytes.unwrap_or_default())))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn count(&self, bytes: usize) {
        let bytes = bytes as u64;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.allowance.bytes.is_some_and(|most| before < most && before + bytes >= most) {
            self.limit_refusal.notify_waiters();
        }
        if let Some(rate) = self.allowance.bytes_per_second {
            let cost = bytes.saturating_mul(1_000_000) / rate.max(1);
            let now = self.now_micros();
            // Idle time is not saved up, so a pause does not permit a burst.
            let _ = self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
                Some(until.max(now).saturating_add(cost))
            });
        }
    }

    /// Until when the next byte must wait, if the rate is exceeded.
    pub(crate) fn wait_until(&self) -> Option<Instant> {
        self.allowance.bytes_per_second?;
        let until = self.paid_until.load(Ordering::Relaxed);
        (until > self.now_micros()).then(|| self.started + Duration::from_micros(until))
    }

    fn is_used_up(&self) -> bool {
        self.allowance.bytes.is_some_and(|most| self.bytes.load(Ordering::Relaxed) >= most)
    }

    /// Returns when the byte limit is reached.
    pub(crate) async fn limit_reached(&self) {
        loop {
            let limit_refusal = self.limit_refusal.notified();
            tokio::pin!(limit_refusal);
            limit_refusal.as_mut().enable();
            if self.is_used_up() {
                return;
            }
            limit_refusal.await;
        }
    }

    /// The code and reason for connections that end because of the byte limit.
    pub(crate) fn ending(&self) -> (Option<ReasonCode>, String) {
        let most = self.allowance.bytes.unwrap_or_default();
        (Some(ReasonCode::BudgetExhausted), format!("closed: the network limit of {most} bytes is used up"))
    }

    fn now_micros(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

fn limit_refusal(target: &Target, what: &str) -> Refusal {
    Refusal {
        code: ReasonCode::BudgetExhausted,
        rule: "allowance".into(),
        reason: format!("{target} refused: the network limit of {what} is used up"),
        remedy: "raise the limit in `network`".into(),
    }
}
