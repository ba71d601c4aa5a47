//! The server is killed at every point of a job: after a restart the job completes, each step has run once, the event
//! stream has no gaps or repeats, and nothing is left behind.

use e2e::{Event, Follower, Job, Server, shell};
use serde_json::{Value, json};

/// Steps that record how often they ran: each appends lines to one file.
fn counting_steps() -> Vec<Value> {
    vec![
        shell("echo one >> log.txt"),
        shell("echo two begins | tee -a log.txt; sleep 1.5; echo two ends | tee -a log.txt"),
        json!({"tool": "python", "code": "open('log.txt', 'a').write('three\\n')"}),
        json!({"tool": "edit_file", "path": "log.txt", "old": "one\n", "new": "one, edited\n"}),
        shell("echo five >> log.txt"),
    ]
}

const COUNTED: &str = "one, edited\ntwo begins\ntwo ends\nthree\nfive\n";

/// What must hold at the end, however often the server was killed.
#[track_caller]
fn assert_ran_once(server: &Server, job: &Job<'_>, events: &Follower<'_>) {
    let status = job.status();
    assert_eq!(status["status"], "complete", "{}", events.summary());
    for step in status["steps"].as_array().unwrap() {
        assert_eq!(
            (&step["status"], &step["attempts"]),
            (&json!("succeeded"), &json!(1)),
            "{}",
            events.summary()
        );
    }
    assert_eq!(events.count(|event| event.is("call_started")), 5, "{}", events.summary());
    assert_eq!(events.count(|event| event.is("call_ended")), 5, "{}", events.summary());
    assert_eq!(events.count(|event| event.is("artifact_stored")), 1, "{}", events.summary());
    assert_eq!(events.count(Event::is_end), 1, "{}", events.summary());
    assert_eq!(events.output("step-2.1", "stdout"), "two begins\ntwo ends\n", "{}", events.summary());
    assert_eq!(job.output().text("log.txt"), COUNTED);
    assert_has_downloads(server, job);
    assert_whole_stream(job, events);
    server.assert_nothing_left();
}

/// Asserts that the files beside the zip are there and match it.
#[track_caller]
fn assert_has_downloads(server: &Server, job: &Job<'_>) {
    let listed = server.get(&format!("/v1/jobs/{}", job.id)).expect(200).json()["downloads"].clone();
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().filter_map(|download| download["name"].as_str()).collect();
    for name in ["manifest.json", "logs/agent.log", "audit/files.jsonl", "context.txt", "memory.json"] {
        assert!(names.contains(&name), "{name} is missing: {listed}");
    }
    let manifest = job.manifest();
    let files = manifest["files"].as_array().unwrap();
    assert!(
        files.iter().any(|file| file["path"] == "log.txt" && file["size"] == COUNTED.len()),
        "{manifest}"
    );
    assert!(job.download("memory.json").text().contains("two begins\\n"));
    assert!(job.download("context.txt").text().contains("\ntwo begins\n"));
}

/// Asserts that a stream read from the start equals what was seen live.
#[track_caller]
fn assert_whole_stream(job: &Job<'_>, live: &Follower<'_>) {
    let mut replay = job.follow();
    replay.until_end();
    let json =
        |follower: &Follower<'_>| follower.events.iter().map(|event| event.json.clone()).collect::<Vec<_>>();
    assert_eq!(json(&replay), json(live), "the log was rewritten");
}

/// Kills the server as soon as the event arrives, restarts it, and follows the job to its end.
#[track_caller]
fn kill_at(what: &str, point: impl Fn(&Event) -> bool) {
    let server = Server::start();
    let job = server.schedule_steps(&counting_steps());
    let mut events = job.follow();
    events.until(what, point);
    server.kill9();
    server.restart();
    events.until_end();
    assert_ran_once(&server, &job, &events);
}

#[test]
fn job_survives_a_kill_after_submission() {
    let server = Server::start();
    let job = server.schedule_steps(&counting_steps());
    server.kill9();
    server.restart();
    let mut events = job.follow();
    events.until_end();
    assert_ran_once(&server, &job, &events);
}

#[test]
fn queued_jobs_survive_a_kill() {
    let server = Server::start();
    let jobs: Vec<_> =
        (0..30).map(|n| server.schedule_steps(&[shell(&format!("echo {n} >> n; sleep 0.1"))])).collect();
    server.kill9();
    server.restart();
    for (n, job) in jobs.iter().enumerate() {
        let status = job.wait_for("complete");
        assert_eq!(status["steps"][0]["attempts"], 1, "{status}");
        assert_eq!(job.output().text("n"), format!("{n}\n"));
    }
    server.assert_nothing_left();
}

#[test]
fn job_survives_a_kill_during_sandbox_creation() {
    kill_at("sandbox_requested", |event| event.is("sandbox_requested"));
}

#[test]
fn job_survives_a_kill_after_sandbox_ready() {
    kill_at("sandbox_ready", |event| event.is("sandbox_ready"));
}

#[test]
fn killed_when_a_call_was_just_logged() {
    kill_at("the start of step 2", |event| event.is("call_started") && event.call() == "step-2.1");
}

