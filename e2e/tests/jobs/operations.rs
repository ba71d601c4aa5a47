//! Operations: metrics, logs that name the job, and a graceful stop.

use std::process::{Command, Stdio};

use e2e::{Options, Server, shell, wait_until};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The value of a line of `/metrics`, by the text before it.
#[track_caller]
fn figure(server: &Server, name: &str) -> f64 {
    let text = server.get("/metrics").expect(200).text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing in\n{text}")).parse().unwrap()
}

#[test]
fn metrics_count_what_happened() {
    let server = Server::start();
    server.schedule_steps(&[shell("echo 12345")]).wait_for("complete");
    server.schedule_steps(&[shell("exit 3")]).wait_for("failed");
    server.get("/nowhere").expect(404);
    for (name, value) in [
        ("caisson_jobs_submitted_total", 2.0),
        ("caisson_jobs{state=\"complete\"}", 1.0),
        ("caisson_jobs{state=\"queued\"}", 0.0),
        ("caisson_jobs_finished_total{outcome=\"complete\",code=\"\"}", 1.0),
        ("caisson_jobs_finished_total{outcome=\"failed\",code=\"step_failed\"}", 1.0),
        ("caisson_sandboxes_made_total", 2.0),
        ("caisson_sandbox_create_seconds_count", 2.0),
        ("caisson_step_seconds_count{status=\"succeeded\"}", 1.0),
        ("caisson_output_bytes_total", 6.0),
        ("caisson_http_requests_total{method=\"POST\",route=\"/schedule\",status=\"202\"}", 2.0),
        ("caisson_http_requests_total{method=\"GET\",route=\"none\",status=\"404\"}", 1.0),
    ] {
        let found = figure(&server, name);
        assert!((found - value).abs() < f64::EPSILON, "{name} is {found}, not {value}");
    }
    for name in [
        "caisson_events_total",
        "caisson_store_commit_seconds_count",
        "caisson_process_resident_memory_bytes",
        "caisson_process_open_files",
    ] {
        assert!(figure(&server, name) >= 1.0, "{name} is 0");
    }
    // A bare sandbox is not a job.
    let _sandbox = server.create_sandbox(&json!({}));
    for (name, value) in [("caisson_sandboxes", 1.0), ("caisson_jobs{state=\"running\"}", 0.0)] {
        let found = figure(&server, name);
        assert!((found - value).abs() < f64::EPSILON, "{name} is {found}, not {value}");
    }
    let answer = server.get("/metrics");
    assert!(answer.header("content-type").starts_with("application/openmetrics-text"), "{answer:?}");
    assert!(answer.text().ends_with("# EOF\n"));
}

#[test]
fn json_log_lines_about_a_job_name_it() {
    let config = "log = \"debug\"\nlog_format = \"json\"\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule_steps(&[shell("true")]);
    job.wait_for("complete");
    server.stop();
    let log = server.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let ends: Vec<&Value> = lines.iter().filter(|line| line["message"] == "the job is over").collect();
    assert_eq!(ends.len(), 1, "{log}");
    assert_eq!((&ends[0]["job"], &ends[0]["level"]), (&json!(job.id), &json!("INFO")), "{log}");
    for line in lines.iter().filter(|line| line["target"] == "orchestrator::recorder") {
        assert_eq!(line["job"], job.id.as_str(), "{line}");
    }
}

fn waiting(patience_s: u32) -> Options {
    let config =
        format!("[jobs]\nmax_running = 1\non_shutdown = \"wait\"\nshutdown_grace_s = {patience_s}\n");
    Options { config, ..Options::default() }
}

fn tell_to_stop(server: &Server) {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

#[test]
fn draining_server_finishes_running_jobs_and_starts_no_others() {
    let server = Server::start_with(waiting(600));
    let running = server.schedule_steps(&[shell("while [ ! -e go ]; do sleep 0.05; done; echo went on")]);
    running.follow().until("the start of step 1", |event| event.is("call_started"));
    let queued = server.schedule_steps(&[shell("true")]);
    tell_to_stop(&server);
    wait_until("it says that it goes down", || server.get("/readyz").status == 503);
    let late = server.schedule_steps(&[shell("true")]);
    running.touch("go");
    assert!(server.wait().success(), "{}", server.log());
    server.restart();
    let status = running.wait_for("complete");
    let mut events = running.follow();
    events.until_end();
    assert_eq!(status["steps"][0]["attempts"], 1);
    assert_eq!(events.count(|event| event.is("sandbox_ready")), 1, "{}", events.summary());
    for job in [queued, late] {
        let mut events = job.follow();
        events.until_end();
        assert_eq!(events.count(|event| event.is_state("starting")), 1, "{}", events.summary());
    }
    assert!(server.log().contains("waiting for the jobs that run"), "{}", server.log());
    server.assert_nothing_left();
}

#[test]
fn job_outlasting_the_drain_timeout_continues_after_restart() {
    let server = Server::start_with(waiting(1));
    let job = server.schedule_steps(&[shell("while [ ! -e go ]; do sleep 0.05; done; echo went on")]);
    job.follow().until("the start of step 1", |event| event.is("call_started"));
    tell_to_stop(&server);
    assert!(server.wait().success(), "{}", server.log());
    assert!(server.log().contains("took too long"), "{}", server.log());
    server.restart();
    job.touch("go");
    let status = job.wait_for("complete");
    assert_eq!(status["steps"][0]["attempts"], 1, "{status}");
    server.assert_nothing_left();
}

#[test]
fn second_signal_ends_the_drain() {
    let server = Server::start_with(waiting(600));
    let job = server.schedule_steps(&[shell("while [ ! -e go ]; do sleep 0.05; done")]);
    job.follow().until("the start of step 1", |event| event.is("call_started"));
    tell_to_stop(&server);
    wait_until("it waits", || server.log().contains("waiting for the jobs that run"));
    server.stop();
    server.restart();
    job.touch("go");
    job.wait_for("complete");
    server.assert_nothing_left();
}

#[test]
fn server_stopped_during_startup_exits_cleanly() {
    let server = Server::start();
    server.stop();
    // The lock file is the first thing that the server takes.
    let lock = server.data().join("lock");
    std::fs::remove_file(&lock).unwrap();
    server.spawn();
    wait_until("the server has begun", || lock.exists());
    server.stop();
    server.restart();
    server.schedule_steps(&[shell("true")]).wait_for("complete");
}

#[test]
fn servers_inherited_umask_has_no_effect() {
    let server = Server::prepare(Options::default());
    let plain = server.command();
    let mut child = Command::new("sh")
        .args(["-c", "umask 077; exec \"$0\" \"$@\""])
        .arg(plain.get_program())
        .args(plain.get_args())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it is ready", || {
        server.request(Method::GET, "/readyz").send().is_ok_and(|answer| answer.status() == 200)
    });
    let job = server.schedule_steps(&[shell("python3 -c 'print(1)'")]);
    job.wait();
    let status = job.status();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    assert_eq!(status["status"], "complete", "{status}");
}
