//! Determines the outcome of a call. Pure.

use job::{CallEnd, CallStatus, Expectation, KernelUse};
use protocol::{ExecEnd, ExecOutcome, NotStartedCause};
use sandbox::Usage;

use super::limit_hints::{LimitHintScanner, LimitHints};

/// If less disk space than this is free at the end of a failed call, a full disk explains the failure. A program that
/// writes in large blocks leaves up to one block free.
const DISK_FULL_BYTES: u64 = 1024 * 1024;

/// The exit code that an exception counts as.
const EXCEPTION_EXIT_CODE: i32 = 1;

/// What is known at the end of a call.
pub(crate) struct Evidence<'a> {
    pub(crate) outcome: &'a ExecOutcome,
    pub(crate) expectation: Option<&'a Expectation>,
    /// Whether the expected text was in the output.
    pub(crate) text_found: bool,
    /// Limits that the call's messages refer to.
    pub(crate) hints: LimitHints,
    /// The sandbox's counters before the call.
    pub(crate) before: Usage,
    /// The sandbox's counters after the call.
    pub(crate) after: Usage,
    /// The timeout of the call.
    pub(crate) timeout_s: f64,
}

/// How the call ended, with a code and a reason if it did not do what was expected.
pub(crate) fn explain_end(evidence: &Evidence<'_>) -> CallEnd {
    let outcome = evidence.outcome;
    let problem = problem_of(evidence);
    let (code, reason) = problem.map_or((None, None), |(code, reason)| (Some(code.to_owned()), Some(reason)));
    CallEnd {
        status: if code.is_none() { CallStatus::Succeeded } else { CallStatus::Failed },
        exit_code: match outcome.end {
            ExecEnd::Code(code) => Some(code),
            ExecEnd::Signal(signal) => Some(128 + signal),
            // Like a script that raises an exception.
            ExecEnd::Raised { .. } => Some(EXCEPTION_EXIT_CODE),
            _ => None,
        },
        code,
        reason,
        duration_ms: outcome.duration_ms,
        output_bytes: outcome.output_bytes,
        output_lines: outcome.output_lines,
        result: None,
        note: outcome.note.clone(),
        kernel: outcome.kernel.clone().and_then(KernelUse::of),
    }
}

fn problem_of(evidence: &Evidence<'_>) -> Option<(&'static str, String)> {
    let outcome = evidence.outcome;
    let wanted = evidence.expectation.and_then(|expected| expected.exit_code).unwrap_or(0);
    let plain = match &outcome.end {
        ExecEnd::Raised { .. } if wanted == EXCEPTION_EXIT_CODE && evidence.text_found => return None,
        ExecEnd::Raised { name, message } => ("exception", exception_text(name, message)),
        ExecEnd::KernelDied(why) => ("kernel_died", format!("the kernel died: {why}")),
        ExecEnd::Code(code) if *code == wanted => {
            if evidence.text_found {
                return None;
            }
            let text = evidence
                .expectation
                .and_then(|expected| expected.stdout_contains.as_deref())
                .unwrap_or_default();
            return Some(("unexpected_output", format!("standard output does not contain `{text}`")));
        }
        ExecEnd::Code(code) if wanted == 0 => ("exit_code", format!("exit code {code}")),
        ExecEnd::Code(code) => ("exit_code", format!("exit code {code} where {wanted} was expected")),
        ExecEnd::Signal(signal) => ("signal", format!("ended by signal {signal}")),
        ExecEnd::TimedOut => {
            return Some(("timeout", format!("ran longer than its {} s and was ended", evidence.timeout_s)));
        }
        ExecEnd::Killed => return Some(("killed", "was ended on request".into())),
        ExecEnd::NotStarted(why) => (not_started_code(why.cause), why.message.clone()),
    };
    Some(
        limit_that_explains(evidence)
            .map_or(plain, |(code, text)| (code, format!("{text} ({})", plain_text(outcome)))),
    )
}

