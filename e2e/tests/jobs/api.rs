//! Managing jobs: list, filter, paginate, idempotency, cancel, delete, exec.

use e2e::{Options, Server, shell};
use reqwest::Method;
use serde_json::{Value, json};

fn ids(page: &Value) -> Vec<String> {
    let jobs = page["jobs"].as_array().unwrap_or_else(|| panic!("{page}"));
    jobs.iter().map(|job| job["job_id"].as_str().unwrap().to_owned()).collect()
}

/// A job that runs until a file `stop` exists, so that the test decides when it ends.
fn waiting_job(server: &Server) -> e2e::Job<'_> {
    let job = server.schedule_steps(&[shell("echo ready; until [ -e stop ]; do sleep 0.05; done")]);
    job.follow().until("the first output", |event| event.is("call_output"));
    job
}

#[test]
fn jobs_are_listed_newest_first_in_pages() {
    let server = Server::start();
    let mut made: Vec<String> = (0..5).map(|_| server.schedule_steps(&[shell("true")]).id).collect();
    made.reverse();
    let first = server.get("/v1/jobs?limit=2").expect(200).json();
    assert_eq!(ids(&first), made[..2]);
    let next = first["next"].as_str().unwrap();
    let second = server.get(&format!("/v1/jobs?limit=3&before={next}")).expect(200).json();
    assert_eq!(ids(&second), made[2..]);
    assert!(second["next"].is_null(), "{second}");
}

#[test]
fn jobs_are_filtered_by_state_and_label() {
    let server = Server::start();
    let good = server.schedule(&json!({"steps": [shell("true")], "labels": {"team": "red"}}));
    let bad = server.schedule(&json!({"steps": [shell("false")], "labels": {"team": "blue"}}));
    good.wait_for("complete");
    bad.wait_for("failed");
    assert_eq!(ids(&server.get("/v1/jobs?state=failed").expect(200).json()), [bad.id]);
    assert_eq!(ids(&server.get("/v1/jobs?label=team:red").expect(200).json()), [good.id]);
    assert_eq!(ids(&server.get("/v1/jobs?state=complete,failed").expect(200).json()).len(), 2);
    server.get("/v1/jobs?state=flying").expect_problem(400, "invalid_query");
}

#[test]
fn same_idempotency_key_returns_the_same_job() {
    let server = Server::start();
    let submit = |body: &Value, key: &str| {
        server.send(server.request(Method::POST, "/v1/jobs").header("Idempotency-Key", key).json(body))
    };
    let body = json!({"steps": [shell("true")]});
    let first = submit(&body, "key-1").json();
    let again = submit(&body, "key-1").json();
    let other = submit(&body, "key-2").json();
    assert_eq!(first["job_id"], again["job_id"]);
    assert_ne!(first["job_id"], other["job_id"]);
    submit(&json!({"steps": [shell("false")]}), "key-1").expect_problem(422, "idempotency_mismatch");
    // The order of fields makes no difference.
    let with_rule = |rule: Value| json!({"steps": [shell("true")], "egress": {"allow": [rule]}});
    let first = submit(&with_rule(json!({"host": "a.example:22", "without_tls": true})), "key-3").json();
    let again = submit(&with_rule(json!({"without_tls": true, "host": "a.example:22"})), "key-3").json();
    assert_eq!(first["job_id"], again["job_id"]);
    assert!(first["job_id"].is_string(), "{first:#}");
}

#[test]
fn idempotency_key_survives_a_crash() {
    let server = Server::start();
    let submit = || {
        let request = server.request(Method::POST, "/v1/jobs").header("Idempotency-Key", "once");
        server.send(request.json(&json!({"steps": [shell("true")]}))).json()["job_id"].clone()
    };
    let first = submit();
    server.kill9();
    server.restart();
    assert_eq!(submit(), first);
}

#[test]
fn job_view_is_complete() {
    let server = Server::start();
    let job = server.schedule(&json!({
        "name": "a named job", "steps": [{"tool": "shell", "command": "true", "name": "a named step"}], "labels": {"a": "b"}
    }));
    job.wait_for("complete");
    let view = server.get(&format!("/v1/jobs/{}", job.id)).expect(200).json();
    assert_eq!(view["name"], "a named job");
    assert_eq!(view["state"], "complete");
    assert_eq!(view["labels"]["a"], "b");
    assert_eq!(view["steps"][0]["name"], "a named step");
}

#[test]
fn cancelled_job_ends_soon_and_keeps_its_output() {
    let server = Server::start();
    let job = server.schedule_steps(&[
        shell("echo kept > kept.txt; echo ready; sleep 600"),
        shell("echo never > never.txt"),
    ]);
    job.follow().until("the first output", |event| event.is("call_output"));
    assert!(matches!(job.cancel().status, 200 | 202));
    let status = job.wait_for("cancelled");
    assert_eq!(status["steps"][1]["status"], "pending", "{status}");
    let mut zip = job.output();
    assert_eq!(zip.text("kept.txt"), "kept\n");
    assert!(!zip.has("never.txt"));
    server.assert_nothing_left();
}

