//! Conversion between the events of the log and those of the agent.

use agent::{AgentEvent, Logged, Notice, NoticeCode, RequestKind, ToolEnd, ToolStatus};
use sandbox::Ended;

use crate::agent_view::is_agent_call;
use crate::event::{CallEnd, CallRef, CallStatus, Event, EventBody, NewEvent};
use crate::kernels::LostKernel;
use crate::request::Work;

/// Maximum number of characters of the reason of a failed call.
const MOST_REASON: usize = 200;
/// Maximum number of calls that a sandbox loss notice names.
const MOST_NAMED: usize = 30;

/// An event of the log as the agent sees it; `None` if it does not concern the agent.
pub(crate) fn logged(event: &Event) -> Option<Logged> {
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
        EventBody::NoteKept { name, text } => AgentEvent::NoteKept { name: name.clone(), text: text.clone() },
        EventBody::MessageReceived { text } => AgentEvent::MessageReceived { text: text.clone() },
        // Egress requests are independent of the agent's work, which goes on.
        EventBody::RequestOpened(request) if request.kind == RequestKind::Egress => return None,
        EventBody::RequestAnswered { id, .. } if id.starts_with("egress-") => return None,
        EventBody::RequestOpened(request) => AgentEvent::RequestOpened(request.clone()),
        EventBody::RequestAnswered { id, answer } => {
            AgentEvent::RequestAnswered { id: id.clone(), answer: answer.clone() }
        }
        EventBody::BudgetChanged { budget } => AgentEvent::BudgetChanged { budget: *budget },
        EventBody::AgentTold(notice) => AgentEvent::Told(notice.clone()),
        EventBody::ContextChanged(entry) => AgentEvent::ContextChanged(entry.clone()),
        EventBody::AnswerLost(lost) => AgentEvent::AnswerLost(lost.clone()),
        EventBody::SummaryMade(made) => AgentEvent::SummaryMade(made.clone()),
        EventBody::AgentFinished(finished) => AgentEvent::Finished(finished.clone()),
        _ => return None,
    };
    Some(Logged { sequence: event.sequence, time_ms: event.time_ms, event: agent_event })
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
        AgentEvent::NoteKept { name, text } => EventBody::NoteKept { name, text }.into(),
        AgentEvent::MessageReceived { text } => EventBody::MessageReceived { text }.into(),
        AgentEvent::RequestOpened(request) => EventBody::RequestOpened(request).into(),
        AgentEvent::RequestAnswered { id, answer } => EventBody::RequestAnswered { id, answer }.into(),
        AgentEvent::BudgetChanged { budget } => EventBody::BudgetChanged { budget }.into(),
        AgentEvent::Told(notice) => EventBody::AgentTold(notice).into(),
        AgentEvent::ContextChanged(body) => EventBody::ContextChanged(body).into(),
        AgentEvent::AnswerLost(lost) => EventBody::AnswerLost(lost).into(),
        AgentEvent::SummaryMade(made) => EventBody::SummaryMade(made).into(),
        AgentEvent::Finished(finished) => EventBody::AgentFinished(finished).into(),
    }
}

fn call_end(end: &ToolEnd) -> CallEnd {
    let (status, code) = match end.status {
        ToolStatus::Done => (CallStatus::Succeeded, None),
        ToolStatus::Failed if end.exit_code.is_some() => (CallStatus::Failed, Some("exit_code")),
        ToolStatus::Failed => (CallStatus::Failed, Some("tool_failed")),
        ToolStatus::Malformed => (CallStatus::Failed, Some("malformed_call")),
        ToolStatus::Interrupted => (CallStatus::Interrupted, Some("interrupted")),
    };
    // For a process, the last line says how it ended; for everything else, the first line says the most.
    let line = if end.exit_code.is_some() { end.text.lines().last() } else { end.text.lines().next() };
    let reason = line.unwrap_or_default().trim_matches(['[', ']']).chars().take(MOST_REASON).collect();
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
    let mut text = format!("[Not from the person] The sandbox was lost: {}. ", ended.detail);
    if undone.is_empty() {
        text += "Nothing was undone; programs that ran are gone.";
    } else {
        let from = undone.len().saturating_sub(MOST_NAMED);
        text += &format!(
            "You have a new one. The workspace is as it was before these calls, whose effects are undone: {}. Programs \
             that ran are gone, and so is what was installed outside of /workspace. Look at the workspace, then do \
             again what is needed.",
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
    fn the_end_of_a_tool_survives_the_log() {
        let end = ToolEnd { exit_code: Some(2), ..ToolEnd::failed("no\n[exit code 2]") };
        let stored = call_end(&end);
        assert_eq!(
            (stored.code.as_deref(), stored.reason.as_deref()),
            (Some("exit_code"), Some("exit code 2"))
        );
        assert_eq!(tool_end(&stored), end);
    }

    #[test]
    fn a_call_that_was_interrupted_is_told_with_its_reason() {
        let end = CallEnd {
            status: CallStatus::Interrupted,
            reason: Some("the sandbox was lost while it ran".into()),
            ..CallEnd::default()
        };
        assert_eq!(tool_end(&end).text, "[the sandbox was lost while it ran]");
    }

    #[test]
    fn an_agent_is_told_which_variables_were_lost_or_that_its_cells_run_again() {
        let ended = Ended { reason: sandbox::EndedReason::Lost, detail: "killed".into() };
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
    fn a_cell_that_ran_again_is_no_news_to_the_agent() {
        let event = |attempt| Event {
            sequence: 1,
            time_ms: 0,
            call: Some(CallRef { id: "turn-1-1".into(), attempt }),
            done_by: None,
            body: EventBody::CallEnded(CallEnd::default()),
        };
        assert!(logged(&event(1)).is_some());
        assert!(logged(&event(2)).is_none());
    }
}
