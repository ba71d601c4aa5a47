//! Conversion between the events of the log and those of the agent.

use agent::{AgentEvent, Notice, NoticeCode, RequestKind, SequencedEvent, ToolEnd, ToolStatus};
use job::{CallEnd, CallRef, CallStatus, Event, EventBody, LostKernel, NewEvent, Work, is_agent_call};
use sandbox::Ended;

/// Maximum number of characters of the reason of a failed call.
const MAX_REASON_CHARS: usize = 200;
/// Maximum number of calls that a sandbox loss notice names.
const MAX_NAMED: usize = 30;

/// An event of the log as the agent sees it; `None` if it does not concern the agent.
pub(crate) fn logged(event: &Event) -> Option<SequencedEvent> {
    // A further attempt is a cell that the driver replayed; the agent knows the result of the first attempt.
    let is_own = |call: &&CallRef| is_agent_call(&call.id) && call.attempt == 1;
    let call = || event.call.as_ref().filter(is_own).map(|call| call.id.clone());
    let agent_event = match &event.body {
        EventBody::JobCreated { spec } => match &spec.work {
            Work::Task(task) => AgentEvent::MessageReceived { text: task.clone() },
            Work::Steps(_) | Work::Session { .. } => return None,
        },
        EventBody::TurnStarted(started) => AgentEvent::TurnStarted(started.clone()),
        EventBody::ModelAnswered(answered) => AgentEvent::ModelAnswered(answered.clone()),
        EventBody::CallStarted { tool, input, .. } => {
            AgentEvent::CallStarted { call: call()?, tool: tool.clone(), input: input.clone() }
        }
        EventBody::CallEnded(end) => AgentEvent::CallEnded { call: call()?, end: tool_end(end) },
        EventBody::PlanChanged { plan, by } => AgentEvent::PlanChanged { plan: plan.clone(), by: *by },
        EventBody::NoteSaved { name, text } => {
            AgentEvent::NoteSaved { name: name.clone(), text: text.clone() }
        }
        EventBody::MessageReceived { text } => AgentEvent::MessageReceived { text: text.clone() },
        // Egress requests are independent of the agent's work, which goes on.
        EventBody::InputRequested(request) if request.kind == RequestKind::Egress => return None,
        EventBody::InputAnswered { id, .. } if id.starts_with("egress-") => return None,
        EventBody::InputRequested(request) => AgentEvent::InputRequested(request.clone()),
        EventBody::InputAnswered { id, answer } => {
            AgentEvent::InputAnswered { id: id.clone(), answer: answer.clone() }
        }
        EventBody::BudgetChanged { budget } => AgentEvent::BudgetChanged { budget: *budget },
        EventBody::AgentNotified(notice) => AgentEvent::Notified(notice.clone()),
        EventBody::ContextChanged(entry) => AgentEvent::ContextChanged(entry.clone()),
        EventBody::ModelAnswerLost(lost) => AgentEvent::ModelAnswerLost(lost.clone()),
        EventBody::SummaryCreated(made) => AgentEvent::SummaryCreated(made.clone()),
        EventBody::AgentFinished(finished) => AgentEvent::Finished(finished.clone()),
        _ => return None,
    };
    Some(SequencedEvent { sequence: event.sequence, time_ms: event.time_ms, event: agent_event })
}

/// An event of the agent as it is logged.
pub(super) fn entry(event: AgentEvent) -> NewEvent {
    let of = |id: String, body: EventBody| body.of(&CallRef { id, attempt: 1 });
    match event {
        AgentEvent::TurnStarted(started) => EventBody::TurnStarted(started).into(),
        AgentEvent::ModelAnswered(answered) => EventBody::ModelAnswered(answered).into(),
        AgentEvent::CallStarted { call, tool, input } => {
            of(call, EventBody::CallStarted { step: None, tool, input })
        }
        AgentEvent::CallEnded { call, end } => of(call, EventBody::CallEnded(call_end(&end))),
        AgentEvent::PlanChanged { plan, by } => EventBody::PlanChanged { plan, by }.into(),
        AgentEvent::NoteSaved { name, text } => EventBody::NoteSaved { name, text }.into(),
        AgentEvent::MessageReceived { text } => EventBody::MessageReceived { text }.into(),
        AgentEvent::InputRequested(request) => EventBody::InputRequested(request).into(),
        AgentEvent::InputAnswered { id, answer } => EventBody::InputAnswered { id, answer }.into(),
        AgentEvent::BudgetChanged { budget } => EventBody::BudgetChanged { budget }.into(),
        AgentEvent::Notified(notice) => EventBody::AgentNotified(notice).into(),
        AgentEvent::ContextChanged(body) => EventBody::ContextChanged(body).into(),
        AgentEvent::ModelAnswerLost(lost) => EventBody::ModelAnswerLost(lost).into(),
        AgentEvent::SummaryCreated(made) => EventBody::SummaryCreated(made).into(),
        AgentEvent::Finished(finished) => EventBody::AgentFinished(finished).into(),
    }
}

