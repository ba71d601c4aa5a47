//! What a job may use of the network in all, and what it has used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// What a job may use in all. What is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// Bytes sent and received together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Connections; each request of plain HTTP counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Bytes in a second, sent and received together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

/// What a job has used, to go on counting after a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes sent and received together.
    pub bytes: u64,
    /// Connections.
    pub connections: u64,
}

/// Counts what all connections of a job use.
#[derive(Debug)]
pub(crate) struct Ledger {
    allowance: Allowance,
    bytes: AtomicU64,
    connections: AtomicU64,
    used_up: Notify,
    /// When the bytes so far would have passed at the allowed rate, in microseconds after `started`.
    paid_until: AtomicU64,
    started: Instant,
}

impl Ledger {
    pub(crate) fn new(allowance: Allowance, used: Used) -> Self {
        Self {
            allowance,
            bytes: AtomicU64::new(used.bytes),
            connections: AtomicU64::new(used.connections),
            used_up: Notify::new(),
            paid_until: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    /// Takes one connection out of the allowance.
    pub(crate) fn connect(&self, target: &Target) -> Result<(), Refusal> {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        match self.allowance.connections {
            Some(most) if before >= most => Err(used_up(target, &format!("{most} connections"))),
            _ if self.is_used_up() => {
                Err(used_up(target, &format!("{} bytes", self.allowance.bytes.unwrap_or_default())))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn count(&self, bytes: usize) {
        let bytes = bytes as u64;
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.allowance.bytes.is_some_and(|most| before < most && before + bytes >= most) {
            self.used_up.notify_waiters();
        }
        if let Some(rate) = self.allowance.bytes_per_second {
            let cost = bytes.saturating_mul(1_000_000) / rate.max(1);
            let now = self.now_micros();
            // Unused time is not saved up, so that a pause buys no burst.
            let _ = self.paid_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| {
                Some(until.max(now).saturating_add(cost))
            });
        }
    }

    /// Until when the next byte must wait, where the rate is exceeded.
    pub(crate) fn wait_until(&self) -> Option<Instant> {
        self.allowance.bytes_per_second?;
        let until = self.paid_until.load(Ordering::Relaxed);
        (until > self.now_micros()).then(|| self.started + Duration::from_micros(until))
    }

    fn is_used_up(&self) -> bool {
        self.allowance.bytes.is_some_and(|most| self.bytes.load(Ordering::Relaxed) >= most)
    }

    /// Returns when no byte may pass any more.
    pub(crate) async fn all_used_up(&self) {
        loop {
            let used_up = self.used_up.notified();
            tokio::pin!(used_up);
            used_up.as_mut().enable();
            if self.is_used_up() {
                return;
            }
            used_up.await;
        }
    }

    /// Why connections end when no byte may pass any more.
    pub(crate) fn ending(&self) -> (Option<ReasonCode>, String) {
        let most = self.allowance.bytes.unwrap_or_default();
        (
            Some(ReasonCode::BudgetUsedUp),
            format!("ended, the job has used up the {most} bytes that it may send and receive"),
        )
    }

    fn now_micros(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

fn used_up(target: &Target, what: &str) -> Refusal {
    Refusal {
        code: ReasonCode::BudgetUsedUp,
        rule: "allowance".into(),
        reason: format!("{target} was refused, the job has used up its {what}"),
        remedy: "give the job a larger `network` allowance".into(),
    }
}
