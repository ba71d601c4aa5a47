//! `caisson network`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::table::{Cell, Table};
use crate::output::{print, print_json};

/// `caisson network`
#[derive(Debug, Args)]
#[command(after_help = "\
Lists each connection with the rule that decided it and the reason of a refusal. A connection that waits for approval is
also in `caisson requests`. --learned prints the narrowest `egress` policy that allows everything this job reached.

Examples:
  caisson network 1c2d4e6f
  caisson network 1c2d4e6f --learned
  caisson network 1c2d4e6f --json | jq '.connections[] | select(.verdict == \"refused\")'")]
pub(crate) struct NetworkArguments {
    /// Id or name of the job or bare sandbox.
    #[arg(value_name = "ID")]
    id: String,
    /// Print the narrowest policy that would have sufficed.
    #[arg(long, conflicts_with = "json")]
    learned: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Shows a job's connections, including refused ones.
pub(crate) async fn run(arguments: NetworkArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let target = ids::target(&client, &arguments.id).await?;
    let report = client.get(&target.path("network")).await?;
    if arguments.output.json {
        print_json(&report)?;
    } else if arguments.learned {
        print_json(&json!({ "egress": report["learned"] }))?;
    } else {
        print(&describe(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &Value) -> String {
    let connections = report["connections"].as_array().map(Vec::as_slice).unwrap_or_default();
    if connections.is_empty() {
        return "no connections\n".into();
    }
    let mut table = Table::new(&["WHERE", "VERDICT", "RULE", "SENT", "RECEIVED", "CALL"]);
    for connection in connections {
        let word = |name: &str| connection[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| connection[name].as_u64().unwrap_or_default().to_string();
        let verdict = match connection["code"].as_str() {
            Some(code) => format!("{} ({code})", word("verdict")),
            None => word("verdict"),
        };
        let destination = format!("{}:{}", word("host"), number("port"));
        let cells =
            [destination, verdict, word("rule"), number("bytes_up"), number("bytes_down"), word("call")];
        table.add(cells.map(Cell::from).into());
    }
    table.show() + &refusals(connections)
}

/// The reasons of refused connections, each once, and what would allow them.
fn refusals(connections: &[Value]) -> String {
    let mut text = String::new();
    for connection in connections {
        let word = |name: &str| connection[name].as_str().unwrap_or_default();
        if word("verdict") == "allowed" || word("reason").is_empty() {
            continue;
        }
        let mut line = format!("\n{}\n", word("reason"));
        if !word("remedy").is_empty() {
            line += &format!("  to allow it: {}\n", word("remedy"));
        }
        if !text.contains(&line) {
            text += &line;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_is_a_line_with_its_rule() {
        let report = json!({"connections": [{"host": "example.org", "port": 443, "verdict": "refused",
            "code": "not_in_list", "rule": "list", "bytes_up": 0, "bytes_down": 0, "call": "step-1.1",
            "reason": "example.org:443 refused", "remedy": "write it in the job"}]});
        let text = describe(&report);
        assert!(text.ends_with("\nexample.org:443 refused\n  to allow it: write it in the job\n"), "{text}");
        assert!(text.contains("example.org:443") && text.contains("refused (not_in_list)"), "{text}");
        assert_eq!(describe(&json!({"connections": []})), "no connections\n");
    }
}