fn call_end(end: &ToolEnd) -> CallEnd {
    let (status, code) = match end.status {
        ToolStatus::Done => (CallStatus::Succeeded, None),
        ToolStatus::Failed if end.exit_code.is_some() => (CallStatus::Failed, Some("exit_code")),
        ToolStatus::Failed => (CallStatus::Failed, Some("tool_failed")),
        ToolStatus::NotRun => (CallStatus::Failed, Some("call_not_run")),
        ToolStatus::Malformed => (CallStatus::Failed, Some("malformed_call")),
        ToolStatus::Interrupted => (CallStatus::Interrupted, Some("interrupted")),
    };
    // For a process, the last line says how it ended; for everything else, the first line says the most.
    let text = agent::without_duration(&end.text);
    let line = if end.exit_code.is_some() { text.lines().last() } else { text.lines().next() };
    let reason = line.unwrap_or_default().trim_matches(['[', ']']).chars().take(MAX_REASON_CHARS).collect();
    CallEnd {
        status,
        exit_code: end.exit_code,
        code: code.map(ToOwned::to_owned),
        reason: code.map(|_| reason),
        duration_ms: end.duration_ms,
        output_bytes: end.whole.as_ref().map_or(end.text.len() as u64, |whole| whole.bytes),
        output_lines: end.whole.as_ref().map_or(end.text.lines().count() as u64, |whole| whole.lines),
        result: serde_json::to_value(end).ok(),
        note: None,
        kernel: None,
    }
}

/// The end of a call as the agent sees it. A call that the agent did not end itself has no agent result.
fn tool_end(end: &CallEnd) -> ToolEnd {
    if let Some(own) = end.result.clone().and_then(|result| serde_json::from_value(result).ok()) {
        return own;
    }
    let status = match end.status {
        CallStatus::Succeeded => ToolStatus::Done,
        CallStatus::Failed => ToolStatus::Failed,
        CallStatus::Interrupted => ToolStatus::Interrupted,
    };
    let reason = end.reason.as_deref().unwrap_or("no reason is known");
    ToolEnd { status, text: format!("[{reason}]"), exit_code: end.exit_code, ..ToolEnd::default() }
}

/// The notice the agent gets when its sandbox is lost.
pub(super) fn loss_notice(log: &[Event], ended: &Ended, kernels: &[LostKernel], replay: bool) -> Notice {
    let since = log.iter().rposition(|event| matches!(event.body, EventBody::Checkpoint { .. })).unwrap_or(0);
    let undone: Vec<String> = log[since..]
        .iter()
        .filter_map(|event| match (&event.body, &event.call) {
            (EventBody::CallStarted { tool, .. }, Some(call)) if is_agent_call(&call.id) => {
                Some(format!("{} ({tool})", call.id))
            }
            _ => None,
        })
        .collect();
    let mut text = format!("[Not from the user] The sandbox was lost: {}. ", ended.detail);
    if undone.is_empty() {
        text += "No calls were undone; running programs are gone.";
    } else {
        let from = undone.len().saturating_sub(MAX_NAMED);
        text += &format!(
            "You have a new one. The workspace is as it was before these calls, whose effects are undone: {}. Running \
             programs are gone, and so is what was installed outside of /workspace. Check the workspace, then \
             repeat what is needed.",
            undone[from..].join(", ")
        );
    }
    for kernel in kernels {
        text += &match replay {
            true => format!(
                " The notebook kernel {} was lost, too. Its {} cells run again now, before you go on, so its variables come \
                 back; files that these cells write are written again.",
                kernel.name, kernel.cells
            ),
            false => format!(
                " The notebook kernel {} was lost, too: {}. The next cell for it is not run and fails with kernel_lost; the one \
                 after it gets a new kernel.",
                kernel.name,
                kernel.gone()
            ),
        };
    }
    Notice { code: NoticeCode::SandboxLost, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_end_round_trips_through_the_log() {
        let end = ToolEnd { exit_code: Some(2), ..ToolEnd::failed("no\n[exit code 2, 0.1 s]") };
        let stored = call_end(&end);
        assert_eq!(
            (stored.code.as_deref(), stored.reason.as_deref()),
            (Some("exit_code"), Some("exit code 2"))
        );
        assert_eq!(tool_end(&stored), end);
    }

    #[test]
    fn calls_that_were_not_run_have_a_code_of_their_own() {
        let end = ToolEnd::not_run("not run: this command is not allowed");
        let stored = call_end(&end);
        assert_eq!((stored.status, stored.code.as_deref()), (CallStatus::Failed, Some("call_not_run")));
        assert_eq!(tool_end(&stored), end);
    }

    #[test]
    fn interrupted_calls_are_shown_to_the_agent_with_their_reason() {
        let end = CallEnd {
            status: CallStatus::Interrupted,
            reason: Some("the sandbox was lost while it ran".into()),
            ..CallEnd::default()
        };
        assert_eq!(tool_end(&end).text, "[the sandbox was lost while it ran]");
    }

    #[test]
    fn loss_notice_names_lost_variables_or_announces_the_replay() {
        let ended = Ended { reason: sandbox::EndReason::Lost, detail: "killed".into() };
        let kernel = LostKernel {
            name: "python3".into(),
            language: "python".into(),
            cells: 2,
            variables: vec!["x".into(), "y".into()],
            more_variables: 3,
        };
        let told = |replay| loss_notice(&[], &ended, std::slice::from_ref(&kernel), replay).text;
        let lost = told(false);
        assert!(lost.contains("x, y and 3 more") && lost.contains("kernel_lost"), "{lost}");
        let replayed = told(true);
        assert!(
            replayed.contains("Its 2 cells run again") && !replayed.contains("kernel_lost"),
            "{replayed}"
        );
        assert!(!loss_notice(&[], &ended, &[], false).text.contains("kernel"));
    }

    #[test]
    fn replayed_cells_are_hidden_from_the_agent() {
        let event = |attempt| Event {
            sequence: 1,
            time_ms: 0,
            call: Some(CallRef { id: "turn-1-1".into(), attempt }),
            actor: None,
            body: EventBody::CallEnded(CallEnd::default()),
        };
        assert!(logged(&event(1)).is_some());
        assert!(logged(&event(2)).is_none());
    }
}