#[test]
fn a_queued_job_can_be_cancelled_and_never_runs() {
    let server =
        Server::start_with(Options { config: "[jobs]\nmax_running = 1\n".into(), ..Options::default() });
    let running = waiting_job(&server);
    let queued = server.schedule_steps(&[shell("true")]);
    let last = server.schedule_steps(&[shell("true")]);
    assert!(matches!(queued.cancel().status, 200 | 202));
    let mut events = queued.follow();
    events.until("the end", |event| event.is_state("cancelled"));
    assert_eq!(events.count(|event| event.is("call_started")), 0, "{}", events.summary());
    running.put_file("stop", "").expect(200);
    running.wait_for("complete");
    // The queue continues without it.
    last.wait_for("complete");
    queued.wait_for("cancelled");
}

#[test]
fn cancelling_an_ended_job_is_refused() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("true")]);
    job.wait_for("complete");
    job.cancel().expect_problem(409, "wrong_state");
}

#[test]
fn only_ended_jobs_can_be_deleted() {
    let server = Server::start();
    let running = waiting_job(&server);
    running.delete().expect_problem(409, "wrong_state");
    running.cancel();
    running.wait_for("cancelled");
    assert!(matches!(running.delete().status, 200 | 204));
    server.get(&format!("/status/{}", running.id)).expect_problem(404, "job_not_found");
    server.get(&format!("/jobs/{}/output.zip", running.id)).expect_problem(404, "job_not_found");
    assert!(!server.data().join("jobs").join(&running.id).exists());
}

#[test]
fn unknown_job_is_not_found_on_every_route() {
    let server = Server::start();
    let id = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
    for path in [
        "/status/ID",
        "/status?task_id=ID",
        "/jobs/ID/output.zip",
        "/v1/jobs/ID",
        "/v1/jobs/ID/events",
        "/v1/jobs/ID/log",
        "/v1/jobs/ID/downloads/manifest.json",
    ] {
        server.get(&path.replace("ID", id)).expect_problem(404, "job_not_found");
    }
    let nonsense = server.get("/status/nonsense");
    assert!(matches!(nonsense.status, 400 | 404 | 422), "{}", nonsense.status);
    assert!(nonsense.json()["code"].is_string());
}

#[test]
fn output_zip_of_a_running_job_is_not_ready() {
    let server = Server::start();
    let job = waiting_job(&server);
    server.get(&format!("/jobs/{}/output.zip", job.id)).expect_problem(404, "no_artifact");
    job.get("downloads/logs/agent.log").expect_problem(404, "download_not_found");
    assert!(job.status()["result"].is_null());
    job.put_file("stop", "");
    job.wait_for("complete");
    assert!(job.download("logs/agent.log").text().contains("collecting"));
    for name in ["usage.jsonl", "output.zip", "..%2F..%2Fcaisson.db", "nothing"] {
        job.get(&format!("downloads/{name}")).expect_problem(404, "download_not_found");
    }
}

#[test]
fn a_command_can_be_run_in_the_sandbox_of_a_running_job() {
    let server = Server::start();
    let job = waiting_job(&server);
    let reply = job.exec("echo out; echo err >&2; exit 3").expect(200).json();
    assert_eq!((&reply["stdout"], &reply["stderr"]), (&json!("out\n"), &json!("err\n")), "{reply}");
    assert_eq!(reply["exit_code"], 3);
    let reply = job.post("exec", &json!({"argv": ["cat"], "stdin": "typed in"})).expect(200).json();
    assert_eq!(reply["stdout"], "typed in");
    let reply = job.post(
        "exec",
        &json!({"command": "echo $COLOUR; pwd", "cwd": "/tmp", "environment": {"COLOUR": "red"}}),
    );
    assert_eq!(reply.expect(200).json()["stdout"], "red\n/tmp\n");
    let reply = job.post("exec", &json!({"command": "sleep 60", "timeout_s": 0.2})).expect(200).json();
    assert_eq!(reply["code"], "timeout", "{reply}");
    job.post("exec", &json!({})).expect_problem(422, "invalid_field");
    job.put_file("stop", "");
    job.wait_for("complete");
    job.exec("true").expect_problem(409, "wrong_state");
}

#[test]
fn job_log_lists_events_in_order() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell("echo alpha"), shell("echo omega; exit 4")]);
    job.wait_for("failed");
    let log = job.get("log").expect(200);
    assert!(log.header("content-type").starts_with("text/plain"));
    let text = log.text();
    let position = |word: &str| text.find(word).unwrap_or_else(|| panic!("no {word} in {text}"));
    assert!(position("alpha") < position("omega"));
    assert!(text.contains("step_failed"), "{text}");
    let kept =
        std::fs::read_to_string(server.data().join("jobs").join(&job.id).join("logs/agent.log")).unwrap();
    assert_eq!(kept, text);
    assert!(server.data().join("jobs").join(&job.id).join("input.txt").exists());
}

#[test]
fn unknown_path_and_wrong_method_return_problem_documents() {
    let server = Server::start();
    assert!(server.get("/nowhere").expect(404).json()["code"].is_string());
    assert!(server.get("/schedule").expect(405).json()["code"].is_string());
}
