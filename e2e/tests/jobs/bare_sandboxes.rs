//! Bare sandboxes: from creation to end, and across crashes of the server.

use e2e::{Options, Sandbox, Server, shell, wait_until};
use reqwest::Method;
use serde_json::json;

#[test]
fn bare_sandbox_is_created_listed_kept_alive_and_ended() {
    let server = Server::start();
    let body = json!({"name": "mine", "ttl_s": 600, "labels": {"project": "demo"}});
    let answer = server.post("/v1/sandboxes", &body).expect(201);
    let made = answer.json();
    let id = made["sandbox_id"].as_str().unwrap();
    assert_eq!(answer.header("location"), format!("/v1/sandboxes/{id}"));
    assert_eq!((&made["status"], &made["ttl_s"]), (&json!("running"), &json!(600.0)), "{made}");
    assert_eq!((&made["name"], &made["labels"]["project"]), (&json!("mine"), &json!("demo")));
    assert!(made["expires_at"].as_str().unwrap() > made["created_at"].as_str().unwrap(), "{made}");
    let sandbox = server.sandbox(id);
    assert_eq!(sandbox.view()["sandbox_id"], id);
    let other = server.create_sandbox(&json!({}));
    assert_eq!(other.view()["ttl_s"], 3600.0);
    let listed = server.get("/v1/sandboxes").expect(200).json();
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed["next"], json!(null));
    let labelled = server.get("/v1/sandboxes?label=project:demo").expect(200).json();
    assert_eq!(labelled["sandboxes"][0]["sandbox_id"], id);
    let extended = sandbox.post("extend", &json!({"ttl_s": 1200})).expect(200).json();
    assert_eq!(extended["ttl_s"], 1200.0);
    assert!(extended["expires_at"].as_str() > made["expires_at"].as_str(), "{extended}");
    assert_eq!(sandbox.end().status, 204);
    assert_eq!(sandbox.end().status, 204);
    let ended = sandbox.view();
    assert_eq!((&ended["status"], &ended["expires_at"]), (&json!("ended"), &json!(null)), "{ended}");
    sandbox.post("extend", &json!({"ttl_s": 5})).expect_problem(409, "wrong_state");
    sandbox.post("exec", &json!({"command": "true"})).expect_problem(409, "wrong_state");
    let living = server.get("/v1/sandboxes").expect(200).json();
    assert_eq!(living["sandboxes"].as_array().unwrap().len(), 1, "{living}");
    let all = server.get("/v1/sandboxes?all=true").expect(200).json();
    assert_eq!(all["sandboxes"].as_array().unwrap().len(), 2, "{all}");
    other.end().expect(204);
    server.assert_nothing_left();
}

#[test]
fn messages_about_a_bare_sandbox_do_not_mention_jobs() {
    let server = Server::start();
    let assert_refused = |answer: &e2e::Answer, what: &str| {
        assert!(answer.status >= 400, "{what}: {}", answer.status);
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        let mut words = detail.split(|letter: char| !letter.is_alphanumeric());
        assert!(!words.any(|word| matches!(word, "job" | "Job" | "jobs" | "Jobs")), "{what}: {detail}");
    };
    for body in [json!({"colour": 1}), json!({"steps": []}), json!({"ttl_s": 0}), json!({"image": "no such"})]
    {
        assert_refused(&server.post("/v1/sandboxes", &body), &body.to_string());
    }
    let sandbox = server.create_sandbox(&json!({"image": "host"}));
    let refuse_all = |id: &str, state: &str| {
        let nothing = "0".repeat(64);
        for path in ["files/none", "ports/9", "events?from=x"].map(str::to_owned).into_iter().chain([
            "terminal".to_owned(),
            "exec/stream".to_owned(),
            format!("pictures/{nothing}"),
        ]) {
            let answer = server.get(&format!("/v1/sandboxes/{id}/{path}"));
            assert_refused(&answer, &format!("{state}: GET {path}"));
        }
        for (path, body) in [
            ("exec", json!({"command": " "})),
            ("code", json!({"code": "1", "kernel": "none"})),
            ("kernels/python3/restart", json!({})),
            ("input", json!({"action": "fly"})),
            ("extend", json!({"ttl_s": -1})),
            ("shares", json!({"view": "nothing"})),
            ("files/none", json!({"move_to": "b"})),
        ] {
            let answer = server.post(&format!("/v1/sandboxes/{id}/{path}"), &body);
            assert_refused(&answer, &format!("{state}: POST {path}"));
        }
        for path in ["files/none", "shares/0f"] {
            let path = format!("/v1/sandboxes/{id}/{path}");
            let answer = server.send(server.request(Method::DELETE, &path));
            assert_refused(&answer, &format!("{state}: DELETE {path}"));
        }
    };
    refuse_all(&sandbox.id, "running");
    sandbox.end().expect(204);
    refuse_all(&sandbox.id, "ended");
    refuse_all("01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f", "unknown");
    refuse_all("nonsense", "no id");
}