fn not_started_code(cause: NotStartedCause) -> &'static str {
    match cause {
        NotStartedCause::ProgramNotFound => "program_not_found",
        NotStartedCause::ProgramNotExecutable => "program_not_executable",
        NotStartedCause::BadDirectory => "bad_cwd",
        NotStartedCause::ArgumentsTooLong => "arguments_too_long",
        NotStartedCause::Other => "not_started",
    }
}

fn exception_text(name: &str, message: &str) -> String {
    let text = if message.is_empty() { name.to_owned() } else { format!("{name}: {message}") };
    text.chars().take(2000).collect()
}

fn plain_text(outcome: &ExecOutcome) -> String {
    match &outcome.end {
        ExecEnd::Code(code) => format!("exit code {code}"),
        ExecEnd::Signal(signal) => format!("signal {signal}"),
        ExecEnd::NotStarted(why) => why.message.clone(),
        ExecEnd::KernelDied(why) => why.clone(),
        ExecEnd::Raised { name, message } => exception_text(name, message),
        ExecEnd::TimedOut | ExecEnd::Killed => "ended".into(),
    }
}

/// The limit that was hit during the call and explains why it failed.
fn limit_that_explains(evidence: &Evidence<'_>) -> Option<(&'static str, String)> {
    if evidence.after.oom_kills > evidence.before.oom_kills {
        return Some(("out_of_memory", "the sandbox's memory was used up".into()));
    }
    if evidence.outcome.disk_free_bytes < DISK_FULL_BYTES || evidence.outcome.disk_free_inodes == 0 {
        return Some(("disk_full", "the sandbox's disk is full".into()));
    }
    if evidence.after.pids_refused > evidence.before.pids_refused {
        return Some(("too_many_processes", "the sandbox's process limit was reached".into()));
    }
    let hints = hints_from(evidence);
    if hints.no_space {
        return Some(("disk_full", "the sandbox's disk is full".into()));
    }
    hints.no_process.then(|| ("too_many_processes", "the sandbox's process limit was reached".into()))
}