#[test]
fn job_survives_a_kill_during_a_step() {
    kill_at("output of step 2", |event| event.is("call_output") && event.call() == "step-2.1");
}

#[test]
fn job_survives_a_kill_between_two_steps() {
    kill_at("the end of step 1", |event| event.is("call_ended") && event.call() == "step-1.1");
}

#[test]
fn killed_between_two_file_operations() {
    kill_at("the end of step 3", |event| event.is("call_ended") && event.call() == "step-3.1");
}

#[test]
fn job_survives_a_kill_after_the_last_step() {
    kill_at("the end of step 5", |event| event.is("call_ended") && event.call() == "step-5.1");
}

#[test]
fn job_survives_a_kill_when_collecting_starts() {
    kill_at("collecting", |event| event.is_state("collecting"));
}

#[test]
fn job_survives_a_kill_after_the_zip_was_stored() {
    kill_at("artifact_stored", |event| event.is("artifact_stored"));
}

#[test]
fn job_survives_a_kill_while_collecting_large_output() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("head -c 40M /dev/urandom > large.bin; sha256sum large.bin")]);
    let mut events = job.follow();
    events.until("collecting", |event| event.is_state("collecting"));
    // Part of the zip has been written; it must not be mistaken for the complete zip.
    let folder = server.data().join("jobs").join(&job.id);
    e2e::wait_until("something was written", || folder_bytes(&folder) > 1 << 20);
    server.kill9();
    server.restart();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    assert_eq!(job.output().read("large.bin").len(), 40 << 20);
    server.assert_nothing_left();
}

fn folder_bytes(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[test]
fn job_survives_repeated_kills() {
    let server = Server::start();
    let job = server.schedule_steps(&counting_steps());
    let mut events = job.follow();
    // Each run of the server gets a few events further than the one before.
    for target in [2, 4, 5, 7, 9, 11, 13] {
        if events.last_sequence() < target {
            events.until("some more events", |event| event.sequence >= target);
        }
        server.kill9();
        server.restart();
    }
    if !events.events.last().is_some_and(Event::is_end) {
        events.until_end();
    }
    assert_ran_once(&server, &job, &events);
}

#[test]
fn job_survives_a_kill_during_recovery() {
    let server = Server::start();
    let job = server.schedule_steps(&counting_steps());
    let mut events = job.follow();
    events.until("output of step 2", |event| event.is("call_output") && event.call() == "step-2.1");
    server.kill9();
    for _ in 0..5 {
        server.spawn();
        server.kill9();
    }
    server.restart();
    events.until_end();
    assert_ran_once(&server, &job, &events);
}

#[test]
fn step_completes_without_a_server_and_its_result_is_found() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo begin; sleep 1; echo end; exit 5")]);
    let mut events = job.follow();
    events.until("the first output", |event| event.is("call_output"));
    let sandbox = server.newest_sandbox();
    server.kill9();
    // The step's shell has exited when the guest has no children left.
    e2e::wait_until("the step has ended without a server", || !sandbox.has_children_of_guest());
    server.restart();
    events.until_end();
    let status = job.status();
    assert_eq!(
        (&status["steps"][0]["exit_code"], &status["steps"][0]["attempts"]),
        (&json!(5), &json!(1)),
        "{status}"
    );
    assert_eq!(events.output("step-1.1", "stdout"), "begin\nend\n");
    server.assert_nothing_left();
}

#[test]
fn running_job_continues_across_a_graceful_restart() {
    let server = Server::start();
    let job = server.schedule_steps(&counting_steps());
    let mut events = job.follow();
    events.until("output of step 2", |event| event.is("call_output") && event.call() == "step-2.1");
    server.stop();
    server.restart();
    events.until_end();
    assert_ran_once(&server, &job, &events);
}

#[test]
fn cancel_request_survives_a_crash() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("trap '' TERM; echo ready; sleep 600")]);
    let mut events = job.follow();
    events.until("the first output", |event| event.is("call_output"));
    job.cancel();
    server.kill9();
    server.restart();
    events.until_end();
    assert_eq!(job.status()["status"], "cancelled", "{}", events.summary());
    server.assert_nothing_left();
}

#[test]
fn large_output_survives_a_crash_without_gap_or_repeat() {
    let server = Server::start();
    let count = "for block in 0 1 2 3; do seq $((block * 50000 + 1)) $((block * 50000 + 50000)); \
                 until [ -e go$block ]; do sleep 0.02; done; done";
    let job = server.schedule_steps(&[shell(count)]);
    let mut events = job.follow();
    for block in 0..4 {
        // The first part of a block has arrived; the rest is on its way.
        events.until("more output", |event| event.is("call_output"));
        server.kill9();
        server.restart();
        job.touch(&format!("go{block}"));
    }
    events.until_end();
    let printed: Vec<u32> =
        events.output("step-1.1", "stdout").lines().map(|line| line.parse().unwrap()).collect();
    assert!(printed.iter().copied().eq(1..=200_000), "lines are missing, repeated or out of order");
    server.assert_nothing_left();
}
