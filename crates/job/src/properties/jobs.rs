//! Random jobs that the server accepts.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::spec::NewJob;

/// A step job or a task job with any settings.
pub(super) fn job() -> impl Strategy<Value = NewJob> {
    let work = prop_oneof![
        prop::collection::vec(step(), 1..4).prop_map(|steps| json!({"steps": steps})),
        task().prop_map(|settings| json!({"task": "any task", "_": settings})),
    ];
    (work, common()).prop_map(|(mut job, common)| {
        let settings = job.as_object_mut().and_then(|job| job.remove("_")).unwrap_or_default();
        for part in [settings, common] {
            if let (Some(job), Value::Object(part)) = (job.as_object_mut(), part) {
                job.extend(part);
            }
        }
        serde_json::from_value(job.clone()).unwrap_or_else(|error| panic!("{job}: {error}"))
    })
}

/// Settings of any job. Each may be absent.
fn common() -> impl Strategy<Value = Value> {
    let egress = prop_oneof![
        Just(json!("off")),
        Just(json!("packages")),
        Just(json!("open")),
        Just(json!("learn")),
        Just(json!({"allow": ["packages", "example.org:8443", "*.example.net", "10.0.0.0/8"]})),
        Just(json!({"allow": [{"host": "example.org", "methods": ["GET"], "paths": ["/a/*"]}]})),
    ];
    let settings = (
        "[a-z ]{1,20}",
        -100..=100_i32,
        egress,
        prop_oneof![Just("host"), Just("default"), Just("other")],
        prop_oneof![Just("namespaces"), Just("landlock")],
        (64..4096_u64, 1..64_u32, 1..100_000_u64),
        prop::collection::btree_map("[A-Z]{1,5}", "\\PC{0,8}", 0..3),
        prop::collection::btree_map("[a-z]{1,5}", "[a-z]{0,8}", 0..3),
    );
    let values =
        settings.prop_map(|(name, priority, egress, image, isolation, limits, environment, labels)| {
            let (memory, cpus, seconds) = limits;
            json!({
                "name": format!("n{name}"),
                "priority": priority,
                "egress": egress,
                "egress_wait_s": seconds.min(60),
                "network": {"bytes": memory, "connections": seconds},
                "secrets": {"TOKEN": {"hosts": ["api.example.org", "example.org:8443"]}},
                "image": image,
                "isolation": isolation,
                "limits": {"memory_mib": memory, "cpus": f64::from(cpus) / 4.0, "wall_clock_s": seconds},
                "environment": environment,
                "labels": labels,
                "on_loss": "fail",
                "on_kernel_loss": "replay",
                "git": {"url": "https://example.org/a.git", "revision": "main"},
                "desktop": {"width": 1024, "height": 768},
                "start": false
            })
        });
    some_of(values)
}

/// Settings of a task job.
fn task() -> impl Strategy<Value = Value> {
    let values = (1..1000_u64, "[a-z]{1,8}").prop_map(|(number, word)| {
        json!({
            "model": format!("local/{word}"),
            "acceptance": [format!("test -e {word}")],
            "effort": "high",
            "approve_plan": true,
            "approval": "ask",
            "budget": {"turns": number, "money_usd": 1.5, "wall_s": number},
            "mcp": {"box": {"command": ["python3", word], "tools": ["a"]}, "hub": {"url": "https://example.org/mcp"}}
        })
    });
    some_of(values)
}

/// An object with some of the entries of another.
fn some_of(values: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    (values, any::<u32>()).prop_map(|(values, kept)| {
        let Value::Object(values) = values else { return Value::Null };
        let kept = values.into_iter().enumerate().filter(|(index, _)| kept >> (index % 32) & 1 == 1);
        Value::Object(kept.map(|(_, entry)| entry).collect())
    })
}

fn step() -> impl Strategy<Value = Value> {
    let tool = prop_oneof![
        "[a-z ]{1,9}".prop_map(|command| json!({"tool": "shell", "command": format!("echo {command}")})),
        Just(json!({"tool": "python", "code": "x = 1"})),
        Just(json!({"tool": "typescript", "code": "let x = 1"})),
        Just(json!({"tool": "code", "kernel": "python3", "code": "x"})),
        Just(json!({"tool": "write_file", "path": "a/b", "content": "\u{1f9ea}", "mode": "755"})),
        Just(json!({"tool": "edit_file", "path": "a", "old": "b", "new": ""})),
        Just(json!({"tool": "delete_file", "path": "a", "recursive": true})),
        (1..5_u32).prop_map(|depth| json!({"tool": "list_files", "path": "a", "depth": depth})),
        Just(json!({"tool": "gui", "action": "screenshot"})),
        Just(json!({"tool": "browser", "action": "open", "url": "http://127.0.0.1/"})),
    ];
    let options = (1..100_u32, 0..=10_u32, any::<u32>()).prop_map(|(timeout, retry, kept)| {
        let all = json!({
            "name": "a step", "timeout_s": f64::from(timeout) / 8.0, "continue_on_error": true, "retry": retry,
            "expect": {"exit_code": 3, "stdout_contains": "x"}
        });
        (all, kept)
    });
    (tool, options).prop_map(|(mut step, (options, kept))| {
        if let (Some(step), Value::Object(options)) = (step.as_object_mut(), options) {
            let options = options.into_iter().enumerate().filter(|(index, _)| kept >> index & 1 == 1);
            step.extend(options.map(|(_, entry)| entry));
        }
        step
    })
}
