//! The four basic calls exactly as the README shows them, and a job from its submission to its zip.

use e2e::{Options, RawConnection, Server, free_port, shell};
use reqwest::Method;
use serde_json::{Value, json};

/// The body of the first call in the README.
const FIRST_JOB: &str = r#"{
  "steps": [
    {"tool": "shell", "command": "ls -la /app"},
    {"tool": "python", "code": "with open(\"hello.txt\", \"w\") as f: f.write(\"Hello from the agent!\")"},
    {"tool": "shell", "command": "cat hello.txt"}
  ]}"#;

fn post(server: &Server, path: &str, media_type: &str, body: &str) -> e2e::Answer {
    let request = server.request(Method::POST, path).header("Content-Type", media_type);
    server.send(request.body(body.to_owned()))
}

#[test]
fn readme_calls_work_as_written() {
    let server = Server::start();
    let accepted = post(&server, "/schedule", "application/json", FIRST_JOB).expect(202).json();
    let id = accepted["job_id"].as_str().unwrap().to_owned();
    assert_eq!(accepted["task_id"], id.as_str());
    let job = server.job(&id);
    let mut events = job.follow();
    events.until_end();

    let status = server.get(&format!("/status/{id}")).expect(200).json();
    let by_query = server.get(&format!("/status?task_id={id}")).expect(200).json();
    assert_eq!(status, by_query);
    let unknown = server.get(&format!("/status?task_id={id}&colour=1"));
    assert!(unknown.expect_problem(400, "invalid_query").contains("colour"));
    assert_eq!(status["job_id"], id.as_str());
    assert_eq!(status["task_id"], id.as_str());
    assert_eq!(status["status"], "complete");
    assert_eq!(status["result"], format!("/jobs/{id}/output.zip"));
    let steps = status["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3);
    for step in steps {
        assert_eq!(
            (&step["status"], &step["attempts"], &step["exit_code"]),
            (&json!("succeeded"), &json!(1), &json!(0))
        );
        assert!(step["duration_ms"].is_u64(), "{step}");
    }
    assert!(events.output("step-1.1", "stdout").starts_with("total "), "{}", events.summary());
    assert_eq!(events.output("step-3.1", "stdout"), "Hello from the agent!");

    let mut zip = job.output();
    assert_eq!(zip.text("hello.txt"), "Hello from the agent!");
    server.assert_nothing_left();
}

#[test]
fn links_of_an_accepted_job_resolve() {
    let server = Server::start();
    let accepted = post(&server, "/schedule", "application/json", FIRST_JOB).expect(202).json();
    let job = server.job(accepted["job_id"].as_str().unwrap());
    let path_of = |value: &Value| {
        let url = value.as_str().unwrap_or_else(|| panic!("no link: {value}"));
        url.strip_prefix(&server.url("")).unwrap_or(url).to_owned()
    };
    assert_eq!(
        server.get(&path_of(&accepted["status_url"])).expect(200).json()["job_id"],
        accepted["job_id"]
    );
    assert!(path_of(&accepted["events_url"]).ends_with("/events"));
    let status = job.wait_for("complete");
    let download = status["download_url"].as_str().unwrap();
    assert!(download.starts_with("http://"), "{download} is not absolute");
    let zip = server.get(&path_of(&status["download_url"])).expect(200);
    assert_eq!(zip.header("content-type"), "application/zip");
    let log = server.get(&path_of(&status["logs_url"])).expect(200).text();
    assert!(log.contains("cat hello.txt") && log.contains("Hello from the agent!"), "{log}");
}

#[test]
fn submit_is_an_alias_of_schedule() {
    let server = Server::start();
    let accepted = post(&server, "/submit", "application/json", FIRST_JOB).expect(202).json();
    server.job(accepted["job_id"].as_str().unwrap()).wait_for("complete");
}

#[test]
fn plain_text_task_without_a_model_explains_how_to_configure_one() {
    let server = Server::start();
    // `curl -d 'Build me a small harbour'` declares a form.
    let form = "application/x-www-form-urlencoded";
    let refused = post(&server, "/v1/jobs", form, "task=Build+me+a+small+harbour");
    assert!(refused.expect_problem(415, "unsupported_media_type").contains("the field `task`"));
    for (path, media_type) in [("/schedule", "text/plain"), ("/submit", "text/plain"), ("/v1/jobs", form)] {
        let accepted = post(&server, path, media_type, "Build me a small harbour").expect(202).json();
        assert!(accepted["hint"].as_str().unwrap().contains("model"), "{accepted}");
        let job = server.job(accepted["job_id"].as_str().unwrap());
        job.follow().until("paused", |event| event.is_state("paused") && event.data()["code"] == "no_model");
        let status = job.status();
        assert_eq!(status["status"], "pending", "{status}");
        assert!(status["detail"].as_str().unwrap().contains("paused"), "{status}");
        assert!(status["reason"].as_str().unwrap().contains("model"), "{status}");
        job.cancel();
        job.wait_for("cancelled");
    }
}

#[test]
fn json_task_equals_plain_text_task() {
    let server = Server::start();
    let job = server.schedule(&json!({"task": "Build me a small harbour"}));
    job.follow().until("paused", |event| event.is_state("paused"));
    assert_eq!(job.status()["status"], "pending");
}

#[test]
fn output_zip_has_every_file_and_a_matching_manifest() {
    let server = Server::start();
    let job = server.schedule_steps(&[
        shell(
            "mkdir -p a/b empty; printf one > a/one; printf two > a/b/two; chmod +x a/one; ln -s a/one link",
        ),
        json!({"tool": "write_file", "path": "ünïcode ☃.txt", "content": "snow"}),
    ]);
    job.wait_for("complete");
    let mut zip = job.output();
    assert_eq!(zip.text("a/one"), "one");
    assert_eq!(zip.text("a/b/two"), "two");
    assert_eq!(zip.text("ünïcode ☃.txt"), "snow");
    let beside = zip.names().into_iter().filter(|name| name.starts_with(".caisson")).collect::<Vec<_>>();
    assert_eq!(beside, [""; 0]);
    let manifest = job.manifest();
    let files = manifest["files"].as_array().unwrap();
    let one = files.iter().find(|file| file["path"] == "a/one").unwrap_or_else(|| panic!("{manifest}"));
    assert_eq!(one["size"], 3);
    assert_eq!(one["sha256"], "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
}

#[test]
fn workspace_and_app_are_the_same_directory() {
    let server = Server::start();
    let job = server.schedule_steps(&[shell(
        "pwd; echo x > /app/there; cat /workspace/there; stat -c %d:%i /app /workspace",
    )]);
    let mut events = job.follow();
    events.until_end();
    let output = events.output("step-1.1", "stdout");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(&lines[..2], ["/workspace", "x"]);
    assert_eq!(lines[2], lines[3]);
}

#[test]
fn events_can_be_followed_live_and_resumed_in_the_middle() {
    let server = Server::start();
    let job = server.schedule_steps(&[
        shell("echo first"),
        shell("cat /workspace/go 2>/dev/null || sleep 0.2; echo second"),
    ]);
    let mut live = job.follow();
    live.until("the first output", |event| event.is("call_output"));
    live.until_end();
    let count = live.events.len();
    let middle = live.events[count / 2].sequence;
    let request = server.request(Method::GET, &format!("/v1/jobs/{}/events", job.id));
    let rest = server.send(request.header("Last-Event-ID", middle.to_string())).expect(200).text();
    let ids: Vec<u64> =
        rest.lines().filter_map(|line| line.strip_prefix("id:")?.trim().parse().ok()).collect();
    assert_eq!(ids, (middle + 1..=live.last_sequence()).collect::<Vec<_>>());
    let kinds: Vec<&str> = live.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds[0], "job_created");
    for kind in [
        "state_changed",
        "sandbox_requested",
        "sandbox_ready",
        "call_started",
        "call_output",
        "call_ended",
        "artifact_stored",
    ] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }
    assert_eq!(live.count(|event| event.is("call_started")), 2);
}