#[test]
fn sandbox_and_job_ids_are_not_interchangeable() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let job = server.schedule_steps(&[shell("true")]);
    job.wait_for("complete");
    let jobs = server.get("/v1/jobs").expect(200).json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
    server.get(&format!("/v1/jobs/{}", sandbox.id)).expect_problem(404, "job_not_found");
    server.get(&format!("/status/{}", sandbox.id)).expect_problem(404, "job_not_found");
    for path in ["", "/stats", "/ports", "/files", "/files/x", "/events", "/ports/80"] {
        let answer = server.get(&format!("/v1/sandboxes/{}{path}", job.id));
        answer.expect_problem(404, "sandbox_not_found");
        let nobody = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
        server.get(&format!("/v1/sandboxes/{nobody}{path}")).expect_problem(404, "sandbox_not_found");
    }
    server.get("/v1/sandboxes/nonsense").expect_problem(400, "bad_job_id");
    let gone = server.send(server.request(Method::DELETE, &format!("/v1/sandboxes/{}", job.id)));
    gone.expect_problem(404, "sandbox_not_found");
    sandbox.end().expect(204);
}

#[test]
fn invalid_requests_are_refused_by_field_name() {
    let server = Server::start();
    for (body, field) in [
        (json!({"ttl_s": 0}), "ttl_s"),
        (json!({"colour": "red"}), "colour"),
        (json!({"limits": {"wall_clock_s": 5}}), "limits.wall_clock_s"),
        (json!({"steps": []}), "steps"),
    ] {
        let answer = server.post("/v1/sandboxes", &body);
        answer.expect_problem(422, "invalid_field");
        assert_eq!(answer.json()["field"], field);
    }
    assert_eq!(server.get("/v1/sandboxes?all=true").json()["sandboxes"], json!([]));
}

#[test]
fn idle_sandbox_expires() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({"ttl_s": 0.5}));
    let mut events = sandbox.follow();
    events.until_end();
    let view = sandbox.view();
    assert_eq!((&view["status"], &view["code"]), (&json!("ended"), &json!("ttl")), "{view}");
    server.assert_nothing_left();
}

