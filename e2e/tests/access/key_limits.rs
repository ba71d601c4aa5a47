//! Per-key limits; the error names the limit.

use e2e::{Options, Server, free_port, http_client, wait_until};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use reqwest::Method;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start};

#[test]
fn queued_jobs_per_key_are_limited() {
    let keyed = start(Options { config: "[jobs]\nmax_running = 1\n".into(), ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({"max_queued": 1}));
    let first = keyed.schedule(&keyed.admin, "sleep 3600");
    keyed.wait_for(&first, "running");
    let second = keyed.schedule(&ada, "true");
    let body = json!({"steps": [{"tool": "shell", "command": "true"}]});
    let refused = keyed.post(&ada, "/schedule", &body);
    let detail = refused.expect_problem(429, "key_quota_exceeded");
    assert!(detail.contains("1 jobs of this key wait already, of 1"), "{detail}");
    assert!(refused.header("retry-after").parse::<u64>().unwrap() > 0);
    let draft = json!({"steps": [{"tool": "shell", "command": "true"}], "start": false});
    keyed.post(&ada, "/v1/jobs", &draft).expect_problem(429, "key_quota_exceeded");
    keyed.schedule(&keyed.admin, "true");
    keyed.post(&keyed.admin, &format!("/v1/jobs/{first}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&second, "complete");
    keyed.schedule(&ada, "true");
}

#[test]
fn running_jobs_per_key_are_limited_and_other_keys_overtake() {
    let keyed = start(Options { config: "[jobs]\nmax_running = 4\n".into(), ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({"max_running": 1}));
    let first = keyed.schedule(&ada, "sleep 3600");
    keyed.wait_for(&first, "running");
    let second = keyed.schedule(&ada, "true");
    let other = keyed.schedule(&keyed.admin, "true");
    keyed.wait_for(&other, "complete");
    assert_eq!(keyed.status(&second), "pending", "it waits for the first of the same key");
    let detail = keyed.post(&ada, "/v1/sandboxes", &json!({})).expect_problem(429, "key_quota_exceeded");
    assert!(detail.contains("of 1"), "{detail}");
    keyed.post(&ada, &format!("/v1/jobs/{first}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&second, "complete");
}

#[test]
fn one_key_cannot_take_all_sandboxes() {
    let keyed = start(Options { config: "[jobs]\nmax_sandboxes = 4\n".into(), ..Options::default() });
    let (ada, bob) = (keyed.key("ada", "submitter", &json!({})), keyed.key("bob", "submitter", &json!({})));
    let ask = |key: &str| keyed.post(key, "/v1/sandboxes", &json!({}));
    ask(&ada).expect(201);
    ask(&ada).expect(201);
    let detail = ask(&ada).expect_problem(429, "key_quota_exceeded");
    assert!(
        detail.contains("2 sandboxes of this key live already, and the 2 that are free, of 4,"),
        "{detail}"
    );
    let of_bob = ask(&bob).expect(201).json()["sandbox_id"].clone();
    ask(&bob).expect_problem(429, "key_quota_exceeded");
    ask(&keyed.admin).expect(201);
    ask(&keyed.admin).expect_problem(429, "key_quota_exceeded");
    let path = format!("/v1/sandboxes/{}", of_bob.as_str().unwrap());
    keyed.delete(&bob, &path).expect(204);
    ask(&bob).expect(201);
}

#[test]
fn spending_still_counts_after_the_job_is_deleted() {
    let answers = vec![ScriptedAnswer::calls(&[("finish", json!({"summary": "done"}))])];
    let script = Script { order: Order::Turns, ..Script::of(answers) };
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let name = format!("http://{}/v1#scripted", model.address());
    let prices = format!("[model.prices.\"{name}\"]\ninput = 1000.0\noutput = 1000.0\n");
    let config = format!("[model]\nname = \"{name}\"\n{prices}");
    let keyed = start(Options { config, ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({"dollars_per_day": 0.01}));
    let task = json!({"task": "spend"});
    let job = keyed.post(&ada, "/schedule", &task).expect(202).json()["job_id"].clone();
    let job = job.as_str().unwrap();
    keyed.wait_for(job, "complete");
    let detail = keyed.post(&ada, "/schedule", &task).expect_problem(429, "key_quota_exceeded");
    assert!(detail.contains("in 24 hours, of $0.01"), "{detail}");
    assert!(matches!(keyed.delete(&ada, &format!("/v1/jobs/{job}")).status, 200 | 204));
    keyed.get(&ada, &format!("/v1/jobs/{job}")).expect_problem(404, "job_not_found");
    keyed.post(&ada, "/schedule", &task).expect_problem(429, "key_quota_exceeded");
    keyed.server.kill9();
    keyed.server.restart();
    keyed.post(&ada, "/schedule", &task).expect_problem(429, "key_quota_exceeded");
    keyed.post(&keyed.admin, "/schedule", &task).expect(202);
}

#[test]
fn spending_before_a_pause_counts_after_resume() {
    let work =
        |number: usize| ScriptedAnswer::calls(&[("shell", json!({"command": format!("echo {number}")}))]);
    let script = Script { order: Order::Turns, ..Script::of((0..20).map(work).collect()) };
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let name = format!("http://{}/v1#scripted", model.address());
    let prices = format!("[model.prices.\"{name}\"]\ninput = 1000.0\noutput = 1000.0\n");
    let keyed =
        start(Options { config: format!("[model]\nname = \"{name}\"\n{prices}"), ..Options::default() });
    let begin = |key: &str| {
        let body = json!({"task": "spend", "budget": {"turns": 1}});
        let job = keyed.post(key, "/schedule", &body).expect(202).json()["job_id"].clone();
        job.as_str().unwrap().to_owned()
    };
    let paused = |job: &str, reason: &str| {
        let mut found = Value::Null;
        wait_until(&format!("paused with {reason}"), || {
            found = keyed.get(&keyed.admin, &format!("/v1/jobs/{job}")).expect(200).json();
            found["state"] == "paused" && found["reason"].as_str().is_some_and(|text| text.contains(reason))
        });
        found["agent"]["spent"].clone()
    };
    let resume = |key: &str, job: &str, budget: Value| {
        keyed.post(key, &format!("/v1/jobs/{job}/resume"), &json!({"budget": budget}))
    };
    let cost = |spent: &Value| spent["cost_nanodollars"].as_u64().unwrap_or_else(|| panic!("{spent}"));
    let ada = keyed.key("ada", "submitter", &json!({"dollars_per_day": 1_000_000.0}));
    let job = begin(&ada);
    let first = cost(&paused(&job, "1 of 1 turns"));
    assert!(first > 0);
    keyed.server.kill9();
    keyed.server.restart();
    resume(&ada, &job, json!({"turns": 2})).expect(202);
    let second = paused(&job, "2 of 2 turns");
    assert_eq!(second["turns"], 2, "the turn of before counts: {second}");
    assert!(cost(&second) > first, "{second}");
    // A budget below what is already spent does not let the job go on.
    #[expect(clippy::cast_precision_loss, reason = "half of a sum of money")]
    let half = cost(&second) as f64 / 2e9;
    resume(&ada, &job, json!({"turns": 9, "money_usd": half})).expect(202);
    assert_eq!(paused(&job, "$"), second);
    // A daily limit of one and a half of these turns rejects the key after two turns, however they are split into
    // jobs.
    #[expect(clippy::cast_precision_loss, reason = "a sum of money")]
    let limit = first as f64 * 1.5 / 1e9;
    let bob = keyed.key("bob", "submitter", &json!({"dollars_per_day": limit}));
    let job = begin(&bob);
    paused(&job, "1 of 1 turns");
    resume(&bob, &job, json!({"turns": 2})).expect(202);
    paused(&job, "2 of 2 turns");
    let detail = resume(&bob, &job, json!({"turns": 3})).expect_problem(429, "key_quota_exceeded");
    assert!(detail.contains("in 24 hours"), "{detail}");
}

#[test]
fn key_is_limited_to_its_requests_per_second() {
    let keyed = start(Options::default());
    let ada = keyed.key("ada", "viewer", &json!({"requests_per_second": 2}));
    // At the same time: one after another, a busy machine might take longer than the key has to wait.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..12).map(|_| scope.spawn(|| keyed.get(&ada, "/v1/models"))).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 429).collect();
    assert!(!refused.is_empty() && refused.len() < 12, "{} of 12 were refused", refused.len());
    let detail = refused[0].expect_problem(429, "rate_limited");
    assert!(detail.contains("2 requests per second"), "{detail}");
    assert_eq!(refused[0].header("retry-after"), "1");
    assert!(
        (0..20).all(|_| keyed.get(&keyed.admin, "/v1/models").status == 200),
        "others are not slowed down"
    );
}

#[test]
fn requests_to_all_listeners_count_together() {
    let port = free_port();
    let config = format!("preview_listen = [\"127.0.0.1:{port}\"]\n");
    let keyed = start(Options { config, ..Options::default() });
    let target = "caisson-preview=01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f-80";
    let client = http_client().build().unwrap();
    let mut number = 0;
    // A new key each time: one that has waited for a second may send a request again.
    wait_until("the preview listener refuses a key that has used up its requests at the API", || {
        number += 1;
        let key = keyed.key(&format!("ada-{number}"), "viewer", &json!({"requests_per_second": 1}));
        while keyed.get(&key, "/v1/models").status != 429 {}
        let request = client.get(format!("http://127.0.0.1:{port}/")).bearer_auth(&key);
        request.header("Cookie", target).send().unwrap().status().as_u16() == 429
    });
}

#[test]
fn submitters_may_use_only_model_urls_allowed_by_the_operator() {
    let config = "[model]\nlocal = false\nallowed_model_urls = [\"http://127.0.0.1:9/v1\"]\n";
    let server = Server::start_with(Options { config: config.into(), ..Options::default() });
    let body = |model: &str| json!({"task": "look around", "model": model, "start": false});
    let metadata = "http://169.254.169.254/latest/meta-data";
    // Without API keys, everybody who reaches the server may do everything.
    let draft = server.post("/v1/jobs", &body(metadata)).expect(202).json()["job_id"].clone();
    let draft = draft.as_str().unwrap();
    let keyed = Keyed::of(server);
    let ada = keyed.key("ada", "submitter", &json!({}));
    for key in [&ada, &keyed.admin] {
        for address in [metadata, "http://127.0.0.1:22", "http://10.0.0.1/v1#x", "http://127.0.0.1:9/v2"] {
            let answer = keyed.post(key, "/v1/jobs", &body(address));
            let detail = answer.expect_problem(422, "invalid_field");
            assert!(detail.contains("allowed_model_urls"), "{detail}");
            assert_eq!(answer.json()["field"], "model", "{}", answer.text());
        }
        for allowed in ["anthropic/claude-sonnet-5", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1#any"] {
            keyed.post(key, "/v1/jobs", &body(allowed)).expect(202);
        }
    }
    // The same holds for a job that was submitted before there were keys.
    for what in ["start", "retry"] {
        let answer = keyed.post(&keyed.admin, &format!("/v1/jobs/{draft}/{what}"), &json!({}));
        let detail = answer.expect_problem(422, "invalid_field");
        assert!(detail.contains("allowed_model_urls"), "{what}: {detail}");
    }
    // The job is still a draft, and no retry was created.
    let more = keyed.request(&keyed.admin, Method::PUT, &format!("/v1/jobs/{draft}/files/a")).body("x");
    let status = keyed.server.send(more).status;
    assert!(status < 300, "{status}");
    let jobs = keyed.get(&keyed.admin, "/v1/jobs").expect(200).json()["jobs"].as_array().unwrap().len();
    assert_eq!(jobs, 7);
}

#[test]
fn invalid_key_limits_are_refused_and_named() {
    let keyed = start(Options::default());
    let table = [
        (json!({"max_running": 0}), "limits.max_running"),
        (json!({"requests_per_second": 0}), "limits.requests_per_second"),
        (json!({"dollars_per_day": -1.0}), "limits.dollars_per_day"),
    ];
    for (limits, field) in table {
        let body = json!({"name": "x", "role": "viewer", "limits": limits});
        let answer = keyed.post(&keyed.admin, "/v1/keys", &body);
        answer.expect_problem(422, "invalid_field");
        assert_eq!(answer.json()["field"], field, "{}", answer.text());
    }
    for body in [
        json!({"name": "", "role": "viewer"}),
        json!({"name": "a b", "role": "viewer"}),
        json!({"name": "root", "role": "viewer"}),
        json!({"name": "x", "role": "king"}),
        json!({"name": "x", "role": "viewer", "limits": {"colour": 1}}),
    ] {
        keyed.post(&keyed.admin, "/v1/keys", &body).expect_problem(422, "invalid_field");
    }
    let request = keyed.request(&keyed.admin, Method::POST, "/v1/keys").body("{");
    keyed
        .server
        .send(request.header("content-type", "application/json"))
        .expect_problem(400, "malformed_json");
}
