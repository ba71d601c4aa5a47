//! API keys: created, shown once, listed, revoked; over the API, with the CLI, and in a data folder without a server.

use std::process::Command;

use e2e::{Options, Server, Socket, binary, shell};
use reqwest::Method;
use serde_json::{Value, json};

use crate::keyed_server::{start, stderr, stdout};

#[test]
fn authentication_is_required_once_the_first_key_exists() {
    let server = Server::start();
    server.get("/v1/jobs").expect(200);
    let session = json!({"needs_key": false, "name": null, "role": "admin", "login_with": null});
    assert_eq!(server.get("/v1/session").json(), session);
    let viewer = json!({"name": "eve", "role": "viewer"});
    let detail = server.post("/v1/keys", &viewer).expect_problem(422, "invalid_field");
    assert!(detail.contains("admin"), "{detail}");
    let made = server.post("/v1/keys", &json!({"name": "ada", "role": "admin"})).expect(201).json();
    let secret = made["secret"].as_str().unwrap();
    assert!(secret.starts_with("caisson_") && secret.len() > 60, "{secret}");
    let refused = server.get("/v1/jobs");
    let detail = refused.expect_problem(401, "key_missing");
    assert!(detail.contains("CAISSON_KEY"), "{detail}");
    assert_eq!(refused.header("www-authenticate"), "Bearer");
    server.send(server.request(Method::GET, "/v1/jobs").bearer_auth(secret)).expect(200);
    let wrong = secret.replace(&secret[10..14], "0000");
    server
        .send(server.request(Method::GET, "/v1/jobs").bearer_auth(wrong))
        .expect_problem(401, "key_unknown");
    let basic = server.request(Method::GET, "/v1/jobs").basic_auth("ada", Some(secret));
    server.send(basic).expect_problem(401, "key_unknown");
}

#[test]
fn key_secrets_are_not_stored_on_disk() {
    let keyed = start(Options::default());
    let secret = keyed.key("ada", "submitter", &json!({}));
    let job = keyed.schedule(&secret, "true");
    keyed.wait_for(&job, "complete");
    keyed.server.stop();
    let random = secret.trim_start_matches("caisson_");
    for folder in [keyed.server.data(), keyed.server.folder().to_owned()] {
        let found = Command::new("grep").args(["-rlF", random]).arg(&folder).output().unwrap();
        assert_eq!(stdout(&found), "", "the secret lies in {}", folder.display());
    }
}

#[test]
fn revoked_key_stops_working_at_once_and_its_jobs_continue() {
    let keyed = start(Options::default());
    let secret = keyed.key("ada", "submitter", &json!({}));
    let job = keyed.schedule(&secret, "sleep 2; echo done");
    keyed.delete(&keyed.admin, "/v1/keys/ada").expect(204);
    keyed.get(&secret, "/v1/jobs").expect_problem(401, "key_unknown");
    keyed.delete(&keyed.admin, "/v1/keys/ada").expect_problem(404, "key_not_found");
    keyed.wait_for(&job, "complete");
    let owner = keyed.get(&keyed.admin, &format!("/v1/jobs/{job}")).json()["owner"].clone();
    assert_eq!(owner, "ada");
    let detail = keyed.delete(&keyed.admin, "/v1/keys/root").expect_problem(422, "invalid_field");
    assert!(detail.contains("last"), "{detail}");
}

#[test]
fn keys_survive_a_server_restart() {
    let keyed = start(Options::default());
    let secret = keyed.key("ada", "viewer", &json!({"requests_per_second": 9}));
    keyed.server.kill9();
    keyed.server.restart();
    keyed.get(&secret, "/v1/jobs").expect(200);
    let keys = keyed.get(&keyed.admin, "/v1/keys").json()["keys"].clone();
    let names: Vec<&Value> = keys.as_array().unwrap().iter().map(|key| &key["name"]).collect();
    assert_eq!(names, ["ada", "root"]);
    assert_eq!(keys[0]["limits"], json!({"requests_per_second": 9}));
    assert!(!keys.to_string().contains("secret"), "{keys}");
}

