//! The CLI commands around agents, and the demonstration.

use e2e::{Archive, Options, Server, wait_until};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

use crate::cli_command::{command, finish, run_cli_with_input, typed};

fn server_of(answers: Vec<ScriptedAnswer>) -> (Server, ScriptedServer) {
    let script = Script { order: Order::Turns, ..Script::of(answers) };
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let config = format!("[model]\nname = \"http://{}/v1\"\n", model.address());
    (Server::start_with(Options { config, ..Options::default() }), model)
}

fn call(name: &str, arguments: Value) -> ScriptedAnswer {
    ScriptedAnswer::calls(&[(name, arguments)])
}

/// Patches one file twice, with wrong line numbers and inexact white space: `patch` would reject it.
const PATCH: &str = "--- a/sub/c.txt\n+++ b/sub/c.txt\n@@ -70,2 +70,2 @@\n a\n-b\n+B \u{1F600}'\"\n\
    --- a/sub/c.txt\n+++ b/sub/c.txt\n@@ -4 +4,2 @@\n d\n+e\n--- /dev/null\n+++ b/new/d.txt\n@@ -0,0 +1 @@\n+new\n";

#[test]
fn agent_run_can_be_replayed_and_exported_as_equivalent_steps() {
    let (server, _model) = server_of(vec![
        call("plan", json!({"items": ["make it"]})),
        call("write_file", json!({"path": "a.txt", "content": "one\n"})),
        call("shell", json!({"command": "cat a.txt > b.txt; exit 3"})),
        call("edit_file", json!({"path": "a.txt", "old": "one", "new": "two"})),
        call("shell", json!({"command": "sleep 2; echo built > built.txt", "wait_s": 0.1})),
        call("process", json!({"handle": "turn-5-1", "action": "poll", "wait_s": 60})),
        call("shell", json!({"command": "cp built.txt copy.txt"})),
        call("write_file", json!({"path": "sub/c.txt", "content": "a \n  b\nc\nd\n"})),
        call("apply_patch", json!({"patch": PATCH})),
        ScriptedAnswer::calls(&[
            ("plan", json!({"items": [{"text": "make it", "status": "done"}]})),
            ("finish", json!({"summary": "made"})),
        ]),
    ]);
    let ran = typed(&server, &["run", "make files", "--out", "first"]).expect(0);
    assert!(
        ran.stdout.contains("> write_file a.txt") && ran.stdout.contains("finished: made"),
        "{}",
        ran.stdout
    );
    let id = ran.stdout.lines().next().unwrap().strip_prefix("job ").unwrap().to_owned();
    let replayed = typed(&server, &["replay", &id, "--speed", "0"]).expect(0);
    assert!(
        replayed.stdout.contains("[ ] make it") && replayed.stdout.ends_with("complete\n"),
        "{}",
        replayed.stdout
    );
    let steps = typed(&server, &["export", &id, "--steps"]).expect(0);
    run_cli_with_input(&server, &["run", "--steps", "-", "--out", "second"], &steps.stdout).expect(0);
    let files = |folder: &str| {
        let folder = server.folder().join(folder);
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        ["a.txt", "b.txt", "copy.txt", "sub/c.txt", "new/d.txt"].map(read)
    };
    assert_eq!(files("first"), ["two\n", "one\n", "built\n", "a\nB \u{1F600}'\"\nc\nd\ne\n", "new\n"]);
    assert!(!steps.stderr.contains("typed into"), "{}", steps.stderr);
    assert_eq!(files("second"), files("first"));
    let trajectory = typed(&server, &["export", &id, "--atif"]).expect(0);
    let trajectory: Value = serde_json::from_str(&trajectory.stdout).unwrap();
    assert_eq!(trajectory["steps"][0]["message"], "make files");
    // The task, what the agent learns about its sandbox, the plan.
    assert_eq!(trajectory["steps"][3]["tool_calls"][0]["function_name"], "write_file");
    assert_eq!(trajectory["final_metrics"]["total_steps"], 12);
}

