//! `caisson share`

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json, say, time_text, value_text};

/// `caisson share`
#[derive(Debug, Args)]
#[command(after_help = "\
Whoever has the link sees this one view of this one job, without a key, until the link ends. It also ends when the key of
who made it is revoked, and when somebody revokes it: see caisson shares.

Views: desktop, terminal, files, output, events, notebook, or a port such as 5173.

Examples:
  caisson share 1c2d4e6f desktop --for 1h
  caisson share 1c2d4e6f terminal --for 30m --use
  caisson share 1c2d4e6f 5173")]
pub(crate) struct ShareArguments {
    /// The job.
    #[arg(value_name = "ID")]
    id: String,
    /// What of it.
    #[arg(value_name = "VIEW")]
    view: String,
    /// How long, such as 30m, 12h or 7d.
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = parse_seconds)]
    lasts_s: u64,
    /// Lets others type and click, too.
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
        say(&format!("holds until {}", time_text(&made["expires_at"])));
        print(&format!("{}\n", value_text(&made["url"])))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses `90`, `90s`, `30m`, `12h`, `7d` as seconds.
fn parse_seconds(text: &str) -> Result<u64> {
    let (digits, factor) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(digits) if text.ends_with('m') => (digits, 60),
        Some(digits) if text.ends_with('h') => (digits, 3600),
        Some(digits) if text.ends_with('d') => (digits, 86_400),
        Some(digits) => (digits, 1),
        None => (text, 1),
    };
    match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
        Some(seconds) if seconds > 0 => Ok(seconds),
        _ => bail!("not a time such as 30m, 12h or 7d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_seconds() {
        let read = |text| parse_seconds(text).ok();
        assert_eq!(
            ["90", "90s", "30m", "1h", "7d"].map(read),
            [Some(90), Some(90), Some(1800), Some(3600), Some(604_800)]
        );
        assert_eq!(["", "h", "0", "1w", "-1", "1.5h"].map(read), [None; 6]);
    }
}