#[test]
fn cli_creates_lists_and_revokes_keys() {
    let keyed = start(Options::default());
    let admin = Some(keyed.admin.as_str());
    let refused = keyed.caisson(None, &["jobs"]);
    assert!(stderr(&refused).contains("key_missing"), "{}", stderr(&refused));
    let made = keyed.caisson(admin, &["keys", "add", "robot", "--role", "submitter", "--max-running", "2"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let secret = stdout(&made).trim().to_owned();
    let listed = stdout(&keyed.caisson(admin, &["keys", "list"]));
    assert!(
        listed.contains("robot") && listed.contains("2 running") && !listed.contains(&secret),
        "{listed}"
    );
    let file = keyed.server.folder().join("key");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let ran = keyed.caisson(None, &["jobs", "--key-file", file.to_str().unwrap()]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let sandbox = stdout(&keyed.caisson(Some(&secret), &["sandboxes", "create"]));
    let shown = keyed.caisson(Some(&secret), &["exec", sandbox.trim(), "--", "echo", "hello"]);
    assert!(shown.status.success() && stdout(&shown).contains("hello"), "{}", stderr(&shown));
    let forbidden = keyed.caisson(Some(&secret), &["keys", "list"]);
    assert!(stderr(&forbidden).contains("role_too_weak"), "{}", stderr(&forbidden));
    assert!(keyed.caisson(admin, &["keys", "revoke", "robot"]).status.success());
    assert!(stderr(&keyed.caisson(Some(&secret), &["jobs"])).contains("key_unknown"));
    let wrong = keyed.caisson(admin, &["keys", "add", "x", "--role", "king"]);
    assert!(stderr(&wrong).contains("role") && stderr(&wrong).contains("submitter"), "{}", stderr(&wrong));
}

#[test]
fn first_key_created_offline_allows_listening_beyond_loopback() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let caisson = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).arg("--data").arg(&data).env_remove("CAISSON_KEY").output().unwrap()
    };
    let run_dir = folder.path().join("run");
    let refused = caisson(&["serve", "--listen", "0.0.0.0:0", "--run-dir", run_dir.to_str().unwrap()]);
    assert!(stderr(&refused).contains("caisson keys add"), "{}", stderr(&refused));
    let made = caisson(&["keys", "add", "ada", "--role", "admin", "--json"]);
    let made: Value = serde_json::from_str(&stdout(&made)).unwrap_or_else(|_| panic!("{}", stderr(&made)));
    let listed = caisson(&["keys", "list"]);
    assert!(stdout(&listed).contains("ada") && stdout(&listed).contains("admin"), "{}", stderr(&listed));

    let server = Server::start_with(Options {
        data: Some(data.clone()),
        listen: vec![format!("0.0.0.0:{}", e2e::free_port())],
        ..Options::default()
    });
    server.get("/v1/jobs").expect_problem(401, "key_missing");
    let secret = made["secret"].as_str().unwrap();
    server.send(server.request(Method::GET, "/v1/jobs").bearer_auth(secret)).expect(200);
    assert!(server.log().contains("no TLS on a public address"), "{}", server.log());
    let busy = caisson(&["keys", "list"]);
    assert!(stderr(&busy).contains("omit --data"), "{}", stderr(&busy));
    server.stop();
    assert!(caisson(&["keys", "revoke", "ada"]).status.success());
    assert!(stdout(&caisson(&["keys", "list"])).contains("no keys"));
}

