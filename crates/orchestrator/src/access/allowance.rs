//! Per-key limits, enforced against what the key's jobs currently use.

use job::{
    AppliedCeilings, InvalidField, JobDefaults, JobSpec, KeyId, KeyLimits, KeyUse, Submitter, Work, at_most,
    check_step_timeouts,
};

use crate::clock::now_ms;
use crate::core::keyring::UsageLock;
use crate::core::{Orchestrator, RETRY_AFTER_S};
use crate::error::OrchestratorError;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

impl Orchestrator {
    /// Request defaults and ceilings that apply to this key.
    pub(crate) fn rules_for(&self, key: Option<&KeyId>) -> JobDefaults {
        JobDefaults { ceilings: self.core.ceilings_of(key), ..self.core.settings().defaults.clone() }
    }

    /// Ceilings of the caller this handle acts for.
    pub(crate) fn caller_ceilings(&self) -> AppliedCeilings {
        self.core.ceilings_of(self.actor().and_then(|actor| actor.key.as_ref()))
    }

    /// Checks a job that was accepted earlier against the current ceilings. A value the request set explicitly must
    /// be allowed; a default is lowered to the ceiling.
    pub(crate) fn bound(
        &self,
        spec: &mut JobSpec,
        submitter: Option<&Submitter>,
    ) -> Result<(), InvalidField> {
        let ceilings = self.core.ceilings_of(submitter.map(|submitter| &submitter.key));
        let most = ceilings.effective();
        check_step_timeouts(&spec.work, &ceilings)?;
        spec.limits = ceilings.bound(spec.limits)?;
        spec.step_timeout = at_most(spec.step_timeout, most.step_timeout_s);
        if matches!(spec.work, Work::Session { .. }) {
            return Ok(());
        }
        if spec.wall_clock != self.core.settings().defaults.wall_clock {
            let seconds = spec.wall_clock.as_secs_f64();
            ceilings.check_seconds("limits.wall_clock_s", "wall_clock_s", seconds, |set| set.wall_clock_s)?;
        }
        spec.wall_clock = at_most(spec.wall_clock, most.wall_clock_s);
        Ok(())
    }

    /// Refuses another job if the key has reached its limits. The caller holds the returned lock until the job is
    /// stored, so that two concurrent requests cannot both take the last slot.
    pub(crate) async fn check_allowance(
        &self,
        submitter: Option<&Submitter>,
    ) -> Result<Option<UsageLock>, OrchestratorError> {
        let Some(id) = submitter.map(|submitter| &submitter.key) else { return Ok(None) };
        let limits = self.core.keys.limits(id);
        if limits.max_queued.is_none() && limits.dollars_per_day.is_none() {
            return Ok(None);
        }
        let usage_lock = self.core.keys.usage_lock(id).await;
        let used = self.core.store.key_use(id.clone(), now_ms() - DAY_MS).await?;
        match over(&limits, used) {
            Some(what) => Err(OrchestratorError::KeyQuotaExceeded { what, retry_after_s: RETRY_AFTER_S }),
            None => Ok(Some(usage_lock)),
        }
    }

    /// Refuses further model spending once the key has used up its daily budget, no matter how many of its jobs are
    /// queued.
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
            Some(what) => Err(OrchestratorError::KeyQuotaExceeded { what, retry_after_s: RETRY_AFTER_S }),
            None => Ok(()),
        }
    }

    /// Refuses another sandbox if the key has reached its limit. The caller holds the returned lock until the sandbox
    /// is counted.
    pub(crate) async fn check_sandbox_allowance(
        &self,
        submitter: Option<&Submitter>,
    ) -> Result<Option<UsageLock>, OrchestratorError> {
        let Some(id) = submitter.map(|submitter| &submitter.key) else { return Ok(None) };
        let usage_lock = self.core.keys.usage_lock(id).await;
        let used = self.core.store.key_use(id.clone(), now_ms() - DAY_MS).await?;
        let settings = self.core.settings();
        let most = SandboxShare {
            running: self.core.keys.running_limit(id, &settings.ceilings),
            sandboxes: self.core.keys.ceilings(id, &settings.ceilings).effective().sandboxes,
            all: settings.max_sandboxes,
            free: settings.max_sandboxes.saturating_sub(self.core.live.count_sandbox_slots()),
            is_shared: self.core.keys.count() > 1,
        };
        match most.refusal(used) {
            Some(what) => Err(OrchestratorError::KeyQuotaExceeded { what, retry_after_s: RETRY_AFTER_S }),
            None => Ok(Some(usage_lock)),
        }
    }
}