#[test]
fn a_server_listens_on_several_addresses() {
    let second = free_port();
    let server =
        Server::start_with(Options { listen: vec![format!("127.0.0.1:{second}")], ..Options::default() });
    let job = server.schedule_steps(&[shell("true")]);
    job.wait_for("complete");
    let request =
        format!("GET /status/{} HTTP/1.1\r\nHost: 127.0.0.1:{second}\r\nConnection: close\r\n\r\n", job.id);
    let answer = RawConnection::exchange(second, &request);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&job.id), "{answer}");
}

#[test]
fn health_readiness_and_docs_endpoints_respond() {
    let server = Server::start();
    assert_eq!(server.get("/healthz").expect(200).text(), "ok");
    assert_eq!(server.get("/readyz").expect(200).json()["ready"], true);
    let docs = server.get("/docs").expect(200);
    assert!(docs.header("content-type").starts_with("text/html"));
}

#[test]
fn committed_openapi_document_matches_the_served_one() {
    let server = Server::start();
    let served = server.get("/openapi.json").expect(200).json();
    let file = e2e::source::root().join("docs/openapi.json");
    let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        served, kept,
        "docs/openapi.json is stale: run `target/debug/caisson openapi > docs/openapi.json`"
    );
    let printed = std::process::Command::new(e2e::binary()).arg("openapi").output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&printed.stdout).unwrap(), kept);
}

#[test]
fn doctor_says_what_this_host_can_enforce() {
    let output = std::process::Command::new(e2e::binary()).args(["doctor", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.to_string().contains("memory"), "{report}");
}

#[test]
fn cli_runs_steps_and_unpacks_the_result() {
    let server = Server::start();
    let out = server.folder().join("out");
    let steps = e2e::source::root().join("examples/hello.json");
    let output = std::process::Command::new(e2e::binary())
        .args(["run", "--steps"])
        .arg(steps)
        .arg("--out")
        .arg(&out)
        .env("CAISSON_URL", server.url(""))
        .output()
        .unwrap();
    let printed =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    let unpacked = std::fs::read_to_string(out.join("hello.txt"));
    assert_eq!(unpacked.unwrap_or_else(|error| panic!("{error}: {printed}")), "Hello from the agent!");
}

#[test]
fn the_examples_in_the_repository_complete() {
    let server = Server::start();
    for name in ["hello", "website"] {
        let file = e2e::source::root().join(format!("examples/{name}.json"));
        let body: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        server.schedule(&body).wait_for("complete");
    }
}
