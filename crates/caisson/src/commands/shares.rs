//! `caisson shares`

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::table::Table;
use crate::output::{print, print_json, time_text, value_text};

/// `caisson shares`
#[derive(Debug, Args)]
#[command(after_help = "\
`caisson share` creates a link. `list` shows the links that are still valid.

Examples:
  caisson shares list 1c2d4e6f
  caisson shares revoke 1c2d4e6f 5b7d01
  caisson shares revoke 1c2d4e6f http://localhost:8000/share/...")]
pub(crate) struct SharesArguments {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// What to do with share links.
#[derive(Debug, Subcommand)]
enum Action {
    /// List the links of a job, their creators and rights.
    #[command(
        after_help = "Examples:\n  caisson shares list 1c2d4e6f\n  caisson shares list 1c2d4e6f --json"
    )]
    List {
        /// Id or name of the job.
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Revoke a link and close the views opened with it.
    #[command(after_help = "Examples:\n  caisson shares revoke 1c2d4e6f 5b7d01")]
    Revoke {
        /// Id or name of the job.
        #[arg(value_name = "ID")]
        id: String,
        /// Id of the link, the beginning of the id, or the link itself.
        #[arg(value_name = "LINK")]
        link: String,
    },
}

pub(crate) async fn run(arguments: SharesArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let (Action::List { id } | Action::Revoke { id, .. }) = &arguments.action;
    let path = format!("/v1/jobs/{}/shares", ids::job(&client, id).await?);
    let listed = client.get(&path).await?;
    match &arguments.action {
        Action::List { .. } if arguments.output.json => print_json(&listed)?,
        Action::List { .. } => show(&listed)?,
        Action::Revoke { link, .. } => {
            let share = find(&listed, link)?;
            client.delete(&format!("{path}/{share}")).await?;
            if arguments.output.json {
                print_json(&json!({ "revoked": share }))?;
            } else {
                print(&format!("{share} is revoked\n"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn shares_in(listed: &Value) -> &[Value] {
    listed["shares"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn show(listed: &Value) -> Result<()> {
    if shares_in(listed).is_empty() {
        return print("no links\n");
    }
    let mut table = Table::new(&["VIEW", "RIGHTS", "CREATED BY", "CREATED", "VALID UNTIL", "ID"]);
    for share in shares_in(listed) {
        table.add(vec![
            value_text(&share["view"]).into(),
            value_text(&share["rights"]).into(),
            value_text(&share["made_by"]["name"]).into(),
            time_text(&share["created_at"]).into(),
            time_text(&share["expires_at"]).into(),
            value_text(&share["id"]).into(),
        ]);
    }
    print(&table.show())
}

/// The id of the link that the argument refers to.
fn find(listed: &Value, link: &str) -> Result<String> {
    // In a link the id comes last, followed by its expiry and signature.
    let wanted = link.rsplit('~').next().and_then(|last| last.split('.').next()).unwrap_or(link);
    let found: Vec<&str> = shares_in(listed)
        .iter()
        .filter_map(|share| share["id"].as_str())
        .filter(|id| !wanted.is_empty() && id.starts_with(wanted))
        .collect();
    match found[..] {
        [one] => Ok(one.to_owned()),
        [] => bail!("this job has no valid link `{wanted}`; list its links with `caisson shares list`"),
        _ => bail!("{} links begin with `{wanted}`; write more characters of the id", found.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_found_by_id_prefix_and_by_url() {
        let listed = json!({"shares": [{"id": "5b7d01"}, {"id": "5b8e02"}]});
        let find = |link: &str| find(&listed, link).map_err(|error| error.to_string());
        assert_eq!(find("5b7"), Ok("5b7d01".into()));
        assert_eq!(
            find("http://localhost:8000/share/0193~desktop~watch~-~5b8e02.99.aa"),
            Ok("5b8e02".into())
        );
        assert!(find("5b").unwrap_err().contains("2 links begin with"));
        for none in ["6", "", "5b7d011"] {
            assert!(find(none).unwrap_err().contains("no valid link"), "{none}");
        }
    }
}
