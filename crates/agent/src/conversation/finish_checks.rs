//! What speaks against the end of the work when the model calls `finish`. Pure: a fold over the log.

use super::FINISH_TOOL;
use crate::event::{ToolEnd, ToolStatus};

/// Failed calls that the model has not seen, and earlier refusals of `finish`.
#[derive(Debug, Clone, Default)]
pub(crate) struct FinishChecks {
    /// The failed calls of the newest answer.
    unseen_failures: Vec<FailedCall>,
    refusal: Refusal,
}

/// A call that has failed, or a command that has ended with an exit code other than 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedCall {
    pub(crate) call: String,
    pub(crate) tool: String,
}

/// Whether `finish` was refused since the last message of a person.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Refusal {
    #[default]
    None,
    /// In the newest answer, so the model does not know yet.
    Unseen,
    Seen,
}

impl FinishChecks {
    pub(super) fn on_answer(&mut self) {
        self.unseen_failures.clear();
        if self.refusal == Refusal::Unseen {
            self.refusal = Refusal::Seen;
        }
    }

    pub(super) fn on_result(&mut self, tool: &str, call: &str, end: &ToolEnd) {
        if end.status == ToolStatus::Done {
            return;
        }
        if tool != FINISH_TOOL {
            self.unseen_failures.push(FailedCall { call: call.to_owned(), tool: tool.to_owned() });
        } else if matches!(end.status, ToolStatus::Failed | ToolStatus::NotRun)
            && self.refusal == Refusal::None
        {
            self.refusal = Refusal::Unseen;
        }
    }

    /// The failed calls of the answer that also calls `finish`.
    pub(crate) fn unseen_failures(&self) -> &[FailedCall] {
        &self.unseen_failures
    }

    /// Whether the model knows that `finish` was refused.
    pub(crate) fn was_refused(&self) -> bool {
        self.refusal == Refusal::Seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_unseen_until_the_next_answer() {
        let mut checks = FinishChecks::default();
        checks.on_result("shell", "turn-1-1", &ToolEnd::done("ok"));
        checks.on_result("shell", "turn-1-2", &ToolEnd::failed("[exit code 1]"));
        let failed = FailedCall { call: "turn-1-2".into(), tool: "shell".into() };
        assert_eq!(checks.unseen_failures(), [failed]);
        checks.on_answer();
        assert!(checks.unseen_failures().is_empty());
    }

    #[test]
    fn a_refusal_counts_once_the_model_has_seen_it() {
        let mut checks = FinishChecks::default();
        checks.on_result("finish", "turn-1-1", &ToolEnd::malformed("no summary"));
        checks.on_answer();
        assert!(!checks.was_refused());
        checks.on_result("finish", "turn-2-1", &ToolEnd::failed("not finished"));
        assert!(!checks.was_refused() && checks.unseen_failures().is_empty());
        checks.on_answer();
        checks.on_result("finish", "turn-3-1", &ToolEnd::failed("not finished"));
        assert!(checks.was_refused());
    }
}
