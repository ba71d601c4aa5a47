//! Tests of the loop's limits: budgets that run out mid-work, loops within one answer, actions that happen at most
//! once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use model::{ModelError, Usage};
use serde_json::json;

use super::test_host::{TestHost, calls, text_answer};
use crate::{AgentEvent, AgentSettings, Budget, CommandRules, RunOutcome};

fn finish() -> model::Answer {
    calls(&[("finish", json!({"summary": "all done"}))])
}

fn with_budget(budget: Budget) -> AgentSettings {
    AgentSettings { budget, ..AgentSettings::default() }
}

fn paused(ending: RunOutcome) -> (String, String) {
    match ending {
        RunOutcome::Paused { code, reason, .. } => (code, reason),
        other => panic!("not paused: {other:?}"),
    }
}

#[tokio::test]
async fn rules_apply_to_the_cmd_alias() {
    let rules: CommandRules =
        serde_json::from_value(json!({"rules": [{"prefix": ["rm"], "decision": "deny"}]})).unwrap();
    let settings = AgentSettings { commands: rules, ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    let both = calls(&[
        ("shell", json!({"cmd": "rm -rf x"})),
        ("shell", json!({"command": "ls", "cmd": "rm -rf x"})),
        ("shell", json!({"cmd": "sudo -u root rm x"})),
        ("shell", json!({"cmd": "ls"})),
    ]);
    let (mut agent, _) = host.agent(settings, vec![Ok(both), Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert_eq!(*host.executed.lock().unwrap(), ["ls"]);
    let results = host.results();
    assert!(results[0].contains("not allowed (rule `rm`)") && results[2].contains("(rule `rm`)"));
    assert!(results[1].contains("duplicate field"), "{}", results[1]);
}

#[tokio::test]
async fn eight_equal_calls_in_one_answer_are_nudged_first() {
    let host = TestHost::with_task("x");
    let eight = calls(&vec![("shell", json!({"command": "ls"})); 8]);
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(eight), Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let requests = model.requests.lock().unwrap();
    assert!(format!("{:?}", requests[1].messages).contains("Take care: the same call"));
}

#[tokio::test]
async fn tokens_of_failed_answers_count_as_spent() {
    let host = TestHost::with_task("x");
    let cut = || {
        let lost = Usage { input: 60_000, ..Usage::default() };
        Err(ModelError::Cut { model: "m".into(), detail: "cut".into(), lost })
    };
    let budget = Budget { tokens: Some(100_000), ..Budget::default() };
    let (mut agent, model) = host.agent(with_budget(budget), vec![cut(), cut(), cut()]);
    assert_eq!(paused(agent.run(&host).await.unwrap()).0, "model_cut");
    let (code, reason) = paused(agent.run(&host).await.unwrap());
    assert_eq!((code.as_str(), reason.contains("120000 of 100000 tokens")), ("budget", true), "{reason}");
    assert_eq!(paused(agent.run(&host).await.unwrap()).0, "budget");
    assert_eq!(model.requests.lock().unwrap().len(), 2, "nobody is asked beyond the budget");
    // The spent tokens are in the log, so a restart does not change them.
    let (again, _) = host.agent(with_budget(budget), Vec::new());
    assert_eq!(again.conversation().spent().tokens(), 120_000);
}

#[tokio::test(start_paused = true)]
async fn time_limit_applies_during_a_model_request() {
    let host = TestHost::with_task("x");
    host.is_model_silent.store(true, Ordering::Relaxed);
    *host.worked.lock().unwrap() = Duration::from_secs(50);
    let budget = Budget { wall_s: Some(60), ..Budget::default() };
    let (mut agent, _) = host.agent(with_budget(budget), Vec::new());
    let begun = tokio::time::Instant::now();
    let (code, reason) = paused(agent.run(&host).await.unwrap());
    assert_eq!((code.as_str(), reason.contains("60 of 60 seconds")), ("budget", true), "{reason}");
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[tokio::test]
async fn tool_wait_is_limited_by_the_remaining_time() {
    let host = TestHost::with_task("x");
    *host.worked.lock().unwrap() = Duration::from_secs(50);
    let budget = Budget { wall_s: Some(60), ..Budget::default() };
    let long = calls(&[("shell", json!({"command": "make", "wait_s": 600}))]);
    let (mut agent, _) = host.agent(with_budget(budget), vec![Ok(long), Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert_eq!(host.waits.lock().unwrap()[0], Duration::from_secs(10));
}

#[tokio::test]
async fn money_budget_requires_a_known_price() {
    let host = TestHost::with_task("x");
    host.is_model_unpriced.store(true, Ordering::Relaxed);
    let budget = Budget { money_usd: Some(1.0), ..Budget::default() };
    let (mut agent, model) = host.agent(with_budget(budget), vec![Ok(text_answer("never asked"))]);
    let (code, reason) = paused(agent.run(&host).await.unwrap());
    assert_eq!(code, "budget");
    assert!(
        reason.starts_with("the price of test/list is unknown; give it in the configuration"),
        "{reason}"
    );
    assert!(model.requests.lock().unwrap().is_empty());
    // Without a money budget the price does not matter.
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
}

#[tokio::test]
async fn uncertain_input_is_not_typed_again() {
    let host = TestHost::with_task("x");
    let start = calls(&[("shell", json!({"command": "cat", "interactive": true}))]);
    let kind = json!({"handle": "turn-1-1", "action": "type", "text": "yes\n"});
    let answers = vec![Ok(start), Ok(calls(&[("process", kind)])), Ok(finish())];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    assert_eq!(*host.typed.lock().unwrap(), ["yes\n"]);
    assert!(!host.results()[1].contains("perhaps typed"));
    // The log as it was in the middle of typing.
    let begun = |logged: &crate::SequencedEvent| matches!(&logged.event, AgentEvent::CallStarted { tool, .. } if tool == "process");
    let place = host.log.lock().unwrap().iter().position(begun).unwrap();
    host.log.lock().unwrap().truncate(place + 1);
    host.typed.lock().unwrap().clear();
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert!(host.typed.lock().unwrap().is_empty());
    assert!(host.results()[1].contains("it was perhaps typed"), "{}", host.results()[1]);
}

#[tokio::test]
async fn input_over_a_broken_link_is_reported_as_uncertain() {
    let host = TestHost::with_task("x");
    host.is_link_broken.store(true, Ordering::Relaxed);
    let start = calls(&[("shell", json!({"command": "cat", "interactive": true}))]);
    let kind = json!({"handle": "turn-1-1", "action": "type", "text": "yes\n"});
    let answers = vec![Ok(start), Ok(calls(&[("process", kind)])), Ok(finish())];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    assert_eq!(host.typed.lock().unwrap().len(), 1);
    assert!(host.results()[1].contains("it was perhaps typed"), "{}", host.results()[1]);
}

#[tokio::test]
async fn shell_command_given_to_python_gets_a_hint() {
    let host = TestHost::with_task("x");
    let wrong = calls(&[("python", json!({"code": "python3 a.py | grep x"}))]);
    let right = calls(&[("python", json!({"code": "print(1)"}))]);
    let (mut agent, _) = host.agent(AgentSettings::default(), vec![Ok(wrong), Ok(right), Ok(finish())]);
    agent.run(&host).await.unwrap();
    let results = host.results();
    assert!(results[0].contains("a command line belongs in `shell`"), "{}", results[0]);
    assert!(!results[1].contains("belongs in"), "{}", results[1]);
}

#[tokio::test]
async fn excessive_time_budget_is_rejected_and_harmless_in_old_logs() {
    let budget = Budget { wall_s: Some(u64::MAX), ..Budget::default() };
    let (field, problem) = budget.check().unwrap_err();
    assert_eq!((field, problem.contains("2592000 seconds (30 days)")), ("wall_s", true), "{problem}");
    assert_eq!(Budget { wall_s: Some(2_592_000), ..budget }.check(), Ok(()));
    // An old log may contain such a budget.
    let host = TestHost::with_task("x");
    let ls = calls(&[("shell", json!({"command": "ls"}))]);
    let (mut agent, _) = host.agent(with_budget(budget), vec![Ok(ls), Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
}

#[tokio::test]
async fn polling_a_quiet_process_is_not_stuck() {
    let host = TestHost::with_task("x");
    host.quiet_polls.store(10, Ordering::Relaxed);
    let mut answers = vec![Ok(calls(&[("shell", json!({"command": "make", "interactive": true}))]))];
    let poll = || calls(&[("process", json!({"handle": "turn-1-1", "action": "poll", "wait_s": 2}))]);
    answers.extend((0..11).map(|_| Ok(poll())));
    answers.push(Ok(finish()));
    let (mut agent, model) = host.agent(AgentSettings::default(), answers);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let requests = model.requests.lock().unwrap();
    assert!(requests.iter().all(|request| !format!("{:?}", request.messages).contains("Take care")));
    assert!(host.results()[11].contains("[exit code 0, "), "{:?}", host.results());
}

#[tokio::test]
async fn patch_sections_of_one_file_apply_in_sequence() {
    let host = TestHost::with_task("x");
    host.files.lock().unwrap().insert("a.txt".into(), "one\ntwo\nthree\n".into());
    let patch = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n--- a/a.txt\n+++ b/a.txt\n@@ -3 +3 @@\n-three\n+3\n\
                 --- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n--- a/new.txt\n+++ b/new.txt\n@@ -1 +1 @@\n-new\n+newer\n";
    let gone = "--- a/a.txt\n+++ /dev/null\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+9\n";
    let twice =
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+9\n--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+new\n";
    let apply = |patch: &str| Ok(calls(&[("apply_patch", json!({"patch": patch}))]));
    let answers = vec![apply(patch), apply(gone), apply(twice), Ok(finish())];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    let files = host.files.lock().unwrap();
    assert_eq!((files["a.txt"].as_str(), files["new.txt"].as_str()), ("1\ntwo\n3\n", "newer\n"));
    let results = host.results();
    assert!(
        results[1].contains("a.txt is removed before it is changed. Nothing was changed"),
        "{}",
        results[1]
    );
    assert!(results[2].contains("a.txt is made although it was changed before"), "{}", results[2]);
}

#[tokio::test]
async fn requests_beyond_the_budget_are_not_sent() {
    let host = TestHost::with_task("x");
    let budget = Budget { tokens: Some(50), ..Budget::default() };
    let (mut agent, model) = host.agent(with_budget(budget), vec![Ok(finish())]);
    let (code, reason) = paused(agent.run(&host).await.unwrap());
    assert_eq!(
        (code.as_str(), reason.starts_with("50 of 50 tokens are left, too few")),
        ("budget", true),
        "{reason}"
    );
    assert!(model.requests.lock().unwrap().is_empty());
    let price =
        model::Price { input: 1000.0, output: 1000.0, cached_input: None, cache_write: None, above: None };
    *host.price.lock().unwrap() = Some(price);
    let budget = Budget { money_usd: Some(0.01), ..Budget::default() };
    let (mut agent, model) = host.agent(with_budget(budget), vec![Ok(finish())]);
    let (code, reason) = paused(agent.run(&host).await.unwrap());
    assert_eq!(
        (code.as_str(), reason.starts_with("$0.0100 of $0.0100 are left")),
        ("budget", true),
        "{reason}"
    );
    assert!(model.requests.lock().unwrap().is_empty());
    // A slightly larger budget limits the answer to what is left; with a large one the limit is the model's.
    for (tokens, is_bound) in [(8_000, true), (1_000_000, false)] {
        let budget = Budget { tokens: Some(tokens), ..Budget::default() };
        host.log.lock().unwrap().truncate(1);
        let (mut agent, model) = host.agent(with_budget(budget), vec![Ok(finish())]);
        assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
        let most = model.requests.lock().unwrap()[0].max_output_tokens;
        assert_eq!(most.is_some_and(|most| most < 8_000), is_bound, "{most:?}");
        assert!(is_bound || most == Some(8_000), "a limit is always sent: {most:?}");
    }
}

#[tokio::test]
async fn calls_do_not_start_after_the_time_limit_and_code_is_not_interrupted() {
    let host = TestHost::with_task("x");
    *host.worked.lock().unwrap() = Duration::from_secs(59);
    let budget = Budget { wall_s: Some(60), ..Budget::default() };
    let code = json!({"code": "sleep sleep"});
    let five = calls(&[
        ("python", code.clone()),
        ("shell", json!({"command": "one"})),
        ("read_file", json!({"path": "a"})),
        ("python", code),
        ("shell", json!({"command": "two"})),
    ]);
    let (mut agent, _) = host.agent(with_budget(budget), vec![Ok(five)]);
    assert_eq!(paused(agent.run(&host).await.unwrap()).0, "budget");
    assert_eq!(*host.waits.lock().unwrap(), [Duration::from_secs(120)], "as long as code may take");
    let log = host.log.lock().unwrap();
    let begun = log.iter().filter(|logged| matches!(logged.event, AgentEvent::CallStarted { .. })).count();
    assert_eq!((begun, host.executed.lock().unwrap().len()), (1, 0));
}

#[tokio::test]
async fn model_is_notified_of_a_truncated_answer() {
    let host = TestHost::with_task("x");
    let half = model::Answer {
        stop_reason: model::StopReason::MaxTokens,
        ..calls(&[("write_file", json!("{\"path\": \"a\", \"content\": \"and so"))])
    };
    let ls = calls(&[("shell", json!({"command": "ls"}))]);
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(half), Ok(ls), Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let requests = model.requests.lock().unwrap();
    let is_notified = |number: usize| {
        let notice = "Take care: your last answer was cut off after 10 tokens";
        format!("{:?}", requests[number].messages).contains(notice)
    };
    assert_eq!([is_notified(0), is_notified(1), is_notified(2)], [false, true, false]);
}

#[tokio::test]
async fn rules_apply_to_input_typed_into_a_shell() {
    let rules: CommandRules =
        serde_json::from_value(json!({"rules": [{"prefix": ["rm"], "decision": "deny"}]})).unwrap();
    let settings = AgentSettings { commands: rules, ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    host.quiet_polls.store(9, Ordering::Relaxed);
    let start = |command: &str| ("shell", json!({"command": command, "interactive": true}));
    let kind = |handle: &str, text: &str| {
        Ok(calls(&[("process", json!({"handle": handle, "action": "type", "text": text}))]))
    };
    let answers = vec![
        Ok(calls(&[start("bash -i"), start("cat")])),
        kind("turn-1-1", "cd a && rm x\n"),
        kind("turn-1-2", "rm x\n"),
        kind("turn-1-1", "ls\n"),
        Ok(finish()),
    ];
    let (mut agent, _) = host.agent(settings, answers);
    agent.run(&host).await.unwrap();
    assert_eq!(*host.typed.lock().unwrap(), ["rm x\n", "ls\n"], "what `cat` reads is no command");
    let refused = &host.results()[2];
    assert!(
        refused.contains("this command is not allowed (rule `rm`); what it is about: `rm x`"),
        "{refused}"
    );
}

#[tokio::test]
async fn no_rule_denies_the_tools_that_control_the_job() {
    let rules: CommandRules =
        serde_json::from_value(json!({"rules": [{"tool": "*", "decision": "deny"}]})).unwrap();
    let settings = AgentSettings { commands: rules, ..AgentSettings::default() };
    let host = TestHost::with_task("x");
    let work = calls(&[
        ("notes", json!({"name": "a", "text": "b"})),
        ("history_search", json!({"query": "x"})),
        ("shell", json!({"command": "ls"})),
    ]);
    let (mut agent, _) = host.agent(settings, vec![Ok(work), Ok(finish())]);
    assert!(matches!(agent.run(&host).await.unwrap(), RunOutcome::Finished(_)));
    let results = host.results();
    let is_denied: Vec<bool> = results.iter().map(|text| text.contains("not allowed (rule `*`)")).collect();
    assert_eq!(is_denied, [false, false, true, false], "{results:?}");
}

#[tokio::test]
async fn the_effort_of_the_job_is_sent_with_each_request() {
    let host = TestHost::with_task("x");
    let settings = AgentSettings { effort: Some(model::Effort::High), ..AgentSettings::default() };
    let (mut agent, model) = host.agent(settings, vec![Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert_eq!(model.requests.lock().unwrap()[0].effort, Some(model::Effort::High));
    let host = TestHost::with_task("x");
    let (mut agent, model) = host.agent(AgentSettings::default(), vec![Ok(finish())]);
    agent.run(&host).await.unwrap();
    assert_eq!(model.requests.lock().unwrap()[0].effort, None, "what the model does by itself");
}
