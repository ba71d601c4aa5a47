//! How an agent's events are displayed, a line or a few each.

use serde_json::Value;

/// A line and its colour; `None` for events that are not shown.
pub(crate) fn describe(kind: &str, data: &Value) -> Option<(&'static str, String)> {
    Some(match kind {
        "model_answered" => {
            let answer = text_of_answer(&data["answer"]["parts"]);
            if answer.is_empty() {
                return None;
            }
            let mark = if data["recorded"] == true { " (recorded)" } else { "" };
            ("36", format!("agent{mark}: {answer}"))
        }
        "plan_changed" => ("35", plan(&data["plan"]["items"])),
        "message_received" => ("1", format!("you: {}", text(&data["text"]))),
        "input_requested" => {
            let command =
                data["command"].as_str().map(|command| format!("\n  $ {command}")).unwrap_or_default();
            let line =
                format!("waiting for an answer ({}): {}{command}", text(&data["id"]), text(&data["text"]));
            ("33", line)
        }
        "input_answered" if data["answer"].is_null() => {
            ("33", format!("{}: not answered in time", text(&data["id"])))
        }
        // Every job has this notice, and users know the sandbox that they asked for.
        "agent_notified" if data["code"] == "environment" => return None,
        "agent_notified" => ("2", text(&data["text"]).lines().next().unwrap_or_default().to_owned()),
        "mcp_changed" => ("2", mcp(data)?),
        "agent_finished" => ("32", format!("finished: {}", text(&data["summary"]))),
        "taken_over" => ("33", format!("{} took over the sandbox", text(&data["by"]))),
        "handed_back" => ("33", format!("{} handed the sandbox back", text(&data["by"]))),
        "state_changed" if data["state"] == "paused" => {
            ("33", format!("paused ({}): {}", text(&data["code"]), text(&data["reason"])))
        }
        _ => return None,
    })
}

/// A line about an MCP server.
fn mcp(data: &Value) -> Option<String> {
    let name = text(&data["server"]);
    match data["state"].as_str() {
        Some("connected") => {
            let count = data["tools"].as_array().map_or(0, Vec::len);
            Some(format!("mcp server {name}: {count} tools"))
        }
        Some("failed" | "given_up") => Some(format!("mcp server {name}: {}", text(&data["reason"]))),
        _ => None,
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The text of an answer, without the model's reasoning.
pub(crate) fn text_of_answer(parts: &Value) -> String {
    let words = parts.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
    words.collect::<Vec<_>>().join("\n").trim().to_owned()
}

fn plan(items: &Value) -> String {
    let mut lines = vec!["plan:".to_owned()];
    for item in items.as_array().into_iter().flatten() {
        let mark = match item["status"].as_str() {
            Some("done") => "[x]",
            Some("in_progress") => "[>]",
            Some("skipped") => "[-]",
            _ => "[ ]",
        };
        lines.push(format!("  {mark} {}", text(&item["text"])));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_plans_and_requests_are_displayed() {
        let answer = json!({"answer": {"parts": [{"text": "Hello."}, {"tool_call": {}}]}, "recorded": true});
        assert_eq!(describe("model_answered", &answer).unwrap().1, "agent (recorded): Hello.");
        let plan = json!({"plan": {"items": [{"text": "look", "status": "done"}, {"text": "build"}]}});
        assert_eq!(describe("plan_changed", &plan).unwrap().1, "plan:\n  [x] look\n  [ ] build");
        assert!(describe("egress", &json!({})).is_none());
    }
}
