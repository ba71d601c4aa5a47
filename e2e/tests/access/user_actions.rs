//! User actions in a job's sandbox, in the hash chain of its event log: who, with which key, and what.

use std::process::Command;

use e2e::{Options, binary, wait_until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start, stdout};

/// SHA-256 of `hello`.
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// The id of a key by its name.
fn id_of(keyed: &Keyed, name: &str) -> String {
    let keys = keyed.get(&keyed.admin, "/v1/keys").expect(200).json()["keys"].clone();
    let found = keys.as_array().unwrap().iter().find(|key| key["name"] == name);
    found.unwrap_or_else(|| panic!("no key {name}: {keys}"))["id"].as_str().unwrap().to_owned()
}

/// The events of a job that name an actor.
fn entries(keyed: &Keyed, job: &str) -> Vec<Value> {
    let page = keyed.get(&keyed.admin, &format!("/v1/jobs/{job}/events?format=json&limit=1000")).expect(200);
    let events = page.json()["events"].as_array().unwrap().clone();
    events.into_iter().filter(|event| event["actor"].is_object()).collect()
}

/// Starts a job that waits, and returns it once its sandbox is reachable.
fn start_waiting_job(keyed: &Keyed, key: &str) -> String {
    let job = keyed.schedule(key, "sleep 3600");
    let path = format!("/v1/jobs/{job}/files");
    wait_until("the job has a sandbox", || keyed.get(key, &path).status == 200);
    job
}

fn send(keyed: &Keyed, key: &str, method: Method, path: &str, body: &'static str) -> u16 {
    keyed.server.send(keyed.request(key, method, path).body(body)).status
}