/// Limits that the call's messages refer to, including the text of an exception.
fn hints_from(evidence: &Evidence<'_>) -> LimitHints {
    let mut reader = LimitHintScanner::default();
    match &evidence.outcome.end {
        ExecEnd::Raised { name, message } => reader.take_message(&exception_text(name, message)),
        ExecEnd::NotStarted(why) => reader.take_message(&why.message),
        _ => {}
    }
    let said = reader.hints();
    LimitHints {
        no_space: said.no_space || evidence.hints.no_space,
        no_process: said.no_process || evidence.hints.no_process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(end: ExecEnd) -> ExecOutcome {
        ExecOutcome {
            end,
            duration_ms: 5,
            output_bytes: 0,
            output_lines: 0,
            dropped_bytes: 0,
            next_sequence: 0,
            disk_free_bytes: 1 << 30,
            disk_free_inodes: 1000,
            note: None,
            kernel: None,
        }
    }

    fn judge(outcome: &ExecOutcome, expectation: Option<&Expectation>, found: bool, after: Usage) -> CallEnd {
        explain_end(&Evidence {
            outcome,
            expectation,
            text_found: found,
            hints: LimitHints::default(),
            before: Usage::default(),
            after,
            timeout_s: 1.0,
        })
    }

    #[test]
    fn exit_code_zero_succeeds_and_another_fails_with_its_number() {
        let good = judge(&outcome(ExecEnd::Code(0)), None, true, Usage::default());
        assert_eq!(good.status, CallStatus::Succeeded);
        let bad = judge(&outcome(ExecEnd::Code(3)), None, true, Usage::default());
        assert_eq!(
            (bad.exit_code, bad.code.as_deref(), bad.reason.as_deref()),
            (Some(3), Some("exit_code"), Some("exit code 3"))
        );
    }

    #[test]
    fn an_exception_fails_with_its_name_and_counts_as_exit_code_one() {
        let raised = outcome(ExecEnd::Raised { name: "ValueError".into(), message: "no".into() });
        let end = judge(&raised, None, true, Usage::default());
        assert_eq!((end.code.as_deref(), end.reason.as_deref()), (Some("exception"), Some("ValueError: no")));
        let expected = Expectation { exit_code: Some(1), stdout_contains: None };
        assert_eq!(judge(&raised, Some(&expected), true, Usage::default()).status, CallStatus::Succeeded);
        let died = judge(&outcome(ExecEnd::KernelDied("signal 9".into())), None, true, Usage::default());
        assert_eq!(died.code.as_deref(), Some("kernel_died"));
    }

    #[test]
    fn an_expected_exit_code_succeeds() {
        let expected = Expectation { exit_code: Some(2), stdout_contains: None };
        assert_eq!(
            judge(&outcome(ExecEnd::Code(2)), Some(&expected), true, Usage::default()).status,
            CallStatus::Succeeded
        );
        assert_eq!(
            judge(&outcome(ExecEnd::Code(0)), Some(&expected), true, Usage::default()).status,
            CallStatus::Failed
        );
    }

    #[test]
    fn missing_expected_text_fails_the_call_and_is_quoted() {
        let expected = Expectation { exit_code: None, stdout_contains: Some("ok".into()) };
        let end = judge(&outcome(ExecEnd::Code(0)), Some(&expected), false, Usage::default());
        assert!(end.reason.unwrap().contains("`ok`"));
    }

    #[test]
    fn exceeded_limit_explains_the_failure() {
        let usage = Usage { oom_kills: 1, ..Usage::default() };
        assert_eq!(
            judge(&outcome(ExecEnd::Signal(9)), None, true, usage).code.as_deref(),
            Some("out_of_memory")
        );
        let full = ExecOutcome { disk_free_bytes: 0, ..outcome(ExecEnd::Code(1)) };
        assert_eq!(judge(&full, None, true, Usage::default()).code.as_deref(), Some("disk_full"));
        let block_left = ExecOutcome { disk_free_bytes: 688 * 1024, ..outcome(ExecEnd::Code(1)) };
        assert_eq!(judge(&block_left, None, true, Usage::default()).code.as_deref(), Some("disk_full"));
        let raised =
            ExecEnd::Raised { name: "OSError".into(), message: "[Errno 28] No space left on device".into() };
        assert_eq!(judge(&outcome(raised), None, true, Usage::default()).code.as_deref(), Some("disk_full"));
        let refused = Usage { pids_refused: 1, ..Usage::default() };
        let unforked = outcome(ExecEnd::Code(254));
        assert_eq!(judge(&unforked, None, true, refused).code.as_deref(), Some("too_many_processes"));
        let succeeded = ExecOutcome { disk_free_bytes: 0, ..outcome(ExecEnd::Code(0)) };
        assert_eq!(judge(&succeeded, None, true, Usage::default()).status, CallStatus::Succeeded);
    }

    #[test]
    fn messages_explain_failures_without_counters_but_never_successes() {
        for (hints, code) in [
            (LimitHints { no_space: true, no_process: false }, "disk_full"),
            (LimitHints { no_space: false, no_process: true }, "too_many_processes"),
        ] {
            let explain = |end: ExecEnd| {
                let outcome = outcome(end);
                explain_end(&Evidence {
                    outcome: &outcome,
                    expectation: None,
                    text_found: true,
                    hints,
                    before: Usage::default(),
                    after: Usage::default(),
                    timeout_s: 1.0,
                })
            };
            assert_eq!(explain(ExecEnd::Code(1)).code.as_deref(), Some(code));
            assert_eq!(explain(ExecEnd::Code(0)).status, CallStatus::Succeeded);
            assert_eq!(explain(ExecEnd::TimedOut).code.as_deref(), Some("timeout"));
        }
    }
}
