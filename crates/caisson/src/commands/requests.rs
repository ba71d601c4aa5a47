//! `caisson requests`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json, say};

/// `caisson requests`
#[derive(Debug, Args)]
#[command(after_help = "\
Questions of the agent, plans, commands and connections that want to be accepted. `caisson answer` answers them.

Examples:
  caisson requests 1c2d4e6f
  caisson requests 1c2d4e6f --json | jq .requests")]
pub(crate) struct RequestsArguments {
    /// The job.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Lists a job's input requests.
pub(crate) async fn run(arguments: RequestsArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let answer = client.get(&format!("/v1/jobs/{id}/requests")).await?;
    if arguments.output.json {
        print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let requests = answer["requests"].as_array().map(Vec::as_slice).unwrap_or_default();
    if requests.is_empty() {
        say("nothing waits for a person");
    }
    for request in requests {
        print(&describe(&id, request))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(job: &str, request: &Value) -> String {
    let word = |name: &str| request[name].as_str().unwrap_or_default();
    let mut text = format!("{} ({}): {}\n", word("id"), word("kind"), word("text"));
    if let Some(command) = request["command"].as_str() {
        text += &format!("  $ {command}\n");
    }
    if let Some(rule) = request["egress"]["rule"].as_str() {
        text += &format!("  rule: {rule}\n");
    }
    for (number, item) in request["plan"]["items"].as_array().into_iter().flatten().enumerate() {
        text += &format!("  {}. {}\n", number + 1, item["text"].as_str().unwrap_or_default());
    }
    for option in request["options"].as_array().into_iter().flatten() {
        text += &format!("  - {}\n", option.as_str().unwrap_or_default());
    }
    let answer = match word("kind") {
        "question" => "\"...\"",
        "egress" => "--accept [--rest] | --refuse",
        _ => "--accept | --refuse [\"why\"]",
    };
    text + &format!("  answer with: caisson answer {job} {} {answer}\n", word("id"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_is_listed_with_its_answer_command() {
        let request = json!({"id": "request-1", "kind": "command", "text": "May it?", "command": "git push"});
        let text = describe("abc", &request);
        assert!(
            text.contains("$ git push") && text.contains("caisson answer abc request-1 --accept"),
            "{text}"
        );
        let request = json!({"id": "egress-1", "kind": "egress", "text": "May it?",
            "egress": {"rule": "a.example [GET /v2/%41]"}});
        let text = describe("abc", &request);
        assert!(text.contains("  rule: a.example [GET /v2/%41]\n") && text.contains("--rest"), "{text}");
    }
}
