//! What the model of a job saw: shown by the API and the CLI, the same after a restart.

use model::scripted::ScriptedAnswer;
use serde_json::{Value, json};

use crate::scripted::{Scripted, call, finish, shell};

fn answers() -> Vec<ScriptedAnswer> {
    vec![
        call("plan", json!({"items": [{"text": "look around", "status": "in_progress"}]})),
        shell("echo the port is 8417; seq 1 300"),
        call("notes", json!({"name": "port", "text": "8417"})),
        // Until the test cancels the job.
        call("shell", json!({"command": "sleep 3600; echo rested", "wait_s": 3600})),
        finish(),
    ]
}

/// What the model was actually sent at one of its turns: all texts concatenated.
fn sent(scripted: &Scripted, turn: usize) -> String {
    let body = &scripted.model.requests()[turn - 1].body;
    let messages = body["messages"].as_array().unwrap();
    let text = |content: &Value| match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    };
    messages.iter().map(|message| text(&message["content"]) + "\n").collect()
}

#[test]
fn model_context_with_costs_survives_a_killed_server() {
    let scripted = Scripted::turns(answers());
    let job = scripted.task("Find the port");
    let mut events = job.follow();
    let asked = events.until("turn 4", |event| event.is("turn_started") && event.data()["turn"] == 4);
    events.until("the long command", |event| event.is("call_started") && event.call() == "turn-4-1.1");
    let at = format!("context?at={}", asked.sequence);
    let before = job.get(&at).expect(200).text();
    let newest = format!("context?at={}", events.last_sequence());
    let before_newest = job.get(&newest).expect(200).text();
    scripted.server.kill9();
    scripted.server.restart();
    assert_eq!(job.get(&at).expect(200).text(), before, "the same bytes after a restart");
    assert_eq!(job.get(&newest).expect(200).text(), before_newest);

    let view: Value = serde_json::from_str(&before).unwrap();
    assert_eq!((&view["asked"], &view["at"]), (&json!(true), &json!(asked.sequence)));
    let segments = view["segments"].as_array().unwrap();
    let sum: u64 = segments.iter().map(|segment| segment["tokens"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), view["tokens"].as_u64());
    assert_eq!(asked.data()["prompt_tokens"], view["tokens"], "it is what was sent");
    let kinds: Vec<&str> = segments.iter().map(|segment| segment["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["system", "tools", "task"]);
    assert_eq!(*kinds.last().unwrap(), "volatile");
    // Every segment appears verbatim in the request that was sent.
    let sent = sent(&scripted, 4);
    for segment in
        segments.iter().filter(|segment| !["tools", "raw"].contains(&segment["kind"].as_str().unwrap()))
    {
        let text = segment["text"].as_str().unwrap();
        assert!(sent.contains(text), "{text}\n--- is not in ---\n{sent}");
    }
    let task = &segments[2];
    assert_eq!((&task["covers"], &task["events"]), (&json!("e1"), &json!({"first": 1, "last": 1})));
    // Everything is still in view, so there is nothing to search.
    let tools = segments[1]["text"].as_str().unwrap();
    assert!(tools.contains("write_file") && !tools.contains("history_search"), "{tools}");

    let table = job.get(&format!("{at}&format=text")).expect(200).text();
    assert!(table.starts_with(&format!("context at e{}: ", asked.sequence)), "{table}");
    assert!(table.contains("=== task e1, "), "{table}");
    job.get("context?at=100000").expect_problem(404, "event_not_found");
    let none = job.get("context?at=0").expect_problem(404, "event_not_found");
    assert!(!none.to_string().contains("1 to 0"), "{none}");
    job.get("context?at=yesterday").expect_problem(400, "invalid_query");
    job.get("context?format=xml").expect_problem(400, "invalid_query");
    job.get("context?at=1").expect_problem(404, "no_context");
    job.cancel().expect(202);
    events.until_end();
}

#[test]
fn a_job_without_a_model_has_no_context() {
    let server = e2e::Server::start();
    let job = server.schedule_steps(&[e2e::shell("true")]);
    job.wait_for("complete");
    job.get("context").expect_problem(404, "no_context");
}