#[test]
fn jobs_belong_to_their_submitter() {
    let keyed = start(Options::default());
    let (ada, bob) = (keyed.key("ada", "submitter", &json!({})), keyed.key("bob", "submitter", &json!({})));
    let viewer = keyed.key("eve", "viewer", &json!({}));
    let hers = keyed.schedule(&ada, "echo hers");
    let his = keyed.schedule(&bob, "echo his");
    keyed.wait_for(&hers, "complete");
    keyed.wait_for(&his, "complete");
    let listed = |key: &str| keyed.get(key, "/v1/jobs").expect(200).json()["jobs"].as_array().unwrap().len();
    assert_eq!((listed(&ada), listed(&bob), listed(&viewer), listed(&keyed.admin)), (1, 1, 2, 2));
    keyed.get(&ada, &format!("/v1/jobs/{his}")).expect_problem(404, "job_not_found");
    keyed.get(&ada, &format!("/status?task_id={his}")).expect_problem(404, "job_not_found");
    keyed.get(&ada, &format!("/jobs/{his}/output.zip")).expect_problem(404, "job_not_found");
    keyed.get(&viewer, &format!("/jobs/{his}/output.zip")).expect(200);
    keyed.delete(&ada, &format!("/v1/jobs/{his}")).expect_problem(404, "job_not_found");
    keyed.delete(&viewer, &format!("/v1/jobs/{his}")).expect_problem(403, "role_too_weak");
    let usage = |key: &str| keyed.get(key, "/v1/usage").expect(200).json()["days"][0]["jobs"].clone();
    assert_eq!((usage(&ada), usage(&viewer)), (json!(1), json!(2)));
    let by_key = keyed.get(&keyed.admin, "/v1/usage").json()["days"][0]["by_key"].clone();
    assert_eq!((&by_key["ada"]["jobs"], &by_key["bob"]["jobs"]), (&json!(1), &json!(1)), "{by_key}");
    let again = keyed.post(&keyed.admin, &format!("/v1/jobs/{his}/retry"), &Value::Null).expect(202).json();
    let again = keyed.get(&keyed.admin, &format!("/v1/jobs/{}", again["job_id"].as_str().unwrap())).json();
    assert_eq!(again["owner"], "root", "{again}");
    keyed.delete(&bob, &format!("/v1/jobs/{his}")).expect(204);
}

#[test]
fn sandboxes_and_their_streams_belong_to_their_creator() {
    let keyed = start(Options::default());
    let (ada, bob) = (keyed.key("ada", "submitter", &json!({})), keyed.key("bob", "submitter", &json!({})));
    let viewer = keyed.key("eve", "viewer", &json!({}));
    let made = keyed.post(&ada, "/v1/sandboxes", &json!({})).expect(201).json();
    let id = made["sandbox_id"].as_str().unwrap();
    keyed
        .post(&bob, &format!("/v1/sandboxes/{id}/exec"), &json!({"command": "true"}))
        .expect_problem(404, "sandbox_not_found");
    keyed
        .post(&viewer, &format!("/v1/sandboxes/{id}/exec"), &json!({"command": "true"}))
        .expect_problem(403, "role_too_weak");
    keyed.post(&ada, &format!("/v1/sandboxes/{id}/exec"), &json!({"command": "true"})).expect(200);
    let open = |key: &str, what: &str| {
        let header = [("authorization", format!("Bearer {key}"))];
        let header = header.each_ref().map(|(name, value)| (*name, value.as_str()));
        Socket::try_open(&keyed.server, &format!("/v1/sandboxes/{id}/{what}"), &header)
            .map_err(|(status, _)| status)
    };
    for what in ["exec/stream", "terminal"] {
        assert_eq!(open(&bob, what).err(), Some(404), "{what}");
        assert_eq!(open(&viewer, what).err(), Some(403), "{what}");
        assert!(open(&ada, what).is_ok(), "{what}");
    }
    assert_eq!(
        Socket::try_open(&keyed.server, &format!("/v1/sandboxes/{id}/terminal"), &[])
            .err()
            .map(|(status, _)| status),
        Some(401)
    );
    keyed.delete(&ada, &format!("/v1/sandboxes/{id}")).expect(204);
    let two = json!({"steps": [shell("true")]});
    let request = |key: &str| {
        keyed.request(key, Method::POST, "/schedule").header("Idempotency-Key", "same").json(&two)
    };
    let (first, second) =
        (keyed.server.send(request(&ada)).expect(202), keyed.server.send(request(&bob)).expect(202));
    assert_ne!(
        first.json()["job_id"],
        second.json()["job_id"],
        "the word of one caller is not that of another"
    );
}
