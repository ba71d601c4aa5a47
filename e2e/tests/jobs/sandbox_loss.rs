//! The sandbox itself is lost: the guest or the launcher is killed, with and without a running server. Steps after
//! the checkpoint run again as another logged attempt; the final workspace contains each effect once.

use e2e::{Event, Follower, Job, SandboxProcesses, Server, shell};
use serde_json::{Value, json};

/// The second step waits for a file `stop`.
fn counting_steps() -> Vec<Value> {
    vec![
        shell("echo one >> log.txt"),
        shell(
            "echo two begins | tee -a log.txt; until [ -e stop ]; do sleep 0.05; done; echo two ends >> log.txt",
        ),
        shell("echo three >> log.txt"),
    ]
}

const COUNTED: &str = "one\ntwo begins\ntwo ends\nthree\n";

fn in_step_two(event: &Event) -> bool {
    event.is("call_output") && event.call() == "step-2.1"
}

fn in_second_attempt(event: &Event) -> bool {
    event.is("call_output") && event.call() == "step-2.2"
}

/// Lets the second attempt end, and checks what is left of the first.
#[track_caller]
fn assert_second_attempt(server: &Server, job: &Job<'_>, events: &mut Follower<'_>) {
    events.until("output of the second attempt", in_second_attempt);
    job.touch("stop");
    events.until_end();
    let status = job.status();
    assert_eq!(status["status"], "complete", "{}", events.summary());
    assert_eq!(job.output().text("log.txt"), COUNTED, "{}", events.summary());
    assert_eq!(events.count(|event| event.is("sandbox_lost")), 1, "{}", events.summary());
    assert_eq!(status["steps"][1]["attempts"], 2, "{status}");
    let interrupted = |event: &Event| event.is("call_ended") && event.data()["status"] == "interrupted";
    assert_eq!(
        events.count(|event| interrupted(event) && event.call() == "step-2.1"),
        1,
        "{}",
        events.summary()
    );
    let log = job.get("log").expect(200).text();
    assert!(log.contains("lost") && log.contains("interrupted"), "the log does not tell of the loss: {log}");
    server.assert_nothing_left();
}

#[track_caller]
fn kill_in_step_two(kill: impl Fn(SandboxProcesses)) {
    let server = Server::start();
    let job = server.schedule_steps(&counting_steps());
    let mut events = job.follow();
    events.until("output of step 2", in_step_two);
    kill(server.newest_sandbox());
    assert_second_attempt(&server, &job, &mut events);
}

#[test]
fn a_killed_guest_leads_to_a_second_attempt() {
    kill_in_step_two(SandboxProcesses::kill_guest);
}

#[test]
fn links_out_of_the_workspace_are_restored_from_a_checkpoint() {
    let server = Server::start();
    let job = server.schedule_steps(&[
        shell("ln -s /usr/bin/env env; ln -s ../../nowhere up; mkdir -p empty; sleep 2.5"),
        shell("echo begun; until [ -e stop ]; do sleep 0.05; done; readlink env up; ls -d empty"),
    ]);
    let mut events = job.follow();
    events.until("the checkpoint", |event| event.is("checkpoint"));
    events.until("output of step 2", in_step_two);
    server.newest_sandbox().kill_guest();
    events.until("output of the second attempt", in_second_attempt);
    job.touch("stop");
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(events.output("step-2.2", "stdout"), "begun\n/usr/bin/env\n../../nowhere\nempty\n");
    assert_eq!(job.status()["steps"][0]["attempts"], 1);
}

#[test]
fn a_killed_launcher_leads_to_a_second_attempt() {
    kill_in_step_two(SandboxProcesses::kill_launcher);
}

#[test]
fn guest_and_launcher_killed_together_lead_to_a_second_attempt() {
    kill_in_step_two(SandboxProcesses::kill_both);
}

#[test]
fn a_sandbox_lost_while_no_server_runs_leads_to_a_second_attempt() {
    let server = Server::start();
    let job = server.schedule_steps(&counting_steps());
    let mut events = job.follow();
    events.until("output of step 2", in_step_two);
    let sandbox = server.newest_sandbox();
    server.kill9();
    sandbox.kill_both();
    server.restart();
    assert_second_attempt(&server, &job, &mut events);
}

#[test]
fn job_with_on_loss_fail_fails_when_its_sandbox_is_lost() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": counting_steps(), "on_loss": "fail"}));
    let mut events = job.follow();
    events.until("output of step 2", in_step_two);
    server.newest_sandbox().kill_guest();
    events.until_end();
    let status = job.wait_for_failure("sandbox_lost");
    assert_eq!(status["steps"][1]["attempts"], 1, "{status}");
    server.assert_nothing_left();
}

#[test]
fn job_fails_after_repeated_sandbox_losses() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo ready; sleep 600")]);
    let mut events = job.follow();
    let end = loop {
        let event = events.until("output or the end", |event| event.is("call_output") || event.is_end());
        if event.is_end() {
            break event;
        }
        assert!(events.count(|event| event.is("sandbox_lost")) < 20, "{}", events.summary());
        server.newest_sandbox().kill_guest();
    };
    assert!(end.is_state("failed"), "{}", events.summary());
    job.wait_for_failure("sandbox_lost");
    server.assert_nothing_left();
}

#[test]
fn a_job_cannot_kill_its_own_guest() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("kill -9 1; kill -9 -1; true"), shell("echo alive")]);
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.count(|event| event.is("sandbox_lost")), 0, "{}", events.summary());
    assert_eq!(events.count(|event| event.is("sandbox_ready")), 1);
    server.assert_nothing_left();
}
