//! The choice of a server's model: `caisson models set`, `test` and `unset`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use e2e::{Options, Server};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

use crate::cli_command::{command, finish, run_cli_with_input, typed};

const KEY: &str = "sk-very-secret-0123456789";

#[test]
fn chosen_model_starts_waiting_jobs_and_its_key_is_never_shown() {
    let finished = ScriptedAnswer::calls(&[("finish", json!({"summary": "done"}))]);
    let script = Script { order: Order::Turns, ..Script::of(vec![finished]) };
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let url = format!("http://{}/v1", model.address());
    let config = "[model]\nlocal = false\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "wait for a model"}));
    let with_key = |action: &str| {
        run_cli_with_input(&server, &["models", action, "--base-url", &url, "--model-key-stdin"], KEY)
    };

    let unreachable = typed(&server, &["models", "test", "--base-url", "http://127.0.0.1:9/v1"]).expect(1);
    assert!(unreachable.stdout.contains("(model_unreachable)"), "{}", unreachable.stdout);
    let tested = with_key("test").expect(0);
    assert!(tested.stdout.contains("answers"), "{}", tested.stdout);
    assert_eq!(job.status()["detail"], "paused: no_model", "a test stores nothing");
    let set = with_key("set").expect(0);
    job.wait_for("complete");
    let expected = format!("Bearer {KEY}");
    let requests = model.requests();
    assert!(requests.iter().all(|request| request.header("authorization") == Some(expected.as_str())));

    // The choice survives a restart, in a file of the server's user.
    server.kill9();
    server.restart();
    let survey = server.get("/v1/models").expect(200).json();
    assert_eq!(survey["origin"], "chosen", "{survey:#}");
    assert_eq!(survey["choice"], json!({"provider": null, "model": null, "base_url": url, "has_key": true}));
    let file = server.data().join("model.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    typed(&server, &["models", "test"]).expect(0);

    let log = server.get("/v1/access-log").expect(200).text();
    assert!(log.contains("/v1/models/choice"), "{log}");
    let events = job.get("events?format=json").expect(200).text();
    for shown in [survey.to_string(), log, events, server.log(), tested.stdout, set.stdout, set.stderr] {
        assert!(!shown.contains(KEY), "{shown}");
    }
    let (data, restored) = (server.data(), server.folder().join("restored"));
    let on_folder = |words: &[&str], folder: &Path| {
        let words: Vec<&str> = words.iter().copied().chain(["--data", folder.to_str().unwrap()]).collect();
        finish(command(server.folder(), &words), "").expect(0);
    };
    on_folder(&["backup", "backup.tar.zst"], &data);
    on_folder(&["restore", "backup.tar.zst"], &restored);
    assert!(restored.join("caisson.db").is_file() && !restored.join("model.json").exists());

    typed(&server, &["models", "unset"]).expect(0);
    let survey = server.get("/v1/models").expect(200).json();
    assert_eq!((&survey["model"], &survey["choice"]), (&Value::Null, &Value::Null), "{survey:#}");
    assert!(!file.exists());
}

#[test]
fn choice_is_refused_while_file_or_environment_name_a_model() {
    let url = "http://127.0.0.1:9/v1";
    let in_file = Options { config: format!("[model]\nname = \"{url}\"\n"), ..Options::default() };
    let in_environment =
        Options { environment: vec![("CAISSON_MODEL", url.to_owned())], ..Options::default() };
    for (options, origin, named) in
        [(in_file, "file", "caisson.toml"), (in_environment, "environment", "CAISSON_MODEL")]
    {
        let server = Server::start_with(options);
        let refused = typed(&server, &["models", "set", "--model", "ollama/qwen3"]);
        refused.expect_message(2, &["model_configured", named]);
        assert_eq!(server.get("/v1/models").expect(200).json()["origin"], origin);
        assert!(!server.data().join("model.json").exists());
    }
}
