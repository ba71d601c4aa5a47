//! User actions in a job's sandbox, in the hash chain of its event log: who, with which key, and what.

use std::process::Command;

use e2e::{Options, binary, wait_until};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Keyed, start, stdout};

/// SHA-256 of `hello`.
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// The id of a key by its name.
fn id_of(keyed: &Keyed, name: &str) -> String {
    let keys = keyed.get(&keyed.admin, "/v1/keys").expect(200).json()["keys"].clone();
    let found = keys.as_array().unwrap().iter().find(|key| key["name"] == name);
    found.unwrap_or_else(|| panic!("no key {name}: {keys}"))["id"].as_str().unwrap().to_owned()
}

/// The events of a job that name an actor.
fn deeds(keyed: &Keyed, job: &str) -> Vec<Value> {
    let page = keyed.get(&keyed.admin, &format!("/v1/jobs/{job}/events?format=json&limit=1000")).expect(200);
    let events = page.json()["events"].as_array().unwrap().clone();
    events.into_iter().filter(|event| event["done_by"].is_object()).collect()
}

/// Starts a job that waits, and returns it once its sandbox is reachable.
fn waiting(keyed: &Keyed, key: &str) -> String {
    let job = keyed.schedule(key, "sleep 3600");
    let path = format!("/v1/jobs/{job}/files");
    wait_until("the job has a sandbox", || keyed.get(key, &path).status == 200);
    job
}

fn send(keyed: &Keyed, key: &str, method: Method, path: &str, body: &'static str) -> u16 {
    keyed.server.send(keyed.request(key, method, path).body(body)).status
}

#[test]
fn what_people_do_in_a_sandbox_is_in_the_chain_of_its_job() {
    let keyed = start(Options::default());
    let (ada, bob) = (keyed.key("ada", "submitter", &json!({})), keyed.key("bob", "operator", &json!({})));
    let job = waiting(&keyed, &ada);
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
    keyed.post(&bob, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");

    let (ada_id, bob_id) = (id_of(&keyed, "ada"), id_of(&keyed, "bob"));
    let told: Vec<(Value, Value, Value)> = deeds(&keyed, &job)
        .into_iter()
        .map(|event| (event["done_by"].clone(), event["kind"].clone(), event["data"].clone()))
        .collect();
    let by_ada = || json!({"name": "ada", "key": ada_id});
    let by_bob = || json!({"name": "bob", "key": bob_id});
    let deed = |data: Value| (json!("person_acted"), data);
    let mut expected: Vec<(Value, (Value, Value))> = vec![
        (by_bob(), deed(json!({"what": "file_put", "path": "a.txt", "bytes": 5, "sha256": HELLO}))),
        (by_bob(), deed(json!({"what": "directory_made", "path": "d"}))),
        (by_bob(), deed(json!({"what": "link_made", "path": "l", "to": "a.txt"}))),
        (by_bob(), deed(json!({"what": "file_moved", "path": "a.txt", "to": "d/b.txt"}))),
        (by_ada(), deed(json!({"what": "file_deleted", "path": "d/b.txt"}))),
        (by_ada(), deed(json!({"what": "file_deleted", "path": "d/b.txt"}))),
    ];
    let found: Vec<(Value, (Value, Value))> =
        told.iter().map(|(who, kind, data)| (who.clone(), (kind.clone(), data.clone()))).collect();
    assert_eq!(found[..6], expected[..], "{found:#?}");
    // A failed action is logged again, with the reason.
    let (who, (kind, data)) = &found[6];
    assert!(who["name"] == "ada" && kind == "person_acted" && data["failed"].is_string(), "{data}");
    expected = vec![
        (
            by_bob(),
            (
                json!("call_started"),
                json!({"tool": "exec", "input": {"command": "cat; exit 3", "argv": null, "cwd": "/workspace/d",
                    "environment": ["TOKEN"], "stdin": {"bytes": 5, "sha256": HELLO}}}),
            ),
        ),
        (by_bob(), (json!("wished"), json!({"wish": "cancel"}))),
    ];
    assert_eq!(found[7..], expected[..], "{found:#?}");

    let audit = |words: &[&str]| {
        let data = keyed.server.data();
        Command::new(binary()).arg("audit").args(words).arg("--data").arg(data).output().unwrap()
    };
    let listed = stdout(&audit(&["deeds", &job]));
    for word in ["bob", &bob_id, "put a.txt (5 bytes)", "deleted d/b.txt", "asked to cancel", "exec"] {
        assert!(listed.contains(word), "no {word} in {listed}");
    }
    assert!(!listed.contains("value-of-it"), "{listed}");
    let lines = stdout(&audit(&["deeds", &job, "--json"]));
    assert_eq!(lines.lines().count(), found.len(), "{lines}");
    let checked = audit(&["verify", &job]);
    assert!(checked.status.success(), "{}", stdout(&checked));
}

#[test]
fn files_of_a_draft_are_told_with_who_put_them_and_input_of_a_process_too() {
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
    let told: Vec<String> = deeds(&keyed, job)
        .iter()
        .map(|event| format!("{} {} {}", event["done_by"]["name"], event["kind"], event["data"]["path"]))
        .collect();
    let expected = [
        r#""ada" "person_acted" "a.txt""#,
        r#""ada" "person_acted" "b.txt""#,
        r#""ada" "person_acted" "b.txt""#,
        r#""ada" "state_changed" null"#,
    ];
    assert_eq!(told, expected);
    assert_eq!(deeds(&keyed, job)[0]["data"]["sha256"], HELLO);
}

#[test]
fn a_name_that_is_used_again_is_told_apart_by_the_key_and_reserved_ones_are_refused() {
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
    let deeds = keyed.get(&keyed.admin, "/v1/access-log").expect(200).json()["deeds"].clone();
    let of_ada = deeds.as_array().unwrap().iter().filter(|deed| deed["path"] == path);
    let told: Vec<(&str, &str)> =
        of_ada.map(|deed| (deed["who"].as_str().unwrap(), deed["key"].as_str().unwrap())).collect();
    assert_eq!(told, [("ada", ids[1].as_str()), ("ada", ids[0].as_str())], "{deeds}");
    let file = std::fs::read_to_string(keyed.server.data().join("access.jsonl")).unwrap();
    assert!(file.contains(&ids[0]) && file.contains(&ids[1]), "{file}");
    for name in ["nobody", "anybody", "guest", "system", "agent", "Loopback", ids[0].as_str()] {
        let answer = keyed.post(&keyed.admin, "/v1/keys", &json!({"name": name, "role": "viewer"}));
        let detail = answer.expect_problem(422, "invalid_field");
        assert!(detail.contains(name), "{detail}");
        assert_eq!(answer.json()["field"], "name");
    }
}
