//! Where a job stands, and which changes are legal. Pure: the driver does the work and asks here.
//!
//! ```text
//! draft -> queued -> starting -> running <-> paused
//!                       ^           |
//!                       |           v
//!                       +------ collecting -> complete | failed | cancelled
//! ```
//!
//! A job whose sandbox was lost goes back to `starting`, also from `collecting`. One whose sandbox cannot be made now, for want
//! of room or of an engine that answers, goes back to `queued`. A job may end from every state;
//! once a sandbox exists the way there leads through `collecting`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Still receives files.
    Draft,
    /// Waits for its turn.
    Queued,
    /// Its sandbox is being made.
    Starting,
    /// Works.
    Running,
    /// Waits for something; the reason says for what.
    Paused,
    /// Its workspace is being brought home.
    Collecting,
    /// Done.
    Complete,
    /// Ended without success; the code says why.
    Failed,
    /// Ended by wish.
    Cancelled,
}

impl JobState {
    /// Its name, as it is in the API and in the database.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Collecting => "collecting",
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All steps did what was expected.
    Complete,
    /// Something failed.
    Failed,
    /// Somebody wished it.
    Cancelled,
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Happening {
    /// All files are there.
    Submitted,
    /// The scheduler has picked it.
    Picked,
    /// The guest has answered.
    SandboxReady,
    /// The sandbox is gone and the work goes on in a new one.
    SandboxLost,
    /// It must wait.
    Paused,
    /// What it waited for has come; there is a sandbox.
    Resumed,
    /// It waits for its turn again, without a sandbox: what it waited for has come, or there was no room to make one.
    Requeued,
    /// The work is over and there is a sandbox to collect from.
    WorkOver,
    /// It is over and there is nothing (more) to collect.
    Ended(Outcome),
}

/// A change that is not legal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {from:?} cannot take {happening:?}")]
pub struct IllegalChange {
    /// Where the job stands.
    pub from: JobState,
    /// What happened.
    pub happening: Happening,
}

impl JobState {
    /// Whether the job is over.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled)
    }

    /// The state after something happened.
    ///
    /// # Errors
    /// The change is not legal.
    pub fn after(self, happening: Happening) -> Result<Self, IllegalChange> {
        use Happening as H;
        use JobState as S;
        Ok(match (self, happening) {
            (S::Draft, H::Submitted) | (S::Paused | S::Starting, H::Requeued) => S::Queued,
            (S::Queued, H::Picked) => S::Starting,
            (S::Starting, H::SandboxReady) | (S::Paused, H::Resumed) => S::Running,
            (S::Starting | S::Running | S::Paused | S::Collecting, H::SandboxLost) => S::Starting,
            (S::Queued | S::Running, H::Paused) => S::Paused,
            (S::Starting | S::Running | S::Paused, H::WorkOver) => S::Collecting,
            (from, H::Ended(outcome)) if !from.is_over() => match outcome {
                // Success needs the work to have been collected.
                Outcome::Complete if from != S::Collecting => return Err(IllegalChange { from, happening }),
                Outcome::Complete => S::Complete,
                Outcome::Failed => S::Failed,
                Outcome::Cancelled => S::Cancelled,
            },
            (from, happening) => return Err(IllegalChange { from, happening }),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn happenings() -> impl Strategy<Value = Happening> {
        prop_oneof![
            Just(Happening::Submitted),
            Just(Happening::Picked),
            Just(Happening::SandboxReady),
            Just(Happening::SandboxLost),
            Just(Happening::Paused),
            Just(Happening::Resumed),
            Just(Happening::Requeued),
            Just(Happening::WorkOver),
            Just(Happening::Ended(Outcome::Complete)),
            Just(Happening::Ended(Outcome::Failed)),
            Just(Happening::Ended(Outcome::Cancelled)),
        ]
    }

    proptest! {
        #[test]
        fn nothing_happens_to_a_job_that_is_over(list in prop::collection::vec(happenings(), 0..60)) {
            let mut state = JobState::Draft;
            for happening in list {
                match state.after(happening) {
                    Ok(next) => {
                        prop_assert!(!state.is_over());
                        state = next;
                    }
                    Err(error) => prop_assert_eq!(error.from, state),
                }
            }
        }

        #[test]
        fn every_unfinished_job_can_be_cancelled_and_fail(list in prop::collection::vec(happenings(), 0..60)) {
            let mut state = JobState::Draft;
            for happening in list {
                if let Ok(next) = state.after(happening) {
                    state = next;
                }
                if !state.is_over() {
                    prop_assert_eq!(state.after(Happening::Ended(Outcome::Cancelled)), Ok(JobState::Cancelled));
                    prop_assert_eq!(state.after(Happening::Ended(Outcome::Failed)), Ok(JobState::Failed));
                }
            }
        }

        #[test]
        fn a_job_is_complete_only_after_collecting(list in prop::collection::vec(happenings(), 0..60)) {
            let mut state = JobState::Draft;
            for happening in list {
                if let Ok(next) = state.after(happening) {
                    prop_assert!(next != JobState::Complete || state == JobState::Collecting);
                    state = next;
                }
            }
        }
    }

    #[test]
    fn only_a_job_without_work_in_its_sandbox_goes_back_to_the_queue() {
        assert_eq!(JobState::Starting.after(Happening::Requeued), Ok(JobState::Queued));
        for state in [JobState::Running, JobState::Collecting, JobState::Complete] {
            assert!(state.after(Happening::Requeued).is_err());
        }
    }

    #[test]
    fn the_straight_way_leads_to_complete() {
        let way = [
            (Happening::Submitted, JobState::Queued),
            (Happening::Picked, JobState::Starting),
            (Happening::SandboxReady, JobState::Running),
            (Happening::SandboxLost, JobState::Starting),
            (Happening::SandboxReady, JobState::Running),
            (Happening::WorkOver, JobState::Collecting),
            (Happening::Ended(Outcome::Complete), JobState::Complete),
        ];
        let mut state = JobState::Draft;
        for (happening, expected) in way {
            state = state.after(happening).unwrap();
            assert_eq!(state, expected);
        }
    }
}
