//! Extends the time limit of a job.

use std::time::Duration;

use job::{
    AppliedCeilings, EventBody, InvalidField, JobId, JobKind, JobState, JobView, check_seconds, invalid,
};
use store::StoreError;

use crate::core::Orchestrator;
use crate::error::OrchestratorError;
use crate::live::control::wrong_state;

const FIELD: &str = "seconds";

/// A job with its new time limit.
#[derive(Debug)]
pub struct ExtendedJob {
    pub view: JobView,
    /// How long the job may work in total.
    pub time_limit: Duration,
    /// When the job ends at the latest, as Unix time in milliseconds; `None` while its time does not run.
    pub deadline_ms: Option<i64>,
}

impl Orchestrator {
    /// Adds seconds to the time limit of a job. The driver follows from the event.
    ///
    /// # Errors
    /// There is no such job, its work is over, or the new limit exceeds the caller's ceiling.
    pub async fn extend_job(&self, id: JobId, seconds: f64) -> Result<ExtendedJob, OrchestratorError> {
        let added = check_seconds(FIELD, seconds)?;
        // Two extensions at once must add up.
        let _turn = self.core.extending.lock().await;
        let view = self.core.store.job(id).await?;
        if view.kind == JobKind::Sandbox {
            return Err(StoreError::NoJob(id).into());
        }
        // A job that has ended is reported as such, whatever the new limit would be.
        check_is_unfinished(&view)?;
        let before = view.time_limit(&self.core.store.spec(id).await?);
        let time_limit = lengthened(before, added, &self.caller_ceilings())?;
        let event = EventBody::TimeLimitChanged {
            before_ms: milliseconds(before),
            after_ms: milliseconds(time_limit),
        };
        self.append_user_events_if(id, vec![event.into()], |view| {
            let live = self.core.live.get(id);
            if live.is_some_and(|live| live.recorder.time_limit().is_used_up()) {
                return Err(wrong_state(view, "its time is used up"));
            }
            check_is_unfinished(view)
        })
        .await?;
        let view = self.core.store.job(id).await?;
        let live = self.core.live.get(id);
        let waited = live.map(|live| live.recorder.waiting().total()).unwrap_or_default();
        let deadline_ms = view.deadline_ms(time_limit.saturating_add(waited));
        Ok(ExtendedJob { view, time_limit, deadline_ms })
    }
}

fn check_is_unfinished(view: &JobView) -> Result<(), OrchestratorError> {
    match view.state {
        state if state.is_over() => Err(wrong_state(view, "it has ended and cannot be extended")),
        JobState::Collecting => Err(wrong_state(view, "its work is over and cannot be extended")),
        _ => Ok(()),
    }
}

/// The time limit with this addition.
fn lengthened(
    before: Duration,
    added: Duration,
    ceilings: &AppliedCeilings,
) -> Result<Duration, InvalidField> {
    let after = before.saturating_add(added).as_secs_f64();
    check_seconds(FIELD, after)
        .and_then(|limit| {
            ceilings.check_seconds(FIELD, "wall_clock_s", after, |set| set.wall_clock_s).map(|()| limit)
        })
        .map_err(|error| invalid(FIELD, format!("the new time limit: {}", error.problem)))
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use job::{CeilingRules, Ceilings};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn problem(before: Duration, added: Duration, ceilings: &AppliedCeilings) -> String {
        lengthened(before, added, ceilings).unwrap_err().to_string()
    }

    #[test]
    fn ceiling_bounds_the_new_limit_and_not_the_addition() {
        let everybody = Ceilings { wall_clock_s: Some(7200), ..Ceilings::default() };
        let ceilings = CeilingRules { everybody, ..CeilingRules::default() }.of(None, None);
        assert_eq!(lengthened(HOUR, HOUR, &ceilings), Ok(2 * HOUR));
        assert_eq!(
            problem(HOUR, HOUR + Duration::from_millis(500), &ceilings),
            "seconds: the new time limit: 7200.5 is more than 7200, the most that any request may ask for; \
             the operator of this server can raise it: `wall_clock_s` in [limits.max]"
        );
    }

    #[test]
    fn without_a_ceiling_thirty_days_are_the_most() {
        let month = 30 * 24 * HOUR;
        let without = AppliedCeilings::default();
        assert_eq!(lengthened(month - HOUR, HOUR, &without), Ok(month));
        let told = problem(month, HOUR, &without);
        assert!(told.starts_with("seconds: the new time limit: 2595600 is not between"), "{told}");
    }
}
