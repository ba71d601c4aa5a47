//! The server or the container is killed in the middle of a job.

use e2e::{Engine, Event, shell};
use serde_json::{Value, json};

fn counting_steps() -> Vec<Value> {
    vec![
        shell("echo one >> log.txt"),
        shell("echo two begins | tee -a log.txt; sleep 1.5; echo two ends | tee -a log.txt"),
        shell("echo three >> log.txt"),
    ]
}

const COUNTED: &str = "one\ntwo begins\ntwo ends\nthree\n";

fn in_step_two(event: &Event) -> bool {
    event.is("call_output") && event.call() == "step-2.1"
}

/// Kills the server at an event, restarts it, and asserts that every step ran once.
#[track_caller]
fn kill_server_at(more: &str, what: &str, point: impl Fn(&Event) -> bool) {
    let engine = Engine::get();
    let server = engine.serve(more);
    let job = server.schedule_steps(&counting_steps());
    let mut events = job.follow();
    events.until(what, point);
    server.kill9();
    server.restart();
    events.until_end();
    let status = job.status();
    assert_eq!(status["status"], "complete", "{}", events.summary());
    for step in status["steps"].as_array().unwrap() {
        assert_eq!((&step["status"], &step["attempts"]), (&json!("succeeded"), &json!(1)), "{status}");
    }
    assert_eq!(events.output("step-2.1", "stdout"), "two begins\ntwo ends\n", "{}", events.summary());
    assert_eq!(job.output().text("log.txt"), COUNTED);
    engine.assert_nothing_left(&server);
}

#[test]
fn server_killed_mid_step_reconnects_over_a_socket() {
    kill_server_at("", "output of step 2", in_step_two);
}

#[test]
fn server_killed_mid_step_reconnects_over_a_relay() {
    kill_server_at("link = \"exec\"", "output of step 2", in_step_two);
}

#[test]
fn server_killed_during_container_creation_creates_it_again() {
    kill_server_at("", "sandbox_requested", |event| event.is("sandbox_requested"));
}

#[test]
fn killed_container_leads_to_a_second_attempt_from_the_checkpoint() {
    let engine = Engine::get();
    let server = engine.serve("");
    let mut steps = counting_steps();
    steps[1] = shell(
        "echo two begins | tee -a log.txt; until [ -e stop ]; do sleep 0.05; done; echo two ends >> log.txt",
    );
    let job = server.schedule_steps(&steps);
    let mut events = job.follow();
    events.until("output of step 2", in_step_two);
    engine.kill_guest(&server);
    let second = |event: &Event| event.is("call_output") && event.call() == "step-2.2";
    events.until("output of the second attempt", second);
    job.touch("stop");
    events.until_end();
    let status = job.status();
    assert_eq!(status["status"], "complete", "{}", events.summary());
    assert_eq!(job.output().text("log.txt"), COUNTED, "{}", events.summary());
    assert_eq!(events.count(|event| event.is("sandbox_lost")), 1, "{}", events.summary());
    assert_eq!(status["steps"][1]["attempts"], 2, "{status}");
    engine.assert_nothing_left(&server);
}

#[test]
fn orphaned_container_is_removed_at_the_next_start() {
    let engine = Engine::get();
    let server = engine.serve("");
    let job = server.schedule_steps(&[shell("echo here; sleep 600")]);
    job.follow().until("output", |event| event.is("call_output"));
    assert_eq!(engine.containers(&server).len(), 1);
    server.kill9();
    for name in ["caisson.db", "caisson.db-wal", "caisson.db-shm"] {
        let _ = std::fs::remove_file(server.data().join(name));
    }
    server.restart();
    engine.assert_nothing_left(&server);
}
