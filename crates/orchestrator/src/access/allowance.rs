//! What a key may use, held against what its jobs use.

use super::{KeyLimits, Submitter, Turn};
use crate::clock::now_ms;
use crate::error::OrchestratorError;
use crate::orchestrator::{Orchestrator, RETRY_AFTER_S};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// What the jobs of one key use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Jobs that wait.
    pub queued: u32,
    /// Jobs and sandboxes that work.
    pub running: u32,
    /// What models have cost within the last day.
    pub nanodollars: u64,
}

impl Orchestrator {
    /// Refuses one more job of this key where it has used up what it may. The turn is kept until the job is stored, so
    /// that two at once do not both take the last place.
    pub(crate) async fn check_allowance(
        &self,
        submitter: Option<&Submitter>,
    ) -> Result<Option<Turn>, OrchestratorError> {
        let Some(id) = submitter.map(|submitter| &submitter.key) else { return Ok(None) };
        let limits = self.core.keys.limits(id);
        if limits.max_queued.is_none() && limits.dollars_per_day.is_none() {
            return Ok(None);
        }
        let turn = self.core.keys.turn(id).await;
        let used = self.core.store.key_use(id.clone(), now_ms() - DAY_MS).await?;
        match over(&limits, used) {
            Some(what) => Err(OrchestratorError::KeyUsedUp { what, retry_after_s: RETRY_AFTER_S }),
            None => Ok(Some(turn)),
        }
    }

    /// Refuses to spend more on models where the key has spent what it may within a day, however many of its jobs wait.
    pub(crate) async fn check_spending(
        &self,
        submitter: Option<&Submitter>,
    ) -> Result<(), OrchestratorError> {
        let Some(id) = submitter.map(|submitter| &submitter.key) else { return Ok(()) };
        let limits = KeyLimits { max_queued: None, ..self.core.keys.limits(id) };
        if limits.dollars_per_day.is_none() {
            return Ok(());
        }
        let used = self.core.store.key_use(id.clone(), now_ms() - DAY_MS).await?;
        match over(&limits, used) {
            Some(what) => Err(OrchestratorError::KeyUsedUp { what, retry_after_s: RETRY_AFTER_S }),
            None => Ok(()),
        }
    }

    /// Refuses one more sandbox of this key where as many live as may. The turn is kept until the sandbox counts.
    pub(crate) async fn check_sandbox_allowance(
        &self,
        submitter: Option<&Submitter>,
    ) -> Result<Option<Turn>, OrchestratorError> {
        let Some(id) = submitter.map(|submitter| &submitter.key) else { return Ok(None) };
        let Some(limit) = self.core.keys.limits(id).max_running else { return Ok(None) };
        let turn = self.core.keys.turn(id).await;
        let used = self.core.store.key_use(id.clone(), now_ms() - DAY_MS).await?;
        if used.running < limit {
            return Ok(Some(turn));
        }
        let what = format!("{} jobs and sandboxes of this key work already, of {limit}", used.running);
        Err(OrchestratorError::KeyUsedUp { what, retry_after_s: RETRY_AFTER_S })
    }
}

fn over(limits: &KeyLimits, used: KeyUse) -> Option<String> {
    if let Some(limit) = limits.max_queued
        && used.queued >= limit
    {
        return Some(format!("{} jobs of this key wait already, of {limit}", used.queued));
    }
    let dollars = limits.dollars_per_day?;
    #[expect(clippy::cast_precision_loss, reason = "a sum for people; half a nanodollar does not matter")]
    let spent = used.nanodollars as f64 / 1e9;
    (spent >= dollars)
        .then(|| format!("models have cost ${spent:.2} in 24 hours, of ${dollars:.2} for this key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_is_named() {
        let used = KeyUse { queued: 3, running: 1, nanodollars: 2_500_000_000 };
        assert_eq!(over(&KeyLimits::default(), used), None);
        let queue = KeyLimits { max_queued: Some(3), ..KeyLimits::default() };
        assert_eq!(over(&queue, used).unwrap(), "3 jobs of this key wait already, of 3");
        let money = KeyLimits { dollars_per_day: Some(2.0), ..KeyLimits::default() };
        assert!(over(&money, used).unwrap().contains("$2.50 in 24 hours, of $2.00"));
        let more = KeyLimits { dollars_per_day: Some(3.0), max_queued: Some(4), ..KeyLimits::default() };
        assert_eq!(over(&more, used), None);
    }
}
