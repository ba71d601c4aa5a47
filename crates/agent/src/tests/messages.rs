//! Tests of messages that people send while the agent works.

use model::{Message, Part};
use serde_json::json;

use super::test_host::{Moment, ScriptedModel, TestHost, calls};
use crate::{AgentEvent, AgentSettings, RunOutcome, replay};

fn finish() -> model::Answer {
    calls(&[("finish", json!({"summary": "all done"}))])
}

fn message(text: &str) -> AgentEvent {
    AgentEvent::MessageReceived { text: text.into() }
}

/// The messages of a request in short form: `call`, `result` or the text.
fn shown(model: &ScriptedModel, request: usize) -> Vec<String> {
    let requests = model.requests.lock().unwrap();
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::ToolCall(call) => format!("call {}", call.name),
        Part::ToolResult(result) => format!("result {}", result.name),
        other => format!("{other:?}"),
    };
    let parts = |message: &std::sync::Arc<Message>| message.parts.iter().map(part).collect::<Vec<_>>();
    requests[request].messages.iter().flat_map(parts).collect()
}

#[tokio::test]
async fn a_message_during_an_answer_with_finish_is_read_before_the_job_ends() {
    let host = TestHost::with_task("paint it");
    host.appended_at.lock().unwrap().insert(Moment::Answering, message("make it blue"));
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(finish()), Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let results = host.results();
    assert!(results[0].contains("the user has sent a message that you have not read"), "{results:?}");
    let second = shown(&model, 1);
    assert_eq!(
        second[1..4],
        ["call finish", "result finish", "[Message from the user, 00:00]\nmake it blue"]
    );
    assert_eq!(results.len(), 2, "the second finish counts");
}

#[tokio::test]
async fn a_message_during_the_acceptance_commands_keeps_the_job_going() {
    let host = TestHost::with_task("paint it");
    host.appended_at.lock().unwrap().insert(Moment::CommandRunning, message("make it blue"));
    let settings = AgentSettings { acceptance: vec!["make test".into()], ..AgentSettings::default() };
    let (mut agent, model) = host.agent(settings, vec![Ok(finish()), Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    assert!(host.results()[0].contains("have not read"), "{:?}", host.results());
    assert!(shown(&model, 1).iter().any(|text| text.ends_with("make it blue")));
}

#[tokio::test]
async fn a_message_between_prompt_and_request_is_in_the_request() {
    let host = TestHost::with_task("paint it");
    host.appended_at.lock().unwrap().insert(Moment::PromptBuilt, message("make it blue"));
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    assert!(shown(&model, 0).iter().any(|text| text.ends_with("make it blue")), "{:?}", shown(&model, 0));
    assert_eq!(model.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_logged_finish_after_an_unread_message_does_not_end_the_work() {
    let host = TestHost::with_task("paint it");
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    agent.run(&host).await.unwrap();
    let mut log = host.log.lock().unwrap().clone();
    assert!(replay(&log).unwrap().unwrap().finished().is_some());
    let finished = log.pop().unwrap();
    let late = crate::SequencedEvent { event: message("make it blue"), ..finished.clone() };
    log.extend([late, crate::SequencedEvent { sequence: finished.sequence + 1, ..finished }]);
    let conversation = replay(&log).unwrap().unwrap();
    assert_eq!(conversation.finished(), None);
    assert!(conversation.notices()[0].contains("arrived before the work ended"));
}
