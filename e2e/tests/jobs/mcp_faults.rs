//! Slow, broken and crashed MCP servers: the job continues, the agent is informed, nothing runs twice.

use serde_json::json;

use crate::mcp::{messages_sent, offered, result, server, wait_for_go};
use crate::scripted::{Scripted, call, finish, shell};

#[test]
fn silent_or_exiting_mcp_server_does_not_stop_the_job() {
    let scripted = Scripted::turns(vec![shell("echo worked > made"), finish()]);
    let mut silent = server("silent");
    silent["start_timeout_s"] = json!(1);
    let job = scripted.schedule(&json!({
        "task": "x",
        "mcp": {"silent": silent, "broken": server("broken"), "absent": {"command": ["no-such-program"]}},
    }));
    job.wait_for("complete");
    assert_eq!(job.output().text("made"), "worked\n");
    let told = messages_sent(&scripted, 0);
    for words in [
        "those of the MCP server `silent` are missing, it did not answer the greeting within 1 s",
        "those of the MCP server `broken` are missing, its process ended with exit code 1; it said last: no such luck",
        "those of the MCP server `absent` are missing, its process could not be started",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    scripted.server.assert_nothing_left();
}

#[test]
fn crashed_mcp_server_is_restarted_without_repeating_the_call() {
    let scripted = Scripted::turns(vec![
        call("box__die", json!({})),
        wait_for_go(),
        call("box__good", json!({})),
        shell("cat calls"),
        finish(),
    ]);
    let job = scripted.schedule(&json!({"task": "x", "mcp": {"box": server("plain")}}));
    let mut events = job.follow();
    let failed = events
        .until("the server is gone", |event| event.is("mcp_changed") && event.data()["state"] == "failed");
    let reason = failed.data()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("exit code 3; it said last: good bye"), "{reason}");
    events.until("the server is back", |event| {
        event.is("mcp_changed") && event.data()["state"] == "connected" && event.data()["process"] == 2
    });
    job.touch("go-on");
    events.until_end();
    let died = events.events.iter().find(|event| event.is("call_ended") && event.call() == "turn-1-1.1");
    assert_eq!(died.unwrap().data()["status"], "interrupted");
    assert!(result(&events, "turn-1-1").contains("It is unknown how much of the call was done"));
    assert_eq!(result(&events, "turn-3-1"), "good {}");
    assert!(result(&events, "turn-4-1").starts_with("die\ngood\n"), "{}", result(&events, "turn-4-1"));
}