#[test]
fn cli_shows_and_answers_a_question() {
    let (server, _model) = server_of(vec![
        call("ask_user", json!({"question": "Which colour?", "options": ["red"]})),
        call("finish", json!({"summary": "asked"})),
    ]);
    let id = typed(&server, &["run", "--detach", "ask me"]).expect(0).stdout.trim().to_owned();
    wait_until("it asks", || server.job(&id).status()["detail"] == "paused: question");
    let requests = typed(&server, &["requests", &id]).expect(0).stdout;
    assert!(
        requests.contains("request-1 (question): Which colour?") && requests.contains("- red"),
        "{requests}"
    );
    let inbox = typed(&server, &["requests"]).expect(0).stdout;
    assert_eq!(inbox, format!("job {id}  ask me\n{requests}"));
    let inbox = typed(&server, &["requests", "--json"]).expect(0).json();
    assert_eq!(
        (&inbox["requests"][0]["job_id"], &inbox["requests"][0]["id"]),
        (&json!(id), &json!("request-1"))
    );
    typed(&server, &["answer", &id, "request-1"]).expect(2);
    typed(&server, &["answer", &id, "request-1", "red"]).expect(0);
    server.job(&id).wait_for("complete");
    typed(&server, &["requests"]).expect_message(0, &["no open requests"]);
}

#[test]
fn cli_prints_the_model_context_with_costs_at_any_event() {
    let (server, _model) = server_of(vec![
        call("shell", json!({"command": "echo hello"})),
        call("finish", json!({"summary": "done"})),
    ]);
    let id = typed(&server, &["run", "--detach", "say hello"]).expect(0).stdout.trim().to_owned();
    server.job(&id).wait_for("complete");
    let shown = typed(&server, &["context", &id]).expect(0).stdout;
    for part in ["context at e", " tokens in ", "begins with", "=== task e1, ", "say hello", "echo hello"] {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }
    let json = typed(&server, &["context", &id, "--json"]).expect(0).stdout;
    let view: Value = serde_json::from_str(&json).unwrap();
    let at = view["at"].as_u64().unwrap();
    let same = typed(&server, &["context", &id, "--at", &format!("e{at}"), "--json"]).expect(0).stdout;
    assert_eq!(same, json);
    let wrong = typed(&server, &["context", &id, "--at", "tomorrow"]).expect(2).stderr;
    assert!(wrong.contains("`tomorrow` is not an event"), "{wrong}");
    let far = typed(&server, &["context", &id, "--at", "99999"]).expect(2).stderr;
    assert!(far.contains("no event 99999; the events are 1 to"), "{far}");
}

#[test]
fn demo_runs_on_the_given_server() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let mut demo = command(folder.path(), &["demo", "--url", &server.url("")]);
    let demo = demo.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut id = String::new();
    e2e::wait_until("the server has the job", || {
        let jobs = server.get("/v1/jobs").expect(200).json();
        id = jobs["jobs"][0]["job_id"].as_str().unwrap_or_default().to_owned();
        jobs["jobs"][0]["name"] == "demo"
    });
    typed(&server, &["cancel", &id]).expect(0);
    let said = demo.wait_with_output().unwrap();
    assert_eq!(said.status.code(), Some(3));
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains(&server.url(&format!("/#/jobs/{id}"))), "where to look is said: {said}");
}

#[test]
fn demo_builds_a_react_app_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = finish(command(folder.path(), &["demo", "--out", "result"]), "").expect(0);
    assert!(outcome.stdout.contains("agent (recorded):"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("CAISSON_MODEL"), "how to name a model is said: {}", outcome.stderr);
    let mut zip = Archive::open(std::fs::read(folder.path().join("result/output.zip")).unwrap());
    assert!(zip.text("dist/index.html").contains("<div id=\"root\">"));
    assert!(zip.names().iter().any(|name| name.starts_with("dist/assets/") && name.ends_with(".js")));
    assert!(zip.text("src/App.jsx").contains("useState"));
}