#[test]
fn user_actions_in_a_sandbox_are_in_the_jobs_hash_chain() {
    let keyed = start(Options::default());
    let (ada, bob) = (keyed.key("ada", "submitter", &json!({})), keyed.key("bob", "operator", &json!({})));
    let job = start_waiting_job(&keyed, &ada);
    let files = format!("/v1/jobs/{job}/files");
    assert_eq!(send(&keyed, &bob, Method::PUT, &format!("{files}/a.txt"), "hello"), 200);
    assert_eq!(send(&keyed, &bob, Method::PUT, &format!("{files}/d?kind=directory"), ""), 200);
    assert_eq!(send(&keyed, &bob, Method::PUT, &format!("{files}/l?kind=symlink"), "a.txt"), 200);
    keyed.post(&bob, &format!("{files}/a.txt"), &json!({"move_to": "d/b.txt"})).expect(200);
    keyed.delete(&ada, &format!("{files}/d/b.txt")).expect(204);
    keyed.delete(&ada, &format!("{files}/d/b.txt")).expect_problem(404, "file_not_found");
    let exec = json!({"command": "cat; exit 3", "cwd": "/workspace/d", "environment": {"TOKEN": "value-of-it"},
        "stdin": "hello"});
    let ran = keyed.post(&bob, &format!("/v1/jobs/{job}/exec"), &exec).expect(200).json();
    assert_eq!(ran["exit_code"], 3, "{ran}");
    keyed.post(&bob, &format!("/v1/jobs/{job}/extend"), &json!({"seconds": 60})).expect(200);
    keyed.post(&bob, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");

    let (ada_id, bob_id) = (id_of(&keyed, "ada"), id_of(&keyed, "bob"));
    let told: Vec<(Value, Value, Value)> = entries(&keyed, &job)
        .into_iter()
        .map(|event| (event["actor"].clone(), event["kind"].clone(), event["data"].clone()))
        .collect();
    let by_ada = || json!({"name": "ada", "key": ada_id});
    let by_bob = || json!({"name": "bob", "key": bob_id});
    let entry = |data: Value| (json!("user_action"), data);
    let mut expected: Vec<(Value, (Value, Value))> = vec![
        (by_bob(), entry(json!({"what": "file_put", "path": "a.txt", "bytes": 5, "sha256": HELLO}))),
        (by_bob(), entry(json!({"what": "directory_made", "path": "d"}))),
        (by_bob(), entry(json!({"what": "link_made", "path": "l", "to": "a.txt"}))),
        (by_bob(), entry(json!({"what": "file_moved", "path": "a.txt", "to": "d/b.txt"}))),
        (by_ada(), entry(json!({"what": "file_deleted", "path": "d/b.txt"}))),
        (by_ada(), entry(json!({"what": "file_deleted", "path": "d/b.txt"}))),
    ];
    let found: Vec<(Value, (Value, Value))> =
        told.iter().map(|(who, kind, data)| (who.clone(), (kind.clone(), data.clone()))).collect();
    assert_eq!(found[..6], expected[..], "{found:#?}");
    // A failed action is logged again, with the reason.
    let (who, (kind, data)) = &found[6];
    assert!(who["name"] == "ada" && kind == "user_action" && data["failed"].is_string(), "{data}");
    expected = vec![
        (
            by_bob(),
            (
                json!("call_started"),
                json!({"tool": "exec", "input": {"command": "cat; exit 3", "argv": null, "cwd": "/workspace/d",
                    "environment": ["TOKEN"], "stdin": {"bytes": 5, "sha256": HELLO}}}),
            ),
        ),
        (by_bob(), (json!("time_limit_changed"), json!({"before_ms": 3_600_000, "after_ms": 3_660_000}))),
        (by_bob(), (json!("control_requested"), json!({"request": "cancel"}))),
    ];
    assert_eq!(found[7..], expected[..], "{found:#?}");

    let audit = |words: &[&str]| {
        let data = keyed.server.data();
        Command::new(binary()).arg("audit").args(words).arg("--data").arg(data).output().unwrap()
    };
    let listed = stdout(&audit(&["actions", &job]));
    for word in
        ["bob", &bob_id, "put a.txt (5 bytes)", "deleted d/b.txt", "to 3660 s", "asked to cancel", "exec"]
    {
        assert!(listed.contains(word), "no {word} in {listed}");
    }
    assert!(!listed.contains("value-of-it"), "{listed}");
    let lines = stdout(&audit(&["actions", &job, "--json"]));
    assert_eq!(lines.lines().count(), found.len(), "{lines}");
    let checked = audit(&["verify", &job]);
    assert!(checked.status.success(), "{}", stdout(&checked));
}

#[test]
fn draft_uploads_and_process_input_are_logged_with_their_actor() {
    let keyed = start(Options::default());
    let ada = keyed.key("ada", "submitter", &json!({}));
    let body = json!({"steps": [{"tool": "shell", "command": "cat a.txt"}], "start": false});
    let job = keyed.post(&ada, "/v1/jobs", &body).expect(202).json()["job_id"].clone();
    let job = job.as_str().unwrap();
    assert_eq!(send(&keyed, &ada, Method::PUT, &format!("/v1/jobs/{job}/files/a.txt"), "hello"), 200);
    assert_eq!(send(&keyed, &ada, Method::PUT, &format!("/v1/jobs/{job}/files/b.txt"), "x"), 200);
    keyed.delete(&ada, &format!("/v1/jobs/{job}/files/b.txt")).expect(204);
    keyed.post(&ada, &format!("/v1/jobs/{job}/start"), &Value::Null).expect(202);
    keyed.wait_for(job, "complete");
    let told: Vec<String> = entries(&keyed, job)
        .iter()
        .map(|event| format!("{} {} {}", event["actor"]["name"], event["kind"], event["data"]["path"]))
        .collect();
    let expected = [
        r#""ada" "user_action" "a.txt""#,
        r#""ada" "user_action" "b.txt""#,
        r#""ada" "user_action" "b.txt""#,
        r#""ada" "state_changed" null"#,
    ];
    assert_eq!(told, expected);
    assert_eq!(entries(&keyed, job)[0]["data"]["sha256"], HELLO);
}

#[test]
fn reused_key_names_are_told_apart_by_key_id_and_reserved_names_are_refused() {
    let keyed = start(Options::default());
    let path = "/v1/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/cancel";
    let mut ids = Vec::new();
    for _ in 0..2 {
        let ada = keyed.key("ada", "submitter", &json!({}));
        ids.push(id_of(&keyed, "ada"));
        keyed.post(&ada, path, &Value::Null).expect_problem(404, "job_not_found");
        keyed.delete(&keyed.admin, "/v1/keys/ada").expect(204);
    }
    assert_ne!(ids[0], ids[1]);
    let entries = keyed.get(&keyed.admin, "/v1/access-log").expect(200).json()["entries"].clone();
    let of_ada = entries.as_array().unwrap().iter().filter(|entry| entry["path"] == path);
    let told: Vec<(&str, &str)> =
        of_ada.map(|entry| (entry["who"].as_str().unwrap(), entry["key"].as_str().unwrap())).collect();
    assert_eq!(told, [("ada", ids[1].as_str()), ("ada", ids[0].as_str())], "{entries}");
    let file = std::fs::read_to_string(keyed.server.data().join("access.jsonl")).unwrap();
    assert!(file.contains(&ids[0]) && file.contains(&ids[1]), "{file}");
    for name in ["nobody", "anybody", "guest", "system", "agent", "Loopback", ids[0].as_str()] {
        let answer = keyed.post(&keyed.admin, "/v1/keys", &json!({"name": name, "role": "viewer"}));
        let detail = answer.expect_problem(422, "invalid_field");
        assert!(detail.contains(name), "{detail}");
        assert_eq!(answer.json()["field"], "name");
    }
}
