//! Tests of the agent loop with scripted model answers, on a host without a sandbox.

mod dialects;
mod finish;
mod limits;
mod messages;
mod observations;
mod recall;
mod stuck;
mod test_host;
mod window;

use model::ModelError;
use serde_json::json;

use self::test_host::{TestHost, calls, text_answer};
use crate::{
    AgentEvent, AgentSettings, Approval, Budget, CommandRules, FinishOutcome, Finished, InputAnswer, Notice,
    NoticeCode, RequestKind, RunOutcome, VisionSupport,
};

fn done(summary: &str) -> RunOutcome {
    RunOutcome::Finished(Finished { outcome: FinishOutcome::Done, summary: summary.into() })
}

fn finish() -> model::Answer {
    calls(&[("finish", json!({"summary": "all done"}))])
}

/// Marks all points of a plan as done and finishes.
fn end_of_plan(points: &[&str]) -> model::Answer {
    let items: Vec<_> = points.iter().map(|text| json!({"text": text, "status": "done"})).collect();
    calls(&[("plan", json!({"items": items})), ("finish", json!({"summary": "all done"}))])
}

fn write(path: &str) -> model::Answer {
    calls(&[("write_file", json!({"path": path, "content": "hello\n"}))])
}

#[tokio::test]
async fn a_task_is_planned_done_and_finished() {
    let host = TestHost::with_task("write a file");
    let plan = calls(&[("plan", json!({"items": ["write it", {"text": "check it"}]}))]);
    let end = end_of_plan(&["write it", "check it"]);
    let (mut agent, model) =
        host.agent(AgentSettings::default(), vec![Ok(plan), Ok(write("a.txt")), Ok(end)]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert_eq!(host.files.lock().unwrap()["a.txt"], "hello\n");
    assert_eq!(agent.conversation().plan().unwrap().done(), 2);
    let spent = agent.conversation().spent();
    assert_eq!(
        (spent.turns, spent.tool_calls, spent.tokens(), spent.cost_nanodollars),
        (3, 4, 330, 3_000_000)
    );
    let requests = model.requests.lock().unwrap();
    assert!(requests[0].system.contains("/workspace") && !requests[0].tools.is_empty());
    let shown = format!("{:?}", requests[2].messages);
    assert!(shown.contains("write a file") && shown.contains("wrote a.txt: 1 lines, 6 bytes"), "{shown}");
    assert!(shown.contains("Your plan:"), "{shown}");
}

#[tokio::test]
async fn replaying_the_log_restores_the_state() {
    let host = TestHost::with_task("write a file");
    let (mut agent, _) =
        host.agent(AgentSettings::default(), vec![Ok(write("a")), Ok(text_answer("thinking")), Ok(finish())]);
    agent.run(&host).await.unwrap();
    let (again, _) = host.agent(AgentSettings::default(), Vec::new());
    let shown = |agent: &crate::Agent| {
        let conversation = agent.conversation();
        let view = conversation.engine().view().bytes();
        (view, *conversation.spent(), conversation.records().to_vec(), conversation.finished().cloned())
    };
    assert_eq!(shown(&agent), shown(&again));
}

#[tokio::test]
async fn restarted_agent_does_not_repeat_finished_calls() {
    let host = TestHost::with_task("two files");
    let two = calls(&[("shell", json!({"command": "make one"})), ("shell", json!({"command": "make two"}))]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(two), Ok(finish())]);
    agent.run(&host).await.unwrap();
    // The log as it was right after the first call ended.
    let cut = host
        .log
        .lock()
        .unwrap()
        .iter()
        .position(|logged| matches!(logged.event, AgentEvent::CallEnded { .. }));
    host.log.lock().unwrap().truncate(cut.unwrap() + 1);
    host.executed.lock().unwrap().clear();
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert_eq!(*host.executed.lock().unwrap(), ["make two"]);
    assert_eq!(
        model.requests.lock().unwrap().len(),
        1,
        "the answer that is in the log is not paid for again"
    );
}

