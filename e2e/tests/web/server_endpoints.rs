//! Server-wide endpoints that the page uses: images, doctor, defaults, usage, search, files as they were uploaded.

use e2e::{Server, binary};
use serde_json::{Value, json};

#[test]
fn doctor_endpoint_matches_the_doctor_command() {
    let server = Server::start();
    let doctor = server.get("/v1/doctor").expect(200).json();
    let output = std::process::Command::new(binary())
        .args(["doctor", "--json", "--data"])
        .arg(server.folder().join("other"))
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = |of: &Value| -> Vec<String> {
        of["checks"].as_array().unwrap().iter().map(|check| check["name"].to_string()).collect()
    };
    assert_eq!(names(&doctor), names(&told));
    assert_eq!((&doctor["isolation"], &doctor["enforced"]), (&told["isolation"], &told["enforced"]));
    let images = server.get("/v1/images").expect(200).json();
    assert!(images["recipe"].is_string() && images["images"] == json!([]), "{images}");
    let defaults = server.get("/v1/defaults").expect(200).json();
    assert_eq!(
        (&defaults["memory_mib"], &defaults["egress"]),
        (&json!(4096), &json!("packages")),
        "{defaults}"
    );
    assert!(defaults["max_running"].as_u64() >= Some(1), "{defaults}");
}

#[test]
fn usage_is_counted_by_day_and_jobs_can_be_searched() {
    let server = Server::start();
    let good = json!({"name": "Bright One", "labels": {"project": "sun"}, "steps": [{"tool": "shell", "command": "true"}]});
    server.schedule(&good).wait_for("complete");
    server.schedule(&json!({"steps": [{"tool": "shell", "command": "exit 3"}]})).wait_for("failed");
    let usage = server.get("/v1/usage?days=2").expect(200).json();
    let sum = |field: &str| -> u64 {
        usage["days"].as_array().unwrap().iter().map(|day| day[field].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("jobs"), sum("complete"), sum("failed")), (2, 1, 1), "{usage}");
    assert!(sum("sandbox_ms") > 0, "{usage}");
    assert_eq!(server.get("/v1/usage?days=0").expect(400).json()["field"], "days");

    let found = |text: &str| {
        let page = server.get(&format!("/v1/jobs?search={text}")).expect(200).json();
        assert_eq!(page["next"], Value::Null);
        page["jobs"].as_array().unwrap().clone()
    };
    for text in ["bright", "BRIGHT%20o", "sun", "project"] {
        let jobs = found(text);
        assert_eq!((jobs.len(), &jobs[0]["name"]), (1, &json!("Bright One")), "{text}");
    }
    assert_eq!(found("exit%20code").len(), 1, "the reason is searched too");
    assert_eq!((found("nothing%20like%20this").len(), found("%20").len()), (0, 2));
    let job = &found("bright")[0];
    assert_eq!(
        (&job["cost_usd"], &job["owner"], &job["plan_total"]),
        (&Value::Null, &Value::Null, &json!(0))
    );
    let first = server.get("/v1/jobs?search=e&limit=1").expect(200).json();
    assert!(first["next"].is_string(), "there may be more: {first}");
}

#[test]
fn uploaded_file_can_be_read_in_its_original_version() {
    let server = Server::start();
    let draft =
        json!({"start": false, "steps": [{"tool": "write_file", "path": "a/b.txt", "content": "new"}]});
    let job = server.schedule(&draft);
    job.put_file("a/b.txt", "old").expect(200);
    job.post("start", &json!({})).expect(202);
    job.wait_for("complete");
    assert_eq!(job.get("start/a/b.txt").expect(200).text(), "old");
    assert_eq!(job.get_file("a/b.txt").expect(200).text(), "new");
    for path in ["start/a/c.txt", "start/a"] {
        assert_eq!(job.get(path).status / 100, 4, "{path}");
    }
    assert!(job.get("start/..%2f..%2finput.txt").status >= 400);
}
