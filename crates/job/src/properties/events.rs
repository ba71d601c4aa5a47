//! Random logs: events of every kind in any order, with values that no honest driver would write.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};
use strum::VariantArray;

use super::jobs::job;
use crate::event::{CallRef, Event, EventBody, EventKind};
use crate::spec::JobDefaults;

/// How many kinds [`body`] knows: all but `job_created`.
const KINDS: usize = EventKind::VARIANTS.len() - 1;
const STATES: [&str; 9] =
    ["draft", "queued", "starting", "running", "paused", "collecting", "complete", "failed", "cancelled"];

/// The values that an event is made of.
#[derive(Debug, Clone)]
struct Values {
    a: String,
    b: String,
    count: u64,
    time_ms: i64,
    small: usize,
    flag: bool,
    any: Value,
}

/// A log that begins with the creation of its job.
pub(super) fn log() -> impl Strategy<Value = Vec<Event>> {
    let event = (0..KINDS, values(), call(), any::<bool>(), any::<i64>());
    (job(), prop::collection::vec(event, 0..40)).prop_map(|(job, events)| {
        let spec = Box::new(job.check(&JobDefaults::default()).unwrap());
        let created =
            Event { sequence: 1, time_ms: 0, call: None, actor: None, body: EventBody::JobCreated { spec } };
        let rest = events.into_iter().zip(2..).map(|((kind, values, call, has_actor, time_ms), sequence)| {
            let actor = has_actor.then(|| json!({"name": values.a, "key": values.b}));
            let actor = actor.map(|actor| serde_json::from_value(actor).unwrap());
            let text = body(kind, &values);
            let body = serde_json::from_value(text.clone()).unwrap_or_else(|error| panic!("{text}: {error}"));
            Event { sequence, time_ms, call, actor, body }
        });
        std::iter::once(created).chain(rest).collect()
    })
}

