//! `caisson share`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::arguments::{OutputArguments, ServerArguments, parse_seconds};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json, say, time_text, value_text};

/// `caisson share`
#[derive(Debug, Args)]
#[command(after_help = "\
Anyone with the link can open this one view of the job without an API key. The link stops working when it expires, when
it is revoked with `caisson shares revoke`, or when the key that created it is revoked.

Views: desktop, terminal, files, output, events, notebook, or a port such as 5173.

Examples:
  caisson share 1c2d4e6f desktop --for 1h
  caisson share 1c2d4e6f terminal --for 30m --use
  caisson share 1c2d4e6f 5173")]
pub(crate) struct ShareArguments {
    /// Id or name of the job.
    #[arg(value_name = "ID")]
    id: String,
    /// View to share.
    #[arg(value_name = "VIEW")]
    view: String,
    /// Lifetime of the link, such as 30m, 12h or 7d.
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = parse_seconds)]
    lasts_s: u64,
    /// Allow typing and clicking, not only viewing.
    #[arg(long = "use")]
    may_use: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Creates the link and prints it.
pub(crate) async fn run(arguments: ShareArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    let rights = if arguments.may_use { "use" } else { "watch" };
    let body = json!({"view": arguments.view, "for_s": arguments.lasts_s, "rights": rights});
    let made = client.post(&format!("/v1/jobs/{id}/shares"), &body).await?;
    if arguments.output.json {
        print_json(&made)?;
    } else {
        say(&format!("valid until {}", time_text(&made["expires_at"])));
        print(&format!("{}\n", value_text(&made["url"])))?;
    }
    Ok(ExitCode::SUCCESS)
}
