//! Tests of agents that make no progress, and of how they go on.

use serde_json::json;

use super::test_host::{TestHost, calls, text_answer};
use super::{done, finish};
use crate::{AgentEvent, AgentSettings, RunOutcome};

fn ls() -> model::Answer {
    calls(&[("shell", json!({"command": "ls"}))])
}

#[tokio::test]
async fn answers_without_calls_end_as_stuck() {
    for words in ["I will do it.", ""] {
        let host = TestHost::with_task("x");
        let answers = (0..20).map(|_| Ok(text_answer(words))).collect();
        let (mut agent, model) = host.agent(AgentSettings::default(), answers);
        assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Stuck(_)));
        assert!(model.requests.lock().unwrap().len() <= 5);
    }
}

#[tokio::test]
async fn repeated_identical_calls_end_as_stuck_after_a_nudge() {
    let host = TestHost::with_task("x");
    let answers = (0..20).map(|_| Ok(calls(&[("shell", json!({"command": "ls"}))]))).collect();
    let (mut agent, model) = host.agent(AgentSettings::default(), answers);
    assert!(
        matches!(agent.run(&host).await.unwrap(), RunOutcome::Stuck(why) if why.contains("the same call"))
    );
    let requests = model.requests.lock().unwrap();
    assert_eq!(requests.len(), 6);
    assert!(format!("{:?}", requests[3].messages).contains("Take care: the same call"));
    assert_eq!(*host.executed.lock().unwrap(), ["ls"; 3], "after the nudge it is not run");
    assert!(host.results()[3..].iter().all(|result| result.starts_with("not run")), "{:?}", host.results());
}

#[tokio::test]
async fn the_order_of_arguments_makes_no_other_call() {
    let host = TestHost::with_task("x");
    let one = || Ok(calls(&[("shell", json!({"command": "ls", "wait_s": 5}))]));
    let other = || Ok(calls(&[("shell", json!({"wait_s": 5, "command": "ls"}))]));
    let answers = vec![one(), other(), one(), other(), Ok(finish())];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    assert_eq!(*host.executed.lock().unwrap(), ["ls"; 3], "after the nudge it is not run");
}

#[tokio::test]
async fn repeated_unknown_tools_end_as_stuck() {
    let host = TestHost::with_task("x");
    let answers = (0..20).map(|n| Ok(calls(&[("fly", json!({"n": n}))]))).collect();
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Stuck(_)));
}

#[tokio::test]
async fn an_answer_without_a_call_gets_one_reminder_in_every_turn() {
    let host = TestHost::with_task("x");
    let talk = || Ok(text_answer("I will do it."));
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![talk(), talk(), Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let requests = model.requests.lock().unwrap();
    let reminders = |number: usize| {
        let shown = format!("{:?}", requests[number].messages);
        (shown.matches("without a tool call").count(), shown.matches("called no tool").count())
    };
    assert_eq!([reminders(0), reminders(1), reminders(2)], [(0, 0), (1, 0), (1, 0)]);
}

#[tokio::test]
async fn a_stuck_agent_starts_over_when_it_is_run_again() {
    let host = TestHost::with_task("x");
    let (mut agent, _) = host.agent(AgentSettings::default(), (0..6).map(|_| Ok(ls())).collect());
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Stuck(_)));
    // Another process resumes the job.
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(ls()), Ok(ls()), Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert_eq!(*host.executed.lock().unwrap(), ["ls"; 5]);
    let requests = model.requests.lock().unwrap();
    let is_told =
        |number: usize| format!("{:?}", requests[number].messages).contains("Take care: you were stuck");
    assert_eq!([is_told(0), is_told(1)], [true, false]);
}

#[tokio::test]
async fn a_message_lets_a_stuck_agent_go_on() {
    let host = TestHost::with_task("x");
    let mut answers: Vec<_> = (0..6).map(|_| Ok(ls())).collect();
    answers.extend([Ok(ls()), Ok(finish())]);
    let (mut agent, model) = host.agent(AgentSettings::default(), answers);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Stuck(_)));
    host.append(AgentEvent::MessageReceived { text: "list it once more".into() });
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let shown = format!("{:?}", model.requests.lock().unwrap()[6].messages);
    assert!(shown.contains("list it once more") && !shown.contains("you were stuck"), "{shown}");
}

#[tokio::test]
async fn a_repeated_call_is_not_run_in_the_turn_after_a_nudge() {
    let host = TestHost::with_task("x");
    let cat = || Ok(calls(&[("shell", json!({"command": "cat a"}))]));
    let answers = vec![Ok(ls()), Ok(ls()), Ok(ls()), Ok(ls()), cat(), Ok(ls()), Ok(finish())];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert_eq!(*host.executed.lock().unwrap(), ["ls", "ls", "ls", "cat a", "ls"]);
}