fn values() -> impl Strategy<Value = Values> {
    let text = || prop_oneof!["[a-z0-9./-]{0,6}", "\\PC{0,4}"];
    let count = prop_oneof![0..100_u64, any::<u64>()];
    (text(), text(), count, any::<i64>(), 0..9_usize, any::<bool>(), value()).prop_map(
        |(a, b, count, time_ms, small, flag, any)| Values { a, b, count, time_ms, small, flag, any },
    )
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

/// Calls of steps that exist and of those that do not, of the agent, and of others.
fn call() -> impl Strategy<Value = Option<CallRef>> {
    let id = prop_oneof![
        Just("step-1".to_owned()),
        Just("step-2".to_owned()),
        Just("turn-1-1".to_owned()),
        Just("turn-2-1".to_owned()),
        prop_oneof![Just("step-0"), Just("step-18446744073709551616"), Just("")].prop_map(str::to_owned),
    ];
    prop::option::of((id, 1..4_u32).prop_map(|(id, attempt)| CallRef { id, attempt }))
}

fn pick<const N: usize>(words: [&'static str; N], number: usize) -> &'static str {
    words[number % N]
}

/// An event of a kind, as JSON.
fn body(kind: usize, values: &Values) -> Value {
    let Values { a, b, count, time_ms, small, flag, any } = values;
    let sandbox = format!("01890000-0000-7000-8000-00000000000{small}");
    let plan = json!({"items": [{"text": a, "status": pick(["pending", "in_progress", "done", "skipped"], *small)}]});
    let usage =
        json!({"input": count, "cached_input": count, "cache_write": small, "output": count, "reasoning": 0});
    let end_reasons =
        ["out_of_memory", "lost", "evicted", "preempted", "host_lost", "not_started", "workspace_damaged"];
    let (kind, data) = match kind {
        0 => ("state_changed", json!({"state": STATES[small % 9], "code": a, "reason": b})),
        1 => ("control_requested", json!({"request": pick(["cancel", "pause", "resume"], *small)})),
        2 => ("idle_timeout_changed", json!({"idle_ms": time_ms})),
        3 => ("sandbox_requested", json!({"sandbox": sandbox})),
        4 => {
            let unenforced =
                json!([{"limit": pick(["memory", "cpu", "pids", "open_files", "disk"], *small), "why": b}]);
            ("sandbox_ready", json!({"sandbox": sandbox, "boot_id": a, "unenforced": unenforced}))
        }
        5 => {
            let kernel =
                json!({"name": a, "language": b, "cells": small, "variables": [a], "more_variables": small});
            let (reason, kernels) = (end_reasons[small % 7], json!([kernel]));
            (
                "sandbox_lost",
                json!({"sandbox": sandbox, "reason": reason, "detail": b, "steps_kept": small, "kernels": kernels}),
            )
        }
        6 => ("sandbox_paused", json!({"sandbox": sandbox, "code": a, "reason": b})),
        7 => ("sandbox_resumed", json!({"sandbox": sandbox})),
        8 => {
            let tool = ["shell", "python", "typescript", "code", a][small % 5];
            ("call_started", json!({"step": flag.then_some(small), "tool": tool, "input": any}))
        }
        9 => {
            let held = small % 3;
            (
                "call_output",
                json!({"stream": "stdout", "next_chunk": count, "text": a, "base64": flag, "held_bytes": held}),
            )
        }
        10 => ("call_output_dropped", json!({"bytes": count, "next_chunk": count})),
        11 => {
            let error = flag.then(|| json!({"name": a, "message": b, "traceback": [a, b]}));
            let display = pick(["result", "data", "update", "clear", "error"], *small);
            let data = json!({"text/plain": any});
            (
                "call_display",
                json!({"display": display, "text": a, "data": data, "error": error, "next_chunk": count}),
            )
        }
        12 => {
            let kernel =
                flag.then(|| json!({"name": "python3", "language": "python", "life": count, "alive": flag}));
            let status = pick(["succeeded", "failed", "interrupted"], *small);
            let mut end =
                json!({"status": status, "exit_code": small, "code": a, "reason": b, "duration_ms": count});
            end["output_bytes"] = json!(count);
            end["result"] = json!({"value": any});
            end["kernel"] = json!(kernel);
            ("call_ended", end)
        }
        13 => ("checkpoint", json!({"steps": small, "bytes": count})),
        14 => ("egress", connection(values)),
        15 => {
            let source = if *flag { "workspace" } else { "checkpoint" };
            (
                "artifact_stored",
                json!({"name": a, "bytes": count, "files": count, "sha256": b, "source": source}),
            )
        }
        16 => ("note", json!({"text": a})),
        17 => ("turn_started", json!({"turn": count, "model": a, "prompt_tokens": small, "status": b})),
        18 => {
            let answer = json!({
                "parts": [{"text": a}], "stop_reason": "end", "usage": usage, "lost": usage, "model": b,
                "cost": flag.then_some(count)
            });
            (
                "model_answered",
                json!({"turn": count, "answer": answer, "duration_ms": count, "recorded": flag}),
            )
        }
        19 => ("plan_changed", json!({"plan": plan, "by": if *flag { "agent" } else { "person" }})),
        20 => ("note_saved", json!({"name": a, "text": b})),
        21 => ("message_received", json!({"text": a})),
        22 => {
            let question = json!({"host": a, "port": 443, "rule": b, "code": a, "reason": b});
            let kind = pick(["question", "plan", "command", "egress"], *small);
            let mut request =
                json!({"id": format!("r{}", small % 3), "kind": kind, "call": a, "text": b, "plan": plan});
            request["egress"] = if kind == "egress" { question } else { Value::Null };
            request["deadline_ms"] = json!(time_ms);
            ("input_requested", request)
        }
        23 => {
            let scope = if small % 2 == 0 { "once" } else { "rest" };
            let answer = json!({"accept": flag, "text": a, "scope": scope});
            ("input_answered", json!({"id": format!("r{}", small % 3), "answer": flag.then_some(answer)}))
        }
        24 => ("budget_changed", json!({"budget": {"tokens": count, "turns": small, "money_usd": 0.25}})),
        25 => {
            let code = pick(["nudge", "sandbox_lost", "handed_back", "instructions", "environment"], *small);
            ("agent_notified", json!({"code": code, "text": a}))
        }
        26 => ("context_changed", context(values)),
        27 => {
            let cost = flag.then_some(count);
            (
                "model_answer_lost",
                json!({"turn": count, "model": a, "usage": usage, "cost": cost, "problem": b}),
            )
        }
        28 => {
            let mut made = json!({"range": {"first": small, "last": count}, "input_hash": a, "model": b, "usage": usage});
            made["duration_ms"] = json!(count);
            made["abandoned"] = json!(flag);
            ("summary_created", made)
        }
        29 => ("agent_finished", json!({"outcome": if *flag { "done" } else { "failed" }, "summary": a})),
        30 => ("taken_over", json!({"by": a, "lock": b})),
        31 => ("handed_back", json!({"by": a})),
        32 => {
            let state = pick(["starting", "connected", "failed", "given_up"], *small);
            (
                "mcp_changed",
                json!({"server": a, "state": state, "process": small, "tools": [b], "left_out": [a], "reason": b}),
            )
        }
        33 => {
            let files = json!([{"path": a, "size": count, "content": b}, {"path": b, "removed": true}]);
            ("files_changed", json!({"whole": flag, "seen_after": small, "files": files, "left_out": count}))
        }
        34 => ("time_limit_changed", json!({"before_ms": time_ms, "after_ms": time_ms})),
        35 => ("screen_captured", json!({"screenshot": any})),
        36 => {
            let what = pick(["file_put", "file_moved", "stdin_given", "kernel_restarted"], *small);
            ("user_action", json!({"what": what, "path": a, "to": b, "name": "python3", "bytes": count}))
        }
        37 => ("audit_file_stored", json!({"name": a, "bytes": count, "sha256": b})),
        _ => ("payload_dropped", json!({"kind": a})),
    };
    json!({"kind": kind, "data": data})
}

fn connection(values: &Values) -> Value {
    let Values { a, b, count, small, flag, .. } = values;
    if small % 4 == 3 {
        return json!({
            "event": "fetched", "connection": count, "time_ms": count, "call": a, "method": "GET", "url": b, "status": 200,
            "bytes": count, "secrets": [a], "rule": format!("once:{b}")
        });
    }
    let verdict = pick(["allowed", "refused", "failed"], *small);
    json!({
        "event": pick(["opened", "closed", "refused"], *small), "id": count, "time_ms": count, "call": a, "method": "CONNECT",
        "host": b, "port": small, "address": flag.then_some("192.0.2.1"), "bytes_up": count, "bytes_down": count,
        "duration_ms": count, "verdict": verdict, "code": flag.then_some("resolve_failed"), "rule": format!("once:{b}"),
        "reason": a, "repeated": small
    })
}

fn context(values: &Values) -> Value {
    let Values { a, b, count, small, any, .. } = values;
    match small {
        0 => json!({"kind": "user", "text": a}),
        1 => json!({"kind": "assistant", "reasoning": [any], "text": a, "calls": []}),
        2 => json!({"kind": "plan", "text": a}),
        3 => json!({"kind": "note", "name": a, "text": b}),
        4 => json!({"kind": "correction", "factor": 900}),
        5 => json!({"kind": "tighten", "limit_tokens": small}),
        6 => json!({"kind": "map", "text": a}),
        7 => {
            let range = json!({"first": small, "last": count});
            json!({"kind": "summary", "range": range, "level": 1, "text": a, "input_hash": b, "prompt_version": 1})
        }
        _ => json!({
            "kind": "window", "model": a, "budget_tokens": small, "system": b, "system_tokens": small, "tools": [any],
            "tools_tokens": small
        }),
    }
}

#[test]
fn every_kind_is_made() {
    let text = || "a".to_owned();
    let values =
        Values { a: text(), b: text(), count: 1, time_ms: 1, small: 1, flag: true, any: Value::Null };
    let kinds: BTreeSet<String> = (0..KINDS).map(|kind| body(kind, &values)["kind"].to_string()).collect();
    assert_eq!(kinds.len(), KINDS);
}
