//! Converts an agent's run to a step job that produces the same workspace. Pure.

use std::collections::{HashMap, HashSet};

use agent::tools::EndedCall;
use agent::{ToolEffect, tool_effect};
use serde_json::{Map, Value, json};

/// The job, and remarks for the user.
pub(crate) struct Exported {
    pub(crate) job: Value,
    pub(crate) remarks: Vec<String>,
}

/// The steps of a run: each call that changed something, in order. Includes failed calls, because they may have
/// changed something too, and may fail again.
pub(crate) fn steps_of(events: &[Value]) -> Exported {
    let spec = &events.first().unwrap_or(&Value::Null)["data"]["spec"];
    let mut remarks = Vec::new();
    let mut steps = Vec::new();
    if let Some(url) = spec["git"]["url"].as_str() {
        let revision = spec["git"]["revision"].as_str().unwrap_or("HEAD");
        let command = format!(
            "git init -q . && git fetch -q {} {} && git checkout -q FETCH_HEAD",
            quote(url),
            quote(revision)
        );
        steps.push(json!({"tool": "shell", "name": "the repository", "command": command}));
    }
    let ends: HashMap<&str, &Value> = events
        .iter()
        .filter(|event| event["kind"] == "call_ended")
        .filter_map(|event| Some((event["call"]["id"].as_str()?, &event["data"])))
        .collect();
    let later = later_ends(events, &ends);
    for event in events.iter().filter(|event| event["kind"] == "call_started") {
        let Some(call) = event["call"]["id"].as_str().filter(|call| call.starts_with("turn-")) else {
            continue;
        };
        let end = ends.get(call).copied().unwrap_or(&Value::Null);
        if matches!(end["code"].as_str(), Some("malformed_call" | "call_not_run")) {
            continue;
        }
        let tool = event["data"]["tool"].as_str().unwrap_or_default();
        // If a command outlived its call and the agent waited for it later, the step waits for it too.
        let end = later.get(call).copied().unwrap_or(end);
        if let Some(path) = event["data"]["input"]["save_as"].as_str() {
            remarks.push(format!(
                "{call}: the screenshot {path} is taken again, but not written into the workspace"
            ));
        }
        if let Some(mut step) = step_of(tool, &event["data"]["input"], end) {
            step.insert("name".into(), json!(call));
            if end["status"] != "succeeded" {
                step.insert("continue_on_error".into(), json!(true));
            }
            steps.push(Value::Object(step));
        } else if tool == "process" {
            if !is_typed(&event["data"]["input"]) {
                continue;
            }
            remarks.push(format!("{call}: input typed into a running process is omitted"));
        } else if !matches!(tool_effect(tool), Some(ToolEffect::None | ToolEffect::Reads)) {
            remarks.push(format!("{call}: no step is equivalent to `{tool}`; the call is omitted"));
        }
    }
    for command in spec["agent"]["acceptance"].as_array().into_iter().flatten() {
        steps.push(json!({"tool": "shell", "name": "acceptance", "command": command}));
    }
    if events.iter().any(|event| event["kind"] == "sandbox_lost") {
        remarks.push("the run lost a sandbox; the steps include calls that were rolled back".into());
    }
    if events.iter().any(|event| event["kind"] == "state_changed" && event["data"]["state"] == "draft") {
        remarks.push("files uploaded with the job are not included; add them again with --file".into());
    }
    if let Some(secrets) =
        spec["egress_settings"]["secrets"].as_object().filter(|secrets| !secrets.is_empty())
    {
        let names: Vec<&str> = secrets.keys().map(String::as_str).collect();
        remarks.push(format!("the job had secrets ({}); add them again as `secrets`", names.join(", ")));
    }
    let mut job = Map::new();
    match &spec["image"] {
        Value::String(name) => drop(job.insert("image".into(), json!(name))),
        Value::Object(image) if image["named"].is_string() => {
            drop(job.insert("image".into(), image["named"].clone()))
        }
        Value::Null => {}
        other => remarks.push(format!("the image {other} cannot be named in a job")),
    }
    let limits = limits_of(spec);
    if !limits.is_empty() {
        job.insert("limits".into(), Value::Object(limits));
    }
    if let Some(desktop) = desktop_of(&spec["desktop"]) {
        job.insert("desktop".into(), desktop);
    }
    job.insert("name".into(), json!("exported from an agent's run"));
    job.insert("egress".into(), spec["egress"].clone());
    if let Some(environment) = spec["environment"].as_object().filter(|map| !map.is_empty()) {
        job.insert("environment".into(), json!(environment));
    }
    job.insert("steps".into(), Value::Array(steps));
    Exported { job: Value::Object(job), remarks }
}

