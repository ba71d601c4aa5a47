//! Upper bounds on the limits that requests may ask for.

use e2e::{Options, Server, shell};
use serde_json::{Value, json};

use crate::keyed_server::start;

const CEILINGS: &str = "
[limits.max]
memory_mib = 512
wall_clock_s = 600
step_timeout_s = 60
ttl_s = 700
[limits.max.roles.submitter]
memory_mib = 256
[limits.max.keys.big]
memory_mib = 1000000
";

#[test]
fn requests_above_a_maximum_are_refused_and_name_the_limit() {
    let keyed = start(Options { config: CEILINGS.into(), ..Options::default() });
    let ada = keyed.key("ada", "submitter", &json!({}));
    let big = keyed.key("big", "submitter", &json!({}));
    let steps = |more: Value| {
        let mut body = json!({"steps": [shell("true")], "start": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let slow = json!({"steps": [{"tool": "shell", "command": "true", "timeout_s": 61}]});
    let everybody = "in [limits.max]";
    for (key, path, body, field, words) in [
        (
            &ada,
            "/v1/jobs",
            steps(json!({"limits": {"memory_mib": 257}})),
            "limits.memory_mib",
            "[limits.max.roles.submitter]",
        ),
        (
            &ada,
            "/v1/sandboxes",
            json!({"limits": {"memory_mib": 257}}),
            "limits.memory_mib",
            "257 is more than 256",
        ),
        (
            &ada,
            "/schedule",
            json!({"task": "x", "limits": {"memory_mib": 257}}),
            "limits.memory_mib",
            "a submitter",
        ),
        (
            &keyed.admin,
            "/v1/sandboxes",
            json!({"limits": {"memory_mib": 513}}),
            "limits.memory_mib",
            everybody,
        ),
        (
            &big,
            "/v1/jobs",
            steps(json!({"limits": {"memory_mib": 1_000_001}})),
            "limits.memory_mib",
            "[limits.max.keys.\"big\"]",
        ),
        (&big, "/v1/jobs", steps(json!({"limits": {"wall_clock_s": 601}})), "limits.wall_clock_s", everybody),
        (&ada, "/v1/sandboxes", json!({"ttl_s": 701}), "ttl_s", everybody),
        (&ada, "/schedule", slow, "steps[0].timeout_s", "`step_timeout_s` in [limits.max]"),
    ] {
        let answer = keyed.post(key, path, &body);
        let detail = answer.expect_problem(422, "invalid_field");
        assert!(detail.contains(words) && detail.contains("the operator"), "{words}: {detail}");
        assert_eq!(answer.json()["field"], field, "{body}");
    }
    // The bound for each caller, and the default limit of jobs: never more than the server-wide bound.
    for (key, most, default) in [(&ada, 256, 256), (&keyed.admin, 512, 512), (&big, 1_000_000, 512)] {
        let shown = keyed.get(key, "/v1/defaults").expect(200).json();
        assert_eq!(
            (&shown["max"]["memory_mib"], &shown["memory_mib"]),
            (&json!(most), &json!(default)),
            "{shown}"
        );
        assert_eq!(shown["max"]["wall_clock_s"], 600);
    }
    // A retry must not give a caller limits above the caller's own bound.
    let made =
        keyed.post(&big, "/v1/jobs", &steps(json!({"limits": {"memory_mib": 900_000}}))).expect(202).json();
    let id = made["job_id"].as_str().unwrap();
    let answer = keyed.post(&keyed.admin, &format!("/v1/jobs/{id}/retry"), &json!({}));
    let detail = answer.expect_problem(422, "invalid_field");
    assert!(detail.contains("900000 is more than 512"), "{detail}");
    // The default time limit is as long as anybody may ask for.
    let answer = keyed.post(&big, &format!("/v1/jobs/{id}/extend"), &json!({"seconds": 1}));
    let detail = answer.expect_problem(422, "invalid_field");
    assert!(
        detail.contains("601 is more than 600") && detail.contains("`wall_clock_s` in [limits.max]"),
        "{detail}"
    );
    let jobs = keyed.get(&keyed.admin, "/v1/jobs").expect(200).json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
}

#[test]
fn without_configured_maximums_the_host_size_is_the_maximum() {
    let server = Server::start();
    for (limits, field) in [
        (json!({"memory_mib": 16_000_000}), "limits.memory_mib"),
        (json!({"cpus": 1024}), "limits.cpus"),
        (json!({"disk_mib": 16_777_216}), "limits.disk_mib"),
        (json!({"cpus": 1e300}), "limits.cpus"),
        (json!({"cpus": -1}), "limits.cpus"),
        (json!({"cpus": 0.000_001}), "limits.cpus"),
        (json!({"open_files": u64::MAX}), "limits.open_files"),
    ] {
        for (path, mut body) in
            [("/v1/sandboxes", json!({})), ("/schedule", json!({"steps": [shell("true")]}))]
        {
            body["limits"] = limits.clone();
            let answer = server.post(path, &body);
            answer.expect_problem(422, "invalid_field");
            assert_eq!(answer.json()["field"], field, "{path} {limits}");
        }
    }
    assert!(server.launchers().is_empty());
    let max = server.get("/v1/defaults").expect(200).json()["max"].clone();
    for name in ["memory_mib", "cpus", "pids", "open_files", "disk_mib"] {
        assert!(max[name].as_f64().unwrap() > 0.0, "{name}: {max}");
    }
}
