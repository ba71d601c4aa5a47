//! Converts an agent's run to a trajectory in the Agent Trajectory Interchange Format. Pure.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

const SCHEMA: &str = "ATIF-v1.4";

/// The trajectory of a run.
pub(crate) fn trajectory_of(id: &str, events: &[Value]) -> Value {
    let results: HashMap<&str, &Value> = events
        .iter()
        .filter(|event| event["kind"] == "call_ended")
        .filter_map(|event| Some((event["call"]["id"].as_str()?, &event["data"]["result"]["text"])))
        .collect();
    let mut steps: Vec<Value> = Vec::new();
    let mut totals = Totals::default();
    let mut model = String::new();
    for event in events {
        let data = &event["data"];
        let step = match event["kind"].as_str().unwrap_or_default() {
            "job_created" => data["spec"]["work"]["task"].as_str().map(|task| words("user", task)),
            "message_received" => data["text"].as_str().map(|text| words("user", text)),
            "agent_notified" => data["text"].as_str().map(|text| words("system", text)),
            "model_answered" => {
                data["answer"]["model"].as_str().unwrap_or_default().clone_into(&mut model);
                Some(answer(&data["answer"], &results, &mut totals))
            }
            _ => None,
        };
        if let Some(mut step) = step {
            step.insert("step_id".into(), json!(steps.len() + 1));
            step.insert("timestamp".into(), json!(job::format_time(event["time_ms"].as_i64().unwrap_or(0))));
            steps.push(Value::Object(step));
        }
    }
    json!({
        "schema_version": SCHEMA,
        "session_id": id,
        "agent": {"name": "caisson", "version": env!("CARGO_PKG_VERSION"), "model_name": model},
        "final_metrics": {
            "total_prompt_tokens": totals.prompt,
            "total_completion_tokens": totals.completion,
            "total_cached_tokens": totals.cached,
            "total_cost_usd": totals.cost_usd,
            "total_steps": steps.len(),
        },
        "steps": steps,
    })
}

#[derive(Default)]
struct Totals {
    prompt: u64,
    completion: u64,
    cached: u64,
    cost_usd: f64,
}

fn words(source: &str, text: &str) -> Map<String, Value> {
    let mut step = Map::new();
    step.insert("source".into(), json!(source));
    step.insert("message".into(), json!(text));
    step
}

fn answer(answer: &Value, results: &HashMap<&str, &Value>, totals: &mut Totals) -> Map<String, Value> {
    let mut step = words("agent", &super::watch::progress_agent::text_of_answer(&answer["parts"]));
    step.insert("model_name".into(), answer["model"].clone());
    let parts = || answer["parts"].as_array().into_iter().flatten();
    let thought: Vec<&str> = parts().filter_map(|part| part["reasoning"]["text"].as_str()).collect();
    if !thought.is_empty() {
        step.insert("reasoning_content".into(), json!(thought.join("\n")));
    }
    let calls: Vec<&Value> = parts().map(|part| &part["tool_call"]).filter(|call| call.is_object()).collect();
    if !calls.is_empty() {
        let list: Vec<Value> = calls
            .iter()
            .map(|call| json!({"tool_call_id": call["id"], "function_name": call["name"], "arguments": call["arguments"]}))
            .collect();
        let observed: Vec<Value> = calls
            .iter()
            .filter_map(|call| {
                let id = call["id"].as_str()?;
                Some(json!({"source_call_id": id, "content": results.get(id)?}))
            })
            .collect();
        step.insert("tool_calls".into(), Value::Array(list));
        step.insert("observation".into(), json!({ "results": observed }));
    }
    let usage = |name: &str| answer["usage"][name].as_u64().unwrap_or(0);
    let prompt = usage("input") + usage("cached_input") + usage("cache_write");
    #[expect(clippy::cast_precision_loss, reason = "money for people")]
    let cost = answer["cost"].as_u64().unwrap_or(0) as f64 / 1e9;
    totals.prompt += prompt;
    totals.completion += usage("output");
    totals.cached += usage("cached_input");
    totals.cost_usd += cost;
    step.insert(
        "metrics".into(),
        json!({
            "prompt_tokens": prompt, "completion_tokens": usage("output"),
            "cached_tokens": usage("cached_input"), "cost_usd": cost
        }),
    );
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_becomes_a_trajectory_with_calls_observations_and_figures() {
        let events = [
            json!({"kind": "job_created", "time_ms": 0, "data": {"spec": {"work": {"task": "do it"}}}}),
            json!({"kind": "model_answered", "time_ms": 1000, "data": {"answer": {
                "parts": [{"text": "I will."}, {"tool_call": {"id": "turn-1-1", "name": "shell", "arguments": {"command": "ls"}}}],
                "model": "openai/x", "usage": {"input": 10, "cached_input": 5, "output": 3}, "cost": 2_000_000_000_u64}}}),
            json!({"kind": "call_ended", "call": {"id": "turn-1-1"}, "data": {"result": {"text": "a.txt"}}}),
        ];
        let trajectory = trajectory_of("job", &events);
        assert_eq!(
            trajectory["steps"][0],
            json!({"step_id": 1, "source": "user", "message": "do it", "timestamp": "1970-01-01T00:00:00Z"})
        );
        let step = &trajectory["steps"][1];
        assert_eq!(step["tool_calls"][0]["function_name"], "shell");
        assert_eq!(
            step["observation"]["results"][0],
            json!({"source_call_id": "turn-1-1", "content": "a.txt"})
        );
        assert_eq!(trajectory["final_metrics"]["total_prompt_tokens"], 15);
        assert_eq!(trajectory["final_metrics"]["total_cost_usd"], 2.0);
    }
}