#[tokio::test]
async fn resumed_call_reports_its_whole_duration() {
    let host = TestHost::with_task("x");
    let slow = calls(&[("shell", json!({"command": "make one"}))]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(slow), Ok(finish())]);
    agent.run(&host).await.unwrap();
    let started = |logged: &crate::SequencedEvent| matches!(logged.event, AgentEvent::CallStarted { .. });
    let cut = host.log.lock().unwrap().iter().position(started).unwrap();
    let started_ms = host.log.lock().unwrap()[cut].time_ms;
    host.log.lock().unwrap().truncate(cut + 1);
    *host.now_ms.lock().unwrap() = started_ms + 90_000;
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    agent.run(&host).await.unwrap();
    let log = host.log.lock().unwrap();
    let durations = log.iter().filter_map(|logged| match &logged.event {
        AgentEvent::CallEnded { end, .. } => Some(end.duration_ms),
        _ => None,
    });
    let durations: Vec<u64> = durations.collect();
    assert!(durations[0] >= 90_000 && durations[1] < 90_000, "{durations:?}");
}

#[tokio::test]
async fn unknown_tools_and_invalid_input_get_corrective_errors() {
    let host = TestHost::with_task("x");
    let bad = calls(&[
        ("bash", json!({"command": "ls"})),
        ("write_file", json!({"path": "a"})),
        ("shell", json!("not json {")),
    ]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(bad), Ok(finish())]);
    agent.run(&host).await.unwrap();
    let results = host.results();
    assert!(results[0].contains("Did you mean `shell`?"), "{}", results[0]);
    assert!(
        results[1].contains("missing field `content`") && results[1].contains("\"path\""),
        "{}",
        results[1]
    );
    assert!(results[2].contains("must be one JSON object"), "{}", results[2]);
}

#[tokio::test]
async fn exhausted_budget_pauses_until_raised() {
    let host = TestHost::with_task("x");
    let settings =
        AgentSettings { budget: Budget { turns: Some(1), ..Budget::default() }, ..AgentSettings::default() };
    let (mut agent, model) = host.agent(settings, vec![Ok(write("a")), Ok(finish())]);
    let RunOutcome::Paused { code, reason, .. } = agent.run(&host).await.unwrap() else {
        panic!("not paused")
    };
    assert_eq!((code.as_str(), reason.contains("1 of 1 turns")), ("budget", true));
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Paused { .. }), "nothing has changed");
    host.append(AgentEvent::BudgetChanged { budget: Budget { turns: Some(5), ..Budget::default() } });
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let shown = format!("{:?}", model.requests.lock().unwrap()[1].messages);
    assert!(shown.contains("Left: 4 turns"), "the model sees what is left: {shown}");
    assert!(!shown.contains("The budget is nearly used"), "{shown}");
}

