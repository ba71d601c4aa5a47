//! The states of a job and the legal transitions. Pure; the driver performs the actions.
//!
//! ```text
//! draft -> queued -> starting -> running <-> paused
//!                       ^           |
//!                       |           v
//!                       +------ collecting -> complete | failed | cancelled
//! ```
//!
//! A job that loses its sandbox goes back to `starting`, also from `collecting`. A job whose sandbox cannot be
//! created now, because the host has no room or the container engine does not answer, goes back to `queued`. A job
//! can end from every state; once a sandbox exists, it ends through `collecting`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a job.
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
    /// Ended by control_request.
    Cancelled,
}

impl JobState {
    /// The name used in the API and in the database.
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
    /// A user cancelled the job.
    Cancelled,
}

/// Input of the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transition {
    /// All files of the draft have arrived.
    Submitted,
    /// The scheduler picked the job.
    Picked,
    /// The guest has answered.
    SandboxReady,
    /// The sandbox is gone; the job continues in a new one.
    SandboxLost,
    Paused,
    /// The reason for the pause is gone, and the sandbox exists.
    Resumed,
    /// The job returns to the queue without a sandbox: the reason for its pause is gone, or there was no room for a
    /// sandbox.
    Requeued,
    /// The work is over, and there is a sandbox to collect from.
    WorkOver,
    /// The job is over, and there is nothing (more) to collect.
    Ended(Outcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {from:?} cannot take {transition:?}")]
pub struct IllegalTransition {
    pub from: JobState,
    pub transition: Transition,
}

impl JobState {
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled)
    }

    /// The state after the transition, or an error if the transition is illegal.
    pub fn after(self, transition: Transition) -> Result<Self, IllegalTransition> {
        use JobState as S;
        use Transition as H;
        Ok(match (self, transition) {
            (S::Draft, H::Submitted) | (S::Paused | S::Starting, H::Requeued) => S::Queued,
            (S::Queued, H::Picked) => S::Starting,
            (S::Starting, H::SandboxReady) | (S::Paused, H::Resumed) => S::Running,
            (S::Starting | S::Running | S::Paused | S::Collecting, H::SandboxLost) => S::Starting,
            (S::Queued | S::Running, H::Paused) => S::Paused,
            (S::Starting | S::Running | S::Paused, H::WorkOver) => S::Collecting,
            (from, H::Ended(outcome)) if !from.is_over() => match outcome {
                // Success requires that the workspace was collected.
                Outcome::Complete if from != S::Collecting => {
                    return Err(IllegalTransition { from, transition });
                }
                Outcome::Complete => S::Complete,
                Outcome::Failed => S::Failed,
                Outcome::Cancelled => S::Cancelled,
            },
            (from, transition) => return Err(IllegalTransition { from, transition }),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn transitions() -> impl Strategy<Value = Transition> {
        prop_oneof![
            Just(Transition::Submitted),
            Just(Transition::Picked),
            Just(Transition::SandboxReady),
            Just(Transition::SandboxLost),
            Just(Transition::Paused),
            Just(Transition::Resumed),
            Just(Transition::Requeued),
            Just(Transition::WorkOver),
            Just(Transition::Ended(Outcome::Complete)),
            Just(Transition::Ended(Outcome::Failed)),
            Just(Transition::Ended(Outcome::Cancelled)),
        ]
    }

    proptest! {
        #[test]
        fn finished_job_accepts_no_transition(list in prop::collection::vec(transitions(), 0..60)) {
            let mut state = JobState::Draft;
            for transition in list {
                match state.after(transition) {
                    Ok(next) => {
                        prop_assert!(!state.is_over());
                        state = next;
                    }
                    Err(error) => prop_assert_eq!(error.from, state),
                }
            }
        }

        #[test]
        fn every_unfinished_job_can_be_cancelled_and_fail(list in prop::collection::vec(transitions(), 0..60)) {
            let mut state = JobState::Draft;
            for transition in list {
                if let Ok(next) = state.after(transition) {
                    state = next;
                }
                if !state.is_over() {
                    prop_assert_eq!(state.after(Transition::Ended(Outcome::Cancelled)), Ok(JobState::Cancelled));
                    prop_assert_eq!(state.after(Transition::Ended(Outcome::Failed)), Ok(JobState::Failed));
                }
            }
        }

        #[test]
        fn a_job_is_complete_only_after_collecting(list in prop::collection::vec(transitions(), 0..60)) {
            let mut state = JobState::Draft;
            for transition in list {
                if let Ok(next) = state.after(transition) {
                    prop_assert!(next != JobState::Complete || state == JobState::Collecting);
                    state = next;
                }
            }
        }
    }

    #[test]
    fn only_starting_jobs_are_requeued() {
        assert_eq!(JobState::Starting.after(Transition::Requeued), Ok(JobState::Queued));
        for state in [JobState::Running, JobState::Collecting, JobState::Complete] {
            assert!(state.after(Transition::Requeued).is_err());
        }
    }

    #[test]
    fn normal_lifecycle_ends_in_complete() {
        let path = [
            (Transition::Submitted, JobState::Queued),
            (Transition::Picked, JobState::Starting),
            (Transition::SandboxReady, JobState::Running),
            (Transition::SandboxLost, JobState::Starting),
            (Transition::SandboxReady, JobState::Running),
            (Transition::WorkOver, JobState::Collecting),
            (Transition::Ended(Outcome::Complete), JobState::Complete),
        ];
        let mut state = JobState::Draft;
        for (transition, expected) in path {
            state = state.after(transition).unwrap();
            assert_eq!(state, expected);
        }
    }
}