/// Uses a sandbox for longer than its time to live, which is reduced only while it is in use: a busy machine may
/// take a while to get there.
#[track_caller]
fn assert_kept_alive_by(server: &Server, way: impl FnOnce(&Sandbox<'_>, &str) -> String + Send) {
    let sandbox = server.create_sandbox(&json!({"ttl_s": 600}));
    let command = "touch begun; while [ ! -e go ]; do sleep 0.05; done; sleep 2.5; echo still here";
    let printed = std::thread::scope(|scope| {
        let using = scope.spawn(|| way(&sandbox, command));
        wait_until("the command runs", || sandbox.get("files/begun").status == 200);
        sandbox.post("extend", &json!({"ttl_s": 1})).expect(200);
        sandbox.put_file("go", "").expect(200);
        using.join().unwrap()
    });
    assert_eq!(printed, "still here\n");
    sandbox.follow().until_end();
}

#[test]
fn sandbox_in_use_does_not_expire() {
    let server = Server::start();
    assert_kept_alive_by(&server, |sandbox, command| {
        sandbox.exec(command)["stdout"].as_str().unwrap().to_owned()
    });
    assert_kept_alive_by(&server, |sandbox, command| {
        String::from_utf8(sandbox.stream(&json!({ "command": command })).finish().stdout).unwrap()
    });
}

#[test]
fn exec_files_and_stats_work_in_a_bare_sandbox() {
    let server = Server::start();
    let sandbox =
        server.create_sandbox(&json!({"environment": {"COLOUR": "red"}, "limits": {"memory_mib": 256}}));
    let reply = sandbox.exec("echo $COLOUR; pwd; exit 3");
    assert_eq!((&reply["exit_code"], &reply["stdout"]), (&json!(3), &json!("red\n/workspace\n")), "{reply}");
    sandbox.put_file("deep/a.txt", "hello").expect(200);
    assert_eq!(sandbox.get("files/deep/a.txt").expect(200).text(), "hello");
    assert!(sandbox.get("files/").expect(200).text().contains("deep"));
    sandbox.post("files/deep/a.txt", &json!({"move_to": "b.txt"})).expect(200);
    assert_eq!(sandbox.exec("cat b.txt")["stdout"], "hello");
    let stats = sandbox.get("stats").expect(200).json();
    for figure in ["memory_bytes", "cpu_micros", "disk_free_bytes", "disk_total_bytes", "processes"] {
        assert!(stats[figure].as_u64().unwrap() > 0, "{figure}: {stats}");
    }
    for figure in ["memory_peak_bytes", "pids", "oom_kills", "running_calls"] {
        assert!(stats[figure].is_u64(), "{figure}: {stats}");
    }
    // The sandbox's log contains the call.
    let mut events = sandbox.follow();
    events.until("the end of a call", |event| event.is("call_ended") && event.data()["exit_code"] == 3);
    sandbox.end().expect(204);
}

#[test]
fn number_of_sandboxes_is_limited() {
    let config = "[jobs]\nmax_sandboxes = 1\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    let sandbox = server.create_sandbox(&json!({}));
    let answer = server.post("/v1/sandboxes", &json!({}));
    answer.expect_problem(429, "too_many_sandboxes");
    assert!(!answer.header("retry-after").is_empty());
    sandbox.end().expect(204);
    server.create_sandbox(&json!({})).end().expect(204);
}

#[test]
fn bare_sandbox_survives_a_server_crash() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({"ttl_s": 600}));
    let mut events = sandbox.follow();
    events.until("running", |event| event.is_state("running"));
    sandbox.put_file("kept.txt", "kept").expect(200);
    sandbox.post("extend", &json!({"ttl_s": 900})).expect(200);
    assert_eq!(sandbox.exec("sleep 600 & echo $! > pid")["exit_code"], 0);
    server.kill9();
    server.restart();
    let reply = sandbox.exec("cat kept.txt; kill -0 $(cat pid) && echo alive");
    assert_eq!(reply["stdout"], "keptalive\n", "{reply}");
    let view = sandbox.view();
    assert_eq!((&view["status"], &view["ttl_s"]), (&json!("running"), &json!(900.0)), "{view}");
    assert_eq!(events.count(|event| event.is("sandbox_lost")), 0, "{}", events.summary());
    sandbox.end().expect(204);
    server.assert_nothing_left();
}

#[test]
fn idle_sandbox_expires_after_a_crash() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({"ttl_s": 2}));
    server.kill9();
    server.restart();
    sandbox.follow().until_end();
    assert_eq!(sandbox.view()["code"], "ttl");
    server.assert_nothing_left();
}