/// The ends of commands that were still running when their call returned, keyed by that call: only of commands that
/// exited on their own while the agent waited for them.
fn later_ends<'a>(events: &'a [Value], ends: &HashMap<&'a str, &'a Value>) -> HashMap<&'a str, &'a Value> {
    let mut later = HashMap::new();
    let mut meddled = HashSet::new();
    for event in
        events.iter().filter(|event| event["kind"] == "call_started" && event["data"]["tool"] == "process")
    {
        let (input, call) = (&event["data"]["input"], event["call"]["id"].as_str().unwrap_or_default());
        let Some(handle) = input["handle"].as_str() else { continue };
        let is_poll = matches!(input["action"].as_str(), Some("poll" | "wait" | "read"));
        if !is_poll {
            meddled.insert(handle);
        }
        if let Some(end) = ends.get(call).filter(|end| end["result"]["process"]["is_running"] == false) {
            later.insert(handle, *end);
        }
    }
    later.retain(|handle, _| !meddled.contains(handle));
    later
}

fn is_typed(input: &Value) -> bool {
    matches!(input["action"].as_str(), Some("type" | "write" | "input"))
}

/// The limits that the job asked for.
fn limits_of(spec: &Value) -> Map<String, Value> {
    let asked = |name: &str| spec["limits"][name]["required"].as_u64();
    let mut limits = Map::new();
    for name in ["memory_mib", "pids", "open_files", "disk_mib"] {
        if let Some(value) = asked(name) {
            limits.insert(name.into(), json!(value));
        }
    }
    if let Some(millis) = asked("cpu_millis").and_then(|millis| u32::try_from(millis).ok()) {
        limits.insert("cpus".into(), json!(f64::from(millis) / 1000.0));
    }
    if let Some(seconds) = spec["wall_clock"]["secs"].as_u64().filter(|seconds| *seconds > 0) {
        limits.insert("wall_clock_s".into(), json!(seconds));
    }
    limits
}

/// The screen size: recorded clicks are only valid on a screen of the same size.
fn desktop_of(screen: &Value) -> Option<Value> {
    let mut desktop = json!({"width": screen["width"].as_u64()?, "height": screen["height"].as_u64()?});
    if !screen["recording"].is_null() {
        desktop["record"] = screen["recording"].clone();
    }
    Some(desktop)
}