#[tokio::test]
async fn in_its_last_turns_the_model_is_told_to_finish_and_not_to_plan() {
    let host = TestHost::with_task("x");
    let budget = Budget { turns: Some(4), ..Budget::default() };
    let (mut agent, model) =
        host.agent(AgentSettings { budget, ..AgentSettings::default() }, vec![Ok(write("a")), Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let shown: Vec<String> =
        model.requests.lock().unwrap().iter().map(|request| format!("{:?}", request.messages)).collect();
    assert!(shown[0].contains("Left: 4 turns") && shown[0].contains("call `plan` now"), "{}", shown[0]);
    assert!(
        shown[1].contains("The budget is nearly used") && !shown[1].contains("call `plan` now"),
        "{}",
        shown[1]
    );
}

#[tokio::test]
async fn no_more_tools_run_than_the_budget_allows() {
    let host = TestHost::with_task("x");
    let budget = Budget { tool_calls: Some(2), ..Budget::default() };
    let many = calls(&[
        ("shell", json!({"command": "a"})),
        ("shell", json!({"command": "b"})),
        ("shell", json!({"command": "c"})),
    ]);
    let (mut agent, _) = host.agent(AgentSettings { budget, ..AgentSettings::default() }, vec![Ok(many)]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Paused { code, .. } if code == "budget"));
    assert_eq!(*host.executed.lock().unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn a_handback_during_the_check_is_in_the_next_prompt() {
    let host = TestHost::with_task("x");
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    let notice = Notice { code: NoticeCode::HandedBack, text: "Ada gives the sandbox back".into() };
    *host.appended_by_check.lock().unwrap() = Some(AgentEvent::Notified(notice));
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let shown = format!("{:?}", model.requests.lock().unwrap()[0].messages);
    assert!(shown.contains("Ada gives the sandbox back"), "{shown}");
}

#[tokio::test]
async fn a_question_waits_for_its_answer() {
    let host = TestHost::with_task("x");
    let ask = calls(&[("ask_user", json!({"question": "Which colour?", "options": ["red", "blue"]}))]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(ask), Ok(finish())]);
    let RunOutcome::Waiting(request) = agent.run(&host).await.unwrap() else { panic!("not waiting") };
    assert_eq!((request.kind, request.text.as_str()), (RequestKind::Question, "Which colour?"));
    // A restart while the request is open does not ask again.
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), RunOutcome::Waiting(request.clone()));
    let answer = InputAnswer { text: Some("blue".into()), ..InputAnswer::default() };
    host.append(AgentEvent::InputAnswered { id: request.id, answer: Some(answer) });
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert_eq!(host.results()[0], "the user answers: blue");
}

#[tokio::test]
async fn unanswered_question_times_out() {
    let host = TestHost::with_task("x");
    let ask = calls(&[("ask_user", json!({"question": "?", "wait_minutes": 1}))]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(ask), Ok(finish())]);
    let RunOutcome::Waiting(request) = agent.run(&host).await.unwrap() else { panic!("not waiting") };
    assert_eq!(request.deadline_ms, Some(60_000));
    host.append(AgentEvent::InputAnswered { id: request.id, answer: None });
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert!(host.results()[0].contains("your own judgement"));
}

