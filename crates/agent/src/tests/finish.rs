//! Tests of `finish`: what refuses it, and what overrides the refusal.

use serde_json::json;

use super::test_host::{TestHost, calls};
use super::{done, end_of_plan, finish, write};
use crate::{AgentSettings, RunOutcome};

fn finish_because(reason: &str) -> model::Answer {
    calls(&[("finish", json!({"summary": "all done", "reason": reason}))])
}

fn plan_of_two() -> model::Answer {
    calls(&[("plan", json!({"items": [{"text": "build", "status": "done"}, {"text": "test"}]}))])
}

#[tokio::test]
async fn finish_requires_successful_acceptance_commands() {
    let settings = AgentSettings { acceptance: vec!["make test".into()], ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    host.program("make test", &[("1 test fails\n", 2), ("ok\n", 0)]);
    let (mut agent, model) = host.agent(settings, vec![Ok(finish()), Ok(write("a")), Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert!(
        host.results()[0].contains("`make test` fails (exit code 2)")
            && host.results()[0].contains("1 test fails")
    );
    assert!(model.requests.lock().unwrap()[0].system.contains("make test"));
}

#[tokio::test]
async fn finish_is_refused_while_points_of_the_plan_are_open() {
    let host = TestHost::with_task("x");
    let answers = vec![Ok(plan_of_two()), Ok(finish()), Ok(finish()), Ok(end_of_plan(&["build", "test"]))];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let results = host.results();
    for refused in &results[1..3] {
        assert!(refused.contains("- item 2 of the plan is open: test\n"), "{refused}");
        assert!(!refused.contains("build") && refused.contains("With a `reason`"), "{refused}");
    }
    assert_eq!(results.len(), 5, "{results:?}");
}

#[tokio::test]
async fn a_reason_counts_only_after_the_refusal() {
    let host = TestHost::with_task("x");
    let because = || Ok(finish_because("there is nothing to test"));
    let (mut agent, model) =
        host.agent(AgentSettings::default(), vec![Ok(plan_of_two()), because(), because()]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    assert_eq!(model.requests.lock().unwrap().len(), 3);
    assert!(host.results()[1].starts_with("not finished yet"), "{:?}", host.results());
}

#[tokio::test]
async fn finish_is_refused_after_a_failure_in_the_same_answer() {
    let host = TestHost::with_task("x");
    host.program("make test", &[("1 test fails\n", 2)]);
    let both = calls(&[
        ("shell", json!({"command": "make test"})),
        ("read_file", json!({"path": "missing.txt"})),
        ("shell", json!({"command": "ls"})),
        ("finish", json!({"summary": "all done"})),
    ]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(both), Ok(finish())]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    let refused = &host.results()[3];
    assert!(refused.contains("`shell` (turn-1-1) failed"), "{refused}");
    assert!(refused.contains("`read_file` (turn-1-2) failed") && !refused.contains("turn-1-3"), "{refused}");
}

#[tokio::test]
async fn a_reason_does_not_override_failing_acceptance_commands() {
    let settings = AgentSettings { acceptance: vec!["make test".into()], ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    host.program("make test", &[("1 test fails\n", 2), ("1 test fails\n", 2), ("ok\n", 0)]);
    let because = || Ok(finish_because("the test is wrong"));
    let (mut agent, _) = host.agent(settings, vec![because(), because(), Ok(write("a")), because()]);
    assert_eq!(agent.run(&host).await.unwrap(), done("all done"));
    for refused in &host.results()[..2] {
        assert!(refused.contains("`make test` fails (exit code 2)"), "{refused}");
    }
}

#[tokio::test]
async fn an_agent_may_give_up_with_an_open_plan() {
    let host = TestHost::with_task("x");
    let give_up = calls(&[("finish", json!({"summary": "there is no compiler", "outcome": "failed"}))]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(plan_of_two()), Ok(give_up)]);
    let RunOutcome::Finished(finished) = agent.run(&host).await.unwrap() else { panic!("not finished") };
    assert!(!finished.is_done());
}
