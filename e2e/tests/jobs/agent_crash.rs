//! The server is killed at every point of an agent's job: the job continues, and no finished call runs or is paid
//! twice.

use e2e::Event;
use model::scripted::ScriptedAnswer;
use serde_json::json;

use crate::scripted::{Scripted, call, finish, finish_plan, shell};

/// The agent's answers: each command records how often it ran.
fn answers() -> Vec<ScriptedAnswer> {
    vec![
        call("plan", json!({"items": ["count"]})),
        shell("echo one >> log"),
        ScriptedAnswer::calls(&[
            (
                "shell",
                json!({"command": "echo two begins | tee -a log; sleep 1.5; echo two ends | tee -a log"}),
            ),
            ("write_file", json!({"path": "a.txt", "content": "x\n"})),
            ("edit_file", json!({"path": "a.txt", "old": "x", "new": "y"})),
        ]),
        // Slow enough to be killed midway.
        ScriptedAnswer {
            event_delay_ms: 40,
            letters: Some(2),
            ..shell("echo three after a slow answer >> log")
        },
        finish_plan(&["count"]),
    ]
}

const LOG: &str = "one\ntwo begins\ntwo ends\nthree after a slow answer\n";

#[track_caller]
fn kill_at(what: &str, point: impl Fn(&Event) -> bool) {
    let scripted = Scripted::turns(answers());
    let job = scripted.task("count");
    let mut events = job.follow();
    events.until(what, point);
    scripted.server.kill9();
    scripted.server.restart();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(job.output().text("log"), LOG, "{}", events.summary());
    assert_eq!(job.output().text("a.txt"), "y\n");
    let count = |kind: &str| events.count(|event| event.is(kind));
    assert_eq!(count("model_answered"), 5, "every answer is there once: {}", events.summary());
    assert_eq!(count("call_started"), 8, "{}", events.summary());
    assert_eq!(count("call_ended"), 8, "{}", events.summary());
    // The server does not request an answer again that is already in the log.
    let asked = scripted.model.requests().len();
    assert!((5..=6).contains(&asked), "the model was asked {asked} times: {}", events.summary());
    assert_eq!(job.status()["agent"]["spent"]["turns"], 5);
    scripted.server.assert_nothing_left();
}

#[test]
fn agent_job_survives_a_kill_after_the_model_request() {
    kill_at("turn 2", |event| event.is("turn_started") && event.data()["turn"] == 2);
}

#[test]
fn agent_job_survives_a_kill_during_an_answer() {
    let mut answers = answers();
    // The answer stops in its middle until the server is dead, however long that takes.
    answers[3].hold_after_events = vec![8];
    let scripted = Scripted::turns(answers);
    let job = scripted.task("count");
    let mut events = job.follow();
    events.until("turn 4", |event| event.is("turn_started") && event.data()["turn"] == 4);
    e2e::wait_until("the slow answer has begun", || scripted.model.requests().len() >= 4);
    scripted.server.kill9();
    scripted.model.release();
    scripted.server.restart();
    events.until_end();
    assert_eq!(job.output().text("log"), LOG, "{}", events.summary());
    assert_eq!(events.count(|event| event.is("model_answered")), 5, "{}", events.summary());
    assert_eq!(scripted.model.requests().len(), 6, "only the answer that broke off was asked for again");
}

#[test]
fn agent_job_survives_a_kill_after_an_answer_was_logged() {
    kill_at("the third answer", |event| event.is("model_answered") && event.data()["turn"] == 3);
}

#[test]
fn killed_when_a_call_was_just_logged() {
    kill_at("the start of the long call", |event| event.is("call_started") && event.call() == "turn-3-1.1");
}

#[test]
fn agent_job_survives_a_kill_during_a_command() {
    kill_at("its output", |event| event.is("call_output") && event.call() == "turn-3-1.1");
}

#[test]
fn agent_job_survives_a_kill_between_two_calls_of_an_answer() {
    kill_at("the end of the first", |event| event.is("call_ended") && event.call() == "turn-3-1.1");
}

#[test]
fn killed_between_two_file_operations() {
    kill_at("the end of the second", |event| event.is("call_ended") && event.call() == "turn-3-2.1");
}

#[test]
fn agent_job_survives_a_kill_after_the_agent_finished() {
    kill_at("finished", |event| event.is("agent_finished"));
}

#[test]
fn agent_is_informed_of_a_lost_sandbox_and_repeats_the_work() {
    let scripted = Scripted::sequence(vec![
        shell("echo made > made.txt"),
        call("shell", json!({"command": "echo waiting; sleep 60"})),
        ScriptedAnswer {
            when: model::scripted::When { user_contains: Some("Status".into()), ..Default::default() },
            ..shell("ls; echo again > made.txt")
        },
        finish(),
    ]);
    let job = scripted.task("be careful");
    let mut events = job.follow();
    events.until("the second command", |event| event.is("call_output") && event.call() == "turn-2-1.1");
    scripted.server.newest_sandbox().kill_both();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(job.output().text("made.txt"), "again\n");
    let is_loss = |event: &&Event| event.is("agent_notified") && event.data()["code"] == "sandbox_lost";
    let told = events.events.iter().find(is_loss).expect("a notice");
    let text = told.data()["text"].as_str().unwrap();
    assert!(text.contains("sandbox was lost") && text.contains("turn-1-1 (shell)"), "{text}");
    let interrupted = |event: &Event| event.is("call_ended") && event.data()["status"] == "interrupted";
    assert_eq!(events.count(interrupted), 1, "{}", events.summary());
}