#[tokio::test]
async fn commands_are_allowed_asked_about_and_denied_by_rules() {
    let rules: CommandRules = serde_json::from_value(json!({"rules": [
        {"prefix": ["git", "push"], "decision": "ask"}, {"prefix": ["rm"], "decision": "deny", "reason": "keep it"}
    ]}))
    .unwrap();
    let settings =
        AgentSettings { approval: Approval::Ask, commands: rules.clone(), ..AgentSettings::default() };
    let three = calls(&[
        ("shell", json!({"command": "ls"})),
        ("shell", json!({"command": "rm -rf x"})),
        ("shell", json!({"command": "git push"})),
    ]);
    let host = TestHost::with_task("x");
    let (mut agent, _) = host.agent(settings, vec![Ok(three.clone()), Ok(finish())]);
    let RunOutcome::Waiting(request) = agent.run(&host).await.unwrap() else { panic!("not waiting") };
    assert_eq!((request.kind, request.command.as_deref()), (RequestKind::Command, Some("git push")));
    assert_eq!(*host.executed.lock().unwrap(), ["ls"]);
    assert!(host.results()[1].contains("not allowed (rule `rm`): keep it"));
    let answer = InputAnswer {
        accept: Some(false),
        text: Some("not yet".into()),
        plan: None,
        ..InputAnswer::default()
    };
    host.append(AgentEvent::InputAnswered { id: request.id, answer: Some(answer) });
    agent.run(&host).await.unwrap();
    assert!(host.results()[2].contains("refused this command: not yet"));
    // With approvals off, commands that a rule would ask about run; denied commands do not.
    let host = TestHost::with_task("x");
    let settings = AgentSettings { commands: rules, ..AgentSettings::default() };
    let (mut agent, _) = host.agent(settings, vec![Ok(three), Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert_eq!(*host.executed.lock().unwrap(), ["ls", "git push"]);
}

#[tokio::test]
async fn tool_approvals_are_sequential_and_calls_start_once_approved() {
    let rules: CommandRules =
        serde_json::from_value(json!({"rules": [{"tool": "read_*", "decision": "ask"}]})).unwrap();
    let settings = AgentSettings { approval: Approval::Ask, commands: rules, ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    let two = calls(&[("read_file", json!({"path": "a"})), ("read_file", json!({"path": "b"}))]);
    let (mut agent, _) = host.agent(settings, vec![Ok(two), Ok(finish())]);
    for path in ["a", "b"] {
        let RunOutcome::Waiting(request) = agent.run(&host).await.unwrap() else { panic!("not waiting") };
        assert_eq!(request.command, Some(format!("read_file {{\"path\":\"{path}\"}}")));
        let answer = InputAnswer { accept: Some(path == "a"), ..InputAnswer::default() };
        host.append(AgentEvent::InputAnswered { id: request.id, answer: Some(answer) });
    }
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert!(!host.results()[0].contains("refused") && host.results()[1].contains("refused this tool"));
    let log = host.log.lock().unwrap();
    let place =
        |wanted: &dyn Fn(&AgentEvent) -> bool| log.iter().position(|logged| wanted(&logged.event)).unwrap();
    let asked = place(&|event| matches!(event, AgentEvent::InputRequested(_)));
    let begun = place(&|event| matches!(event, AgentEvent::CallStarted { .. }));
    assert!(asked < begun, "what was not allowed yet has not begun");
}

#[tokio::test]
async fn changes_wait_for_an_accepted_or_edited_plan() {
    let settings = AgentSettings { approve_plan: true, ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    let plan =
        calls(&[("write_file", json!({"path": "a", "content": ""})), ("plan", json!({"items": ["mine"]}))]);
    let answers = vec![Ok(plan), Ok(write("b")), Ok(end_of_plan(&["theirs"]))];
    let (mut agent, _) = host.agent(settings, answers);
    let RunOutcome::Waiting(request) = agent.run(&host).await.unwrap() else { panic!("not waiting") };
    assert!(host.files.lock().unwrap().is_empty() && host.results()[0].contains("accept your plan first"));
    let edited = serde_json::from_value(json!({"items": [{"text": "theirs"}]})).unwrap();
    let answer = InputAnswer { plan: Some(edited), ..InputAnswer::default() };
    host.append(AgentEvent::InputAnswered { id: request.id, answer: Some(answer) });
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert_eq!(agent.conversation().plan().unwrap().items[0].text, "theirs");
    assert!(host.files.lock().unwrap().contains_key("b"));
}

#[tokio::test]
async fn before_the_plan_is_accepted_commands_may_only_look() {
    let settings = AgentSettings { approve_plan: true, ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    let looks = calls(&[
        ("shell", json!({"command": "wc -l src/*.rs | sort -n"})),
        ("shell", json!({"command": "make"})),
        ("plan", json!({"items": ["mine"]})),
    ]);
    let (mut agent, _) = host.agent(settings, vec![Ok(looks)]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Waiting(_)));
    assert_eq!(*host.executed.lock().unwrap(), ["wc -l src/*.rs | sort -n"]);
    assert!(host.results()[1].contains("accept your plan first"), "{:?}", host.results());
}

#[tokio::test]
async fn a_message_of_a_person_is_read_in_the_next_turn() {
    let host = TestHost::with_task("x");
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(write("a")), Ok(finish())]);
    host.append(AgentEvent::MessageReceived { text: "make it blue".into() });
    agent.run(&host).await.unwrap();
    assert!(format!("{:?}", model.requests.lock().unwrap()[0].messages).contains("make it blue"));
}

#[tokio::test]
async fn too_long_prompt_is_shortened_and_retried() {
    let host = TestHost::with_task("x");
    let overflow = || {
        Err(ModelError::Overflow {
            model: "m".into(),
            requested: None,
            limit: Some(50_000),
            detail: "long".into(),
        })
    };
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![overflow(), Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let host = TestHost::with_task("x");
    let (mut agent, model) = host.agent(AgentSettings::default(), (0..20).map(|_| overflow()).collect());
    assert!(
        matches!(agent.run(&host).await.unwrap(), RunOutcome::Paused { code, .. } if code == "context_overflow")
    );
    assert_eq!(model.requests.lock().unwrap().len(), 5, "it does not try for ever");
}

#[tokio::test]
async fn model_failure_pauses_the_job() {
    let host = TestHost::with_task("x");
    let failed = Err(ModelError::Auth { model: "m".into(), detail: "no key".into() });
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![failed, Ok(finish())]);
    assert!(matches!(
        agent.run(&host).await.unwrap(),
        RunOutcome::Paused { code, retry_after: None, .. } if code == "model_auth"
    ));
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
}

#[tokio::test]
async fn a_patch_and_an_edit_change_files() {
    let host = TestHost::with_task("x");
    host.files.lock().unwrap().insert("a.py".into(), "def f():\n    return 1\n".into());
    let patch = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n";
    let answers = vec![
        Ok(calls(&[("apply_patch", json!({"patch": patch}))])),
        Ok(calls(&[("edit_file", json!({"path": "/workspace/a.py", "old": "2", "new": "3"}))])),
        Ok(calls(&[("edit_file", json!({"path": "a.py", "old": "  return 4", "new": "x"}))])),
        Ok(finish()),
    ];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    assert_eq!(host.files.lock().unwrap()["a.py"], "def f():\n    return 3\n");
    assert!(host.results()[2].contains("return 3"), "the nearest place is shown: {}", host.results()[2]);
}

#[tokio::test]
async fn models_without_image_support_get_text_instead() {
    for sight in [VisionSupport::Images, VisionSupport::TextOnly] {
        let host = TestHost::with_task("look");
        *host.sight.lock().unwrap() = Some(sight);
        let looks = vec![
            Ok(calls(&[("screenshot", json!({}))])),
            Ok(calls(&[("gui", json!({"action": "click", "x": 1, "y": 2, "screenshot": true}))])),
            Ok(calls(&[("browser", json!({"action": "screenshot", "save_as": "page.png"}))])),
            Ok(finish()),
        ];
        let (mut agent, model) = host.agent(AgentSettings::default(), looks);
        assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
        let requests = model.requests.lock().unwrap();
        let last = format!("{:?}", requests[3].messages);
        let pictures = last.matches("Image(image/png, 24 bytes)").count();
        assert_eq!(pictures, if sight == VisionSupport::Images { 3 } else { 0 }, "{last}");
        assert_eq!(last.contains("You cannot see pictures"), sight == VisionSupport::TextOnly, "{last}");
        assert!(last.contains("window 1 \\\"Form\\\" at 10,20, 300x200, has the keyboard"), "{last}");
        assert_eq!(last.contains("e1 button Go"), sight == VisionSupport::TextOnly, "{last}");
        assert_eq!(host.files.lock().unwrap()["page.png"], "24 bytes");
    }
}

#[tokio::test]
async fn interrupted_browser_click_is_not_repeated() {
    let host = TestHost::with_task("click");
    let click = calls(&[("browser", json!({"action": "click", "ref": "e1"}))]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(click), Ok(finish())]);
    agent.run(&host).await.unwrap();
    // The log as it was in the middle of the call.
    let begun = |logged: &crate::SequencedEvent| matches!(logged.event, AgentEvent::CallStarted { .. });
    let place = host.log.lock().unwrap().iter().position(begun).unwrap();
    host.log.lock().unwrap().truncate(place + 1);
    host.executed.lock().unwrap().clear();
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert!(host.executed.lock().unwrap().is_empty());
    assert!(host.results()[0].contains("the server was restarted while the browser worked"));
}

#[tokio::test]
async fn model_output_is_streamed_to_the_host() {
    let host = TestHost::with_task("say it");
    let (mut agent, _) =
        host.agent(AgentSettings::default(), vec![Ok(text_answer("I begin.")), Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert_eq!(*host.streamed_text.lock().unwrap(), "I begin.");
}
