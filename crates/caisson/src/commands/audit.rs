//! `caisson audit`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use store::{
    AuditReport, ExternalRecords, FileState, JobAudit, TrustedKeys, export_deletions, export_heads,
    find_job_id, user_actions_of, verify_audit,
};

use crate::arguments::{HostArguments, OutputArguments};
use crate::config::Config;
use crate::config::database::DATABASE;
use crate::output::table::Table;
use crate::output::terminal::strip_control_characters;
use crate::output::{print, print_json};

/// `caisson audit`
#[derive(Debug, Args)]
#[command(after_help = "\
Every event of a job carries a hash that covers the previous event. The server signs the newest hash, the head, at
intervals and at the end of a job. A signed head that you keep elsewhere proves all events up to it: docs/operations/audit.md.

Examples:
  caisson audit verify                              all jobs of the data folder
  caisson audit export-head 1c2d4e6f >> heads.jsonl
  caisson audit verify 1c2d4e6f --head heads.jsonl")]
pub(crate) struct AuditArguments {
    #[command(subcommand)]
    action: Action,
}

/// What to do with the audit trail.
#[derive(Debug, Subcommand)]
enum Action {
    /// Verify that no event of a job, or of all jobs, was changed or removed.
    #[command(after_help = "\
Works while a server uses the folder. Exits with 1 and names the problem if the check fails. The last lines say which
removals of signed heads the check could detect. To detect the removal of the newest heads, pass copies with --head.

Examples:
  caisson audit verify
  caisson audit verify 1c2d4e6f --data /var/lib/caisson
  caisson audit verify --key /elsewhere/caisson-audit.pub
  caisson audit verify --head heads.jsonl --key 7f3a...")]
    Verify {
        /// Id of the job [default: all jobs].
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// File with signed heads that were kept elsewhere, one per line.
        #[arg(long, value_name = "FILE")]
        head: Option<PathBuf>,
        /// Trusted public key, as hexadecimal digits or a file with one key per line; repeatable [default: audit.pub and
        /// audit.pub.old of the data folder].
        #[arg(long, value_name = "KEY")]
        key: Vec<String>,
        #[command(flatten)]
        host: HostArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Print the newest signed head of a job as one line of JSON.
    #[command(after_help = "\
A running server signs every minute and when a job ends; `GET /v1/jobs/ID/audit/heads` signs at once.

Examples:
  caisson audit export-head 1c2d4e6f > head.json
  caisson audit export-head 1c2d4e6f --all
  caisson audit export-head --deleted >> deleted.jsonl")]
    ExportHead {
        /// Id of the job; for a deleted job, prints its signed deletion record.
        #[arg(value_name = "ID", required_unless_present = "deleted", conflicts_with = "deleted")]
        id: Option<String>,
        /// Print all heads of the job, oldest first.
        #[arg(long)]
        all: bool,
        /// Print the deletion records of all deleted jobs, oldest first.
        #[arg(long)]
        deleted: bool,
        #[command(flatten)]
        host: HostArguments,
        /// Heads are JSON anyway, a line each.
        #[command(flatten)]
        output: OutputArguments,
    },
    /// List the API actions on a job: who, with which key, and what.
    #[command(
        after_help = "Examples:\n  caisson audit actions 1c2d4e6f\n  caisson audit actions 1c2d4e6f --json"
    )]
    Actions {
        /// The job.
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        host: HostArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Print the public key that verifies the heads of this data folder.
    #[command(
        after_help = "Examples:\n  caisson audit key > caisson-audit.pub\n  caisson audit key --json | jq -r .key"
    )]
    Key {
        #[command(flatten)]
        host: HostArguments,
        #[command(flatten)]
        output: OutputArguments,
    },
}