/// How many sandboxes one key may hold.
struct SandboxShare {
    /// Maximum number of running jobs and sandboxes of this key.
    running: Option<u32>,
    /// Maximum number of sandboxes of this key.
    sandboxes: Option<u32>,
    /// Maximum number of sandboxes on the server.
    all: usize,
    /// How many of those are free.
    free: usize,
    /// Whether other keys share the server.
    is_shared: bool,
}

impl SandboxShare {
    /// The reason why a key with this usage gets no further sandbox.
    fn refusal(&self, used: KeyUse) -> Option<String> {
        if let Some(most) = self.running.filter(|most| used.running >= *most) {
            return Some(format!("{} jobs and sandboxes of this key work already, of {most}", used.running));
        }
        let held = used.sandboxes;
        if let Some(most) = self.sandboxes {
            return (held >= most).then(|| format!("{held} sandboxes of this key live already, of {most}"));
        }
        // A key that holds no more sandboxes than are left always leaves some for the next key.
        let is_more = self.is_shared && held > 0 && usize::try_from(held).is_ok_and(|held| held >= self.free);
        is_more.then(|| {
            format!(
                "{held} sandboxes of this key live already, and the {} that are free, of {}, are left to others (the operator can set \
                 another number: `sandboxes` in [limits.max])",
                self.free, self.all
            )
        })
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
    fn key_limit_errors_name_the_exhausted_limit() {
        let used = KeyUse { queued: 3, running: 1, sandboxes: 0, nanodollars: 2_500_000_000 };
        assert_eq!(over(&KeyLimits::default(), used), None);
        let queue = KeyLimits { max_queued: Some(3), ..KeyLimits::default() };
        assert_eq!(over(&queue, used).unwrap(), "3 jobs of this key wait already, of 3");
        let money = KeyLimits { dollars_per_day: Some(2.0), ..KeyLimits::default() };
        assert!(over(&money, used).unwrap().contains("$2.50 in 24 hours, of $2.00"));
        let more = KeyLimits { dollars_per_day: Some(3.0), max_queued: Some(4), ..KeyLimits::default() };
        assert_eq!(over(&more, used), None);
    }

    #[test]
    fn one_key_cannot_take_all_sandboxes() {
        let share = |free| SandboxShare { running: None, sandboxes: None, all: 100, free, is_shared: true };
        let holds = |sandboxes| KeyUse { sandboxes, running: sandboxes, ..KeyUse::default() };
        let taken = |others: u32| {
            let mut held = 0;
            while share(usize::try_from(100 - others - held).unwrap()).refusal(holds(held)).is_none() {
                held += 1;
            }
            held
        };
        assert_eq!([taken(0), taken(50), taken(75), taken(99)], [50, 25, 13, 1]);
        let alone = SandboxShare { is_shared: false, ..share(1) };
        assert_eq!(alone.refusal(holds(99)), None, "there is nobody to share with");
        assert!(
            share(10)
                .refusal(holds(10))
                .unwrap()
                .contains("the 10 that are free, of 100, are left to others")
        );
        let set = SandboxShare { sandboxes: Some(7), ..share(1) };
        assert_eq!(set.refusal(holds(6)), None);
        assert_eq!(set.refusal(holds(7)).unwrap(), "7 sandboxes of this key live already, of 7");
        let running = SandboxShare { running: Some(2), ..share(90) };
        assert!(running.refusal(holds(2)).unwrap().contains("of 2"));
    }
}
