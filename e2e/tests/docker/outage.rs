//! The engine is stopped in the middle of a job and started again.

use e2e::{DedicatedEngine, Event, Server, shell, wait_until};
use serde_json::{Value, json};

const UNAVAILABLE: &str = "backend_unavailable";

/// A step that gets a checkpoint, and one that waits for a file.
fn saved_and_waiting() -> Value {
    json!([
        shell("sleep 2; echo one >> log.txt"),
        shell(
            "echo two begins | tee -a log.txt; until [ -e go ]; do sleep 0.1; done; echo two ends >> log.txt"
        ),
    ])
}

fn in_step_two(event: &Event) -> bool {
    event.is("call_output") && event.call() == "step-2.1"
}

fn problems(server: &Server) -> String {
    server.get("/readyz").expect(503).json()["problems"].to_string()
}

#[test]
fn engine_restart_costs_jobs_at_most_a_lost_sandbox() {
    let engine = DedicatedEngine::start(&[]);
    let server = engine.serve("[jobs]\nmax_running = 2");
    let sandbox = server.create_sandbox(&json!({}));
    let goes_on = server.schedule(&json!({"steps": saved_and_waiting()}));
    let cancelled = server.schedule(&json!({"steps": saved_and_waiting()}));
    let queued = server.schedule_steps(&[shell("echo ran > out.txt")]);
    let mut events = goes_on.follow();
    events.until("output of step 2", in_step_two);
    cancelled.follow().until("output of step 2", in_step_two);
    engine.stop();
    for waiting in [&goes_on, &cancelled] {
        wait_until("the job waits for the engine", || waiting.status()["code"] == UNAVAILABLE);
        assert!(waiting.status()["reason"].to_string().contains("Docker engine"), "{}", waiting.status());
    }
    wait_until("the sandbox waits for the engine", || sandbox.view()["code"] == UNAVAILABLE);
    assert!(problems(&server).contains("Docker engine"), "{}", problems(&server));
    sandbox.post("exec", &json!({"command": "true"})).expect_problem(503, UNAVAILABLE);
    server.post("/v1/sandboxes", &json!({})).expect_problem(503, UNAVAILABLE);
    let unknown = server.schedule(&json!({"image": "caisson/nothing", "steps": [shell("true")]}));
    assert_eq!(unknown.status()["code"], UNAVAILABLE, "{}", unknown.status());
    // The job does not wait for the engine, and its output is the last checkpoint.
    cancelled.cancel().expect(202);
    assert_eq!(cancelled.wait_for("cancelled")["steps"][1]["status"], "pending");
    assert_eq!(cancelled.output().text("log.txt"), "one\n");
    assert_eq!(queued.status()["detail"], "queued", "{}", queued.status());
    engine.run();
    events.until("the second attempt", |event| event.is("call_output") && event.call() == "step-2.2");
    goes_on.touch("go");
    let status = goes_on.wait_for("complete");
    assert_eq!(goes_on.output().text("log.txt"), "one\ntwo begins\ntwo ends\n", "{status}");
    assert_eq!((&status["steps"][0]["attempts"], &status["steps"][1]["attempts"]), (&json!(1), &json!(2)));
    queued.wait_for("complete");
    unknown.wait_for_failure("image_not_found");
    wait_until("the lost sandbox has ended", || sandbox.view()["code"] == "sandbox_lost");
    wait_until("the server is ready", || server.get("/readyz").status == 200);
    engine.assert_nothing_left(&server);
}

#[test]
fn containers_with_live_restore_reconnect_over_a_relay() {
    let engine = DedicatedEngine::start(&["--live-restore"]);
    let server = engine.serve("link = \"exec\"");
    let sandbox = server.create_sandbox(&json!({}));
    sandbox.put_file("kept.txt", "kept").expect(200);
    let job = server.schedule(&json!({"steps": [saved_and_waiting()[1]], "on_loss": "fail"}));
    let mut events = job.follow();
    events.until("output", |event| event.is("call_output"));
    engine.stop();
    wait_until("the job waits for the engine", || job.status()["code"] == UNAVAILABLE);
    wait_until("the sandbox waits for the engine", || sandbox.view()["code"] == UNAVAILABLE);
    engine.run();
    job.touch("go");
    let status = job.wait_for("complete");
    assert_eq!(status["steps"][0]["attempts"], 1, "{status}");
    assert_eq!(job.output().text("log.txt"), "two begins\ntwo ends\n");
    wait_until("the sandbox is reached", || sandbox.get("files/kept.txt").status == 200);
    sandbox.end().expect(204);
    engine.assert_nothing_left(&server);
}