#[test]
fn mcp_server_noise_on_stdout_is_ignored() {
    let scripted = Scripted::turns(vec![call("box__good", json!({"a": 1})), finish()]);
    let job = scripted.schedule(&json!({"task": "x", "mcp": {"box": server("noise")}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(result(&events, "turn-1-1"), "good {\"a\": 1}", "{}", events.summary());
}

#[test]
fn offered_tools_are_limited_to_the_providers_maximum() {
    let scripted = Scripted::turns(vec![call("box__tool000", json!({})), finish()]);
    let job = scripted.schedule(&json!({"task": "x", "mcp": {"box": server("many")}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["agent"]["mcp"]["box"]["tools"].as_array().unwrap().len(), 200);
    let names = offered(&scripted, 0);
    let of_the_box = names.iter().filter(|name| name.starts_with("box__")).count();
    assert!(names.len() <= 128 && of_the_box > 20, "{of_the_box} of {}", names.len());
    assert!(names.contains(&"shell".to_owned()) && names.contains(&"finish".to_owned()));
    let told = messages_sent(&scripted, 0);
    assert!(told.contains(&format!("{} more tools are left out", 200 - of_the_box)), "{told}");
    assert_eq!(result(&events, "turn-1-1"), "tool000 {}");
}

#[test]
fn mcp_tool_with_a_bad_schema_is_skipped() {
    let scripted = Scripted::turns(vec![call("box__good", json!({})), finish()]);
    let job = scripted.schedule(&json!({"task": "x", "mcp": {"box": server("bad-schema")}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(result(&events, "turn-1-1"), "good {}", "{}", events.summary());
    let left_out = job.status()["agent"]["mcp"]["box"]["left_out"].to_string();
    assert!(left_out.contains("`text`: its schema is not of type object"), "{left_out}");
    assert!(left_out.contains("`list`: its schema is no JSON object"), "{left_out}");
    assert!(left_out.contains("`lost`: its schema refers to `#/$defs/Gone`"), "{left_out}");
    assert!(
        messages_sent(&scripted, 0)
            .contains("MCP server `box`, left out: the tool `text`: its schema is not of type object")
    );
    let tools = scripted.model.requests()[0].body["tools"].as_array().cloned().unwrap_or_default();
    let either = tools.iter().find(|tool| tool["function"]["name"] == "box__either").unwrap();
    let schema = &either["function"]["parameters"];
    assert!(schema["anyOf"].is_null(), "{schema}");
    assert_eq!(schema["properties"]["a"]["items"], json!({"type": "string"}), "{schema}");
}

#[test]
fn pending_mcp_call_survives_a_killed_server() {
    let scripted = Scripted::turns(vec![
        call("box__good", json!({})),
        call("box__slow", json!({})),
        call("box__good", json!({"again": true})),
        shell("cat calls"),
        finish(),
    ]);
    let job = scripted.schedule(&json!({"task": "x", "mcp": {"box": server("plain")}}));
    let mut events = job.follow();
    events.until("the slow call", |event| event.is("call_started") && event.call() == "turn-2-1.1");
    e2e::wait_until("the slow call has begun", || job.get_file("slow-began").status == 200);
    scripted.server.kill9();
    scripted.server.restart();
    job.touch("go-on");
    events.until_end();
    assert_eq!(result(&events, "turn-2-1"), "slow but done", "{}", events.summary());
    assert_eq!(result(&events, "turn-3-1"), "good {\"again\": true}");
    assert!(result(&events, "turn-4-1").starts_with("good\nslow\ngood\n"), "{}", result(&events, "turn-4-1"));
    let started = events.count(|event| event.is("mcp_changed") && event.data()["state"] == "starting");
    assert_eq!(started, 1, "the process was found again: {}", events.summary());
    assert_eq!(job.status()["status"], "complete");
    scripted.server.assert_nothing_left();
}

#[test]
fn mcp_answer_given_while_the_server_was_down_is_found() {
    let scripted = Scripted::turns(vec![call("box__slow", json!({})), shell("cat calls"), finish()]);
    let job = scripted.schedule(&json!({"task": "x", "mcp": {"box": server("plain")}}));
    let mut events = job.follow();
    events.until("the slow call", |event| event.is("call_started") && event.call() == "turn-1-1.1");
    e2e::wait_until("the slow call has begun", || job.get_file("slow-began").status == 200);
    // Only the sandbox is running when the answer is given.
    job.exec("(sleep 1; touch go-on) >/dev/null 2>&1 &").expect(200);
    scripted.server.kill9();
    scripted.server.restart();
    events.until_end();
    assert_eq!(result(&events, "turn-1-1"), "slow but done", "{}", events.summary());
    assert!(result(&events, "turn-2-1").starts_with("slow\n[exit"), "{}", result(&events, "turn-2-1"));
}

#[test]
fn mcp_server_is_restarted_in_a_replacement_sandbox() {
    let scripted = Scripted::turns(vec![
        call("box__good", json!({})),
        call("box__slow", json!({})),
        call("box__good", json!({"again": true})),
        finish(),
    ]);
    let job = scripted.schedule(&json!({"task": "x", "mcp": {"box": server("plain")}}));
    let mut events = job.follow();
    events.until("the slow call", |event| event.is("call_started") && event.call() == "turn-2-1.1");
    e2e::wait_until("the slow call has begun", || job.get_file("slow-began").status == 200);
    scripted.server.newest_sandbox().kill_launcher();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let lost = events.events.iter().find(|event| event.is("call_ended") && event.call() == "turn-2-1.1");
    assert_eq!(lost.unwrap().data()["status"], "interrupted", "{}", events.summary());
    assert_eq!(result(&events, "turn-3-1"), "good {\"again\": true}", "{}", events.summary());
}