pub(crate) fn run(arguments: AuditArguments) -> Result<ExitCode> {
    match arguments.action {
        Action::Verify { id, head, key, host, output } => verify(id, head, &key, &host, &output),
        Action::ExportHead { id, all, deleted: _, host, output: _ } => export(id.as_deref(), all, &host),
        Action::Actions { id, host, output } => actions(&id, &host, output),
        Action::Key { host, output } => {
            let path = Config::load(&host, &[], false)?.data.join(store::PUBLIC_KEY_FILE);
            let key = std::fs::read_to_string(&path).with_context(|| {
                format!("reading {}: the server creates it at its first start", path.display())
            })?;
            if output.json {
                print_json(&serde_json::json!({ "key": key.trim() }))?;
            } else {
                print(&key)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn verify(
    id: Option<String>,
    head: Option<PathBuf>,
    keys: &[String],
    host: &HostArguments,
    output: &OutputArguments,
) -> Result<ExitCode> {
    let data = Config::load(host, &[], false)?.data;
    let kept = match head {
        Some(path) => {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            ExternalRecords::read(&text).map_err(|why| anyhow!("{}: {why}", path.display()))?
        }
        None => ExternalRecords::default(),
    };
    let trusted = if keys.is_empty() { TrustedKeys::of_folder(&data) } else { read_keys(keys, &kept)? };
    let job = id.map(|id| find_job_id(&DATABASE, &data, &id, &kept)).transpose()?;
    let report = verify_audit(&DATABASE, &data, job, &kept, &trusted)
        .with_context(|| format!("checking {}", data.display()))?;
    print(&if output.json { serde_json::to_string_pretty(&report)? + "\n" } else { text(&report) })?;
    Ok(if report.is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The trusted keys, each given literally or in a file. The kept heads must be signed by one of them.
fn read_keys(typed: &[String], kept: &ExternalRecords) -> Result<TrustedKeys> {
    let texts: Vec<String> =
        typed.iter().map(|key| std::fs::read_to_string(key).unwrap_or_else(|_| key.clone())).collect();
    let lines: Vec<String> = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| !line.trim().is_empty())
        .map(ToOwned::to_owned)
        .collect();
    let trusted = TrustedKeys::only(&lines).ok().filter(|_| !lines.is_empty()).context(
        "--key: expected 64 hexadecimal digits or a file with them; `caisson audit key` prints them",
    )?;
    match kept.keys().find(|(key, _)| !trusted.has(key)) {
        Some((key, what)) => bail!("{what} is signed with an untrusted key, {key}"),
        None => Ok(trusted),
    }
}

fn export(id: Option<&str>, all: bool, host: &HostArguments) -> Result<ExitCode> {
    let data = Config::load(host, &[], false)?.data;
    let Some(id) = id else {
        export_deletions(&DATABASE, &data)?.iter().try_for_each(print_line)?;
        return Ok(ExitCode::SUCCESS);
    };
    let job = find_job_id(&DATABASE, &data, id, &ExternalRecords::default())?;
    let ExternalRecords { heads, tombstones } = export_heads(&DATABASE, &data, job)?;
    let chosen =
        if all { heads.as_slice() } else { heads.last().map(std::slice::from_ref).unwrap_or_default() };
    if chosen.is_empty() && tombstones.is_empty() {
        bail!("job {job} has no signed head yet: a running server signs every minute and when a job ends");
    }
    chosen.iter().try_for_each(print_line)?;
    tombstones.iter().try_for_each(print_line)?;
    Ok(ExitCode::SUCCESS)
}

fn print_line(line: &impl serde::Serialize) -> Result<()> {
    print(&(serde_json::to_string(line)? + "\n"))
}

fn actions(id: &str, host: &HostArguments, output: OutputArguments) -> Result<ExitCode> {
    let data = Config::load(host, &[], false)?.data;
    let actions =
        user_actions_of(&DATABASE, &data, find_job_id(&DATABASE, &data, id, &ExternalRecords::default())?)?;
    if output.json {
        actions.iter().try_for_each(print_line)?;
        return Ok(ExitCode::SUCCESS);
    }
    if actions.is_empty() {
        print("no API actions\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["TIME", "WHO", "KEY", "WHAT"]);
    for action in &actions {
        let actor = action.actor.as_ref();
        table.add(vec![
            job::format_time(action.time_ms).into(),
            actor.map(|actor| actor.name.clone()).unwrap_or_default().into(),
            actor.and_then(|actor| actor.key.as_ref()).map_or("-".to_owned(), ToString::to_string).into(),
            job::what_happened(&action.body).lines().next().unwrap_or_default().to_owned().into(),
        ]);
    }
    print(&table.show())?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &AuditReport) -> String {
    let mut text = String::new();
    for audit in &report.jobs {
        text += &text_of(audit);
    }
    let unsound = report.jobs.iter().filter(|job| !job.faults.is_empty()).count();
    text += &match (report.jobs.len(), unsound) {
        (0, _) => "no jobs\n".to_owned(),
        (jobs, 0) => format!("{jobs} of {jobs} jobs are sound\n"),
        (jobs, unsound) => format!("{unsound} of {jobs} jobs are not sound\n"),
    };
    if report.deleted > 0 {
        text += &format!("{} jobs were deleted, with signed deletion records\n", report.deleted);
    }
    text + &describe_checks(&report.jobs)
}

/// Which removals of heads this check would have detected.
fn describe_checks(jobs: &[JobAudit]) -> String {
    let jobs: Vec<&JobAudit> = jobs.iter().filter(|job| job.deletion.is_none()).collect();
    let count = jobs.len();
    if count == 0 {
        return String::new();
    }
    let line = |checked: usize, what: &str, needs: &str| match checked {
        0 => format!("not checked: {what}; {needs}\n"),
        all if all == count => format!("checked: {what}\n"),
        some => format!("checked for {some} of {count} jobs: {what}; {needs}\n"),
    };
    let newest = jobs.iter().filter(|job| job.heads_checked.newest_until.is_some()).count();
    "checked: removal of signed heads between others\n".to_owned()
        + &line(
            newest,
            "removal of the newest signed heads, up to the heads kept elsewhere",
            "needs --head with heads of the job",
        )
}

fn text_of(audit: &JobAudit) -> String {
    let JobAudit {
        job,
        events,
        dropped_payloads,
        heads,
        kept_heads,
        signed_until,
        deletion,
        files,
        faults,
        ..
    } = audit;
    let verdict = if faults.is_empty() { "sound" } else { "NOT SOUND" };
    let mut text = format!("{job}  {verdict}: ");
    match deletion {
        Some(deletion) => {
            let key = deletion.by_key.as_ref().map_or(String::new(), |key| format!(" (key {key})"));
            let (by, when) = (strip_control_characters(&deletion.by), job::format_time(deletion.time_ms));
            text += &format!("deleted by {by}{key} at {when} after {} events", deletion.sequence);
        }
        None => {
            text += &format!(
                "{events} events, signed up to {signed_until} ({heads} heads, {kept_heads} kept elsewhere)"
            );
        }
    }
    if audit.unsigned_events > 0 {
        text += &format!(", {} not yet signed", audit.unsigned_events);
    }
    if *dropped_payloads > 0 {
        text += &format!(", {dropped_payloads} payloads dropped");
    }
    for file in files {
        text += &match file.state {
            FileState::Sound => format!(", {} as stored", file.name),
            FileState::Changed => format!(", {} CHANGED", file.name),
            FileState::Absent => format!(", {} is missing", file.name),
            FileState::Behind => format!(", {} lacks lines that the server adds when it starts", file.name),
            FileState::Unknown => format!(", {} without a digest in the log", file.name),
        };
    }
    text.push('\n');
    for fault in faults {
        text += &format!("  {fault}\n");
    }
    text
}
