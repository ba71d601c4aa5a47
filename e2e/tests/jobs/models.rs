//! The server's models as API clients see them.

use e2e::{Options, Server};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::scripted::{Scripted, finish, no_model, shell};

#[test]
fn model_list_names_the_default_and_other_models() {
    let scripted = Scripted::turns(vec![finish()]);
    let list = scripted.server.get("/v1/models").expect(200).json();
    let name = list["model"]["name"].as_str().unwrap();
    assert!(name.contains(&scripted.model.address().to_string()), "{list:#}");
    assert!(list["model"]["limits"]["context_tokens"].as_u64().unwrap() > 0, "{list:#}");
    assert_eq!(list["trouble"], json!(null), "{list:#}");
    assert_eq!(list["sources"][0]["models"][0]["name"], name, "{list:#}");
    assert_eq!(list["sources"][0]["models"][0]["price"]["output"], 0.0, "a local model is free: {list:#}");
}

#[test]
fn model_list_reports_a_missing_model_and_hides_keys() {
    let secret = "sk-very-secret-key";
    let key_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key_file.path(), secret).unwrap();
    let config = format!(
        "[model]\nname = \"anthropic/claude-sonnet-5\"\nbase_url = \"http://127.0.0.1:9/v1\"\nkey_file = \"{}\"\nlocal = false\n",
        key_file.path().display()
    );
    let server = Server::start_with(Options { config, ..Options::default() });
    let answer = server.get("/v1/models").expect(200).text();
    assert!(!answer.contains(secret), "{answer}");
    let list: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(list["trouble"]["code"], "model_unreachable", "{list:#}");
    let none = Server::start_with(Options { config: no_model(), ..Options::default() });
    let list = none.get("/v1/models").expect(200).json();
    assert_eq!((&list["model"], &list["trouble"]["code"]), (&json!(null), &json!("no_model")), "{list:#}");
}

#[test]
fn model_discovery_does_not_mistake_the_api_for_a_model_server() {
    let server = Server::start_with(Options { config: no_model(), ..Options::default() });
    let request = server.request(Method::GET, "/v1/models").header("user-agent", "caisson-model/0.1.0");
    assert_eq!(server.send(request).expect(404).json()["code"], "no_model_server");
}

#[test]
fn pause_and_resume_accept_an_empty_body() {
    let scripted = Scripted::turns(vec![
        shell("echo started; until [ -e go ]; do sleep 0.05; done"),
        shell("echo two > two"),
        finish(),
    ]);
    let job = scripted.task("wait");
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    let bare = |verb: &str| {
        let path = format!("/v1/jobs/{}/{verb}", job.id);
        scripted.server.send(scripted.server.request(Method::POST, &path)).expect(202)
    };
    bare("pause");
    job.put_file("go", "").expect(200);
    events.until("paused", |event| event.is_state("paused"));
    bare("resume");
    events.until_end();
    assert_eq!(job.output().text("two"), "two\n");
}

#[test]
fn model_configured_at_runtime_is_used() {
    let server = Server::start_with(Options { config: no_model(), ..Options::default() });
    let answer = server.post("/schedule", &json!({"task": "wait"})).expect(202).json();
    let job = server.job(answer["job_id"].as_str().unwrap());
    assert_eq!(job.status()["detail"], "paused: no_model");
    let script = model::scripted::Script::of(vec![shell("echo made > made"), finish()]);
    let model = model::scripted::ScriptedServer::start_on_thread(script).unwrap();
    let section = crate::scripted::model_section(&format!("http://{}/v1", model.address()));
    std::fs::write(server.folder().join("caisson.toml"), section).unwrap();
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    job.wait_for("complete");
    assert_eq!(job.output().text("made"), "made\n");
}