fn step_of(tool: &str, input: &Value, end: &Value) -> Option<Map<String, Value>> {
    let end = EndedCall {
        text: end["result"]["text"].as_str().unwrap_or_default(),
        is_running: end["result"]["process"]["is_running"] == true,
    };
    agent::tools::step_of(tool, input, &end)?.as_object().cloned()
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, tool: &str, input: &Value, end: &Value) -> [Value; 2] {
        [
            json!({"kind": "call_started", "call": {"id": id}, "data": {"tool": tool, "input": input}}),
            json!({"kind": "call_ended", "call": {"id": id}, "data": end}),
        ]
    }

    #[test]
    fn only_calls_with_effects_become_steps() {
        let mut events = vec![json!({"kind": "job_created", "data": {"spec": {"egress": "off",
            "agent": {"acceptance": ["make test"]}}}})];
        let good = json!({"status": "succeeded"});
        events.extend(call("turn-1-1", "plan", &json!({"items": []}), &good));
        events.extend(call("turn-2-1", "write_file", &json!({"path": "a", "content": "x"}), &good));
        events.extend(call(
            "turn-3-1",
            "shell",
            &json!({"command": "false"}),
            &json!({"status": "failed", "code": "exit_code"}),
        ));
        events.extend(call(
            "turn-4-1",
            "shell",
            &json!({}),
            &json!({"status": "failed", "code": "malformed_call"}),
        ));
        let running = json!({"status": "succeeded", "result": {"process": {"is_running": true}}});
        events.extend(call("turn-5-1", "shell", &json!({"command": "serve"}), &running));
        let job = steps_of(&events).job;
        assert_eq!(
            job["steps"],
            json!([
                {"tool": "write_file", "path": "a", "content": "x", "name": "turn-2-1"},
                {"tool": "shell", "command": "false", "name": "turn-3-1", "continue_on_error": true},
                {"tool": "shell", "command": "(serve) >/dev/null 2>&1 &", "name": "turn-5-1"},
                {"tool": "shell", "name": "acceptance", "command": "make test"}
            ])
        );
    }

    #[test]
    fn exported_step_waits_for_background_command() {
        let mut events = vec![json!({"kind": "job_created", "data": {"spec": {"egress": "off"}}})];
        let process = |is_running: bool, status: &str| json!({"status": status, "result": {"process": {"is_running": is_running}}});
        let running = process(true, "succeeded");
        let look = |handle: &str, action: &str| json!({"handle": handle, "action": action});
        for (turn, command) in ["make", "false", "serve", "cat", "sleep"].into_iter().enumerate() {
            let id = format!("turn-{}-1", turn + 1);
            events.extend(call(&id, "shell", &json!({"command": command}), &running));
        }
        events.extend(call("turn-6-1", "process", &look("turn-1-1", "poll"), &running));
        events.extend(call("turn-6-2", "process", &look("turn-1-1", "poll"), &process(false, "succeeded")));
        events.extend(call("turn-6-3", "process", &look("turn-2-1", "wait"), &process(false, "failed")));
        events.extend(call("turn-6-4", "process", &look("turn-3-1", "kill"), &process(false, "succeeded")));
        events.extend(call("turn-6-5", "process", &look("turn-4-1", "type"), &process(false, "succeeded")));
        let Exported { job, remarks } = steps_of(&events);
        let background = |command: &str| format!("({command}) >/dev/null 2>&1 &");
        assert_eq!(
            job["steps"],
            json!([
                {"tool": "shell", "command": "make", "name": "turn-1-1"},
                {"tool": "shell", "command": "false", "name": "turn-2-1", "continue_on_error": true},
                {"tool": "shell", "command": background("serve"), "name": "turn-3-1"},
                {"tool": "shell", "command": background("cat"), "name": "turn-4-1"},
                {"tool": "shell", "command": background("sleep"), "name": "turn-5-1"}
            ])
        );
        assert_eq!(remarks, ["turn-6-5: input typed into a running process is omitted"]);
        events.push(json!({"kind": "state_changed", "data": {"state": "draft"}}));
        assert!(steps_of(&events).remarks.iter().any(|remark| remark.contains("--file")));
    }

    #[test]
    fn export_keeps_sandbox_settings_and_skips_calls_that_never_ran() {
        let spec = json!({
            "egress": "off", "image": {"named": "default"}, "wall_clock": {"secs": 600, "nanos": 0},
            "limits": {"memory_mib": {"required": 512}, "cpu_millis": {"required": 1500}, "pids": {"default": 1024}},
            "desktop": {"width": 1024, "height": 768, "recording": null},
            "egress_settings": {"secrets": {"TOKEN": {}}}
        });
        let mut events = vec![json!({"kind": "job_created", "data": {"spec": spec}})];
        let good = json!({"status": "succeeded"});
        let refused = json!({"status": "failed", "code": "call_not_run",
            "reason": "not done: a user must accept your plan first"});
        // The text decides nothing: this command ran and printed it.
        let ran = json!({"status": "failed", "code": "exit_code", "reason": "not done: 3 tests left"});
        events.extend(call("turn-1-1", "shell", &json!({"command": "rm x"}), &refused));
        events.extend(call("turn-1-2", "shell", &json!({"command": "make check"}), &ran));
        events.extend(call("turn-2-1", "typescript", &json!({"code": "1"}), &good));
        events.extend(call("turn-3-1", "hub__send", &json!({}), &good));
        let Exported { job, remarks } = steps_of(&events);
        assert_eq!(
            job,
            json!({
                "name": "exported from an agent's run", "egress": "off", "image": "default",
                "limits": {"memory_mib": 512, "cpus": 1.5, "wall_clock_s": 600},
                "desktop": {"width": 1024, "height": 768},
                "steps": [
                    {"tool": "shell", "command": "make check", "name": "turn-1-2", "continue_on_error": true},
                    {"tool": "typescript", "code": "1", "name": "turn-2-1"}
                ]
            })
        );
        assert!(remarks.iter().any(|remark| remark.contains("`hub__send`")), "{remarks:?}");
        assert!(remarks.iter().any(|remark| remark.contains("TOKEN")), "{remarks:?}");
    }
}
