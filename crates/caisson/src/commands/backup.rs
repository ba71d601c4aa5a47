//! `caisson backup` and `caisson restore`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use orchestrator::BackupReport;

use crate::arguments::HostArguments;
use crate::config::Config;
use crate::config::database::DATABASE;
use crate::output::print;

/// `caisson backup`
#[derive(Debug, Args)]
#[command(after_help = "\
Works while a server uses the folder. The archive (tar, zstd) contains a consistent copy of the database, and the results,
logs and checkpoints. It includes running jobs; see `caisson restore --help`.

Examples:
  caisson backup /backups/caisson.tar.zst
  caisson backup --data ./data monday.tar.zst")]
pub(crate) struct BackupArguments {
    /// Archive to write; must not exist.
    #[arg(value_name = "FILE")]
    pub(crate) archive: PathBuf,
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `caisson restore`
#[derive(Debug, Args)]
#[command(after_help = "\
Checks all files against the digests in the archive before it writes any. The next server resumes the jobs that ran at the
time of the backup from their last checkpoint, in new sandboxes; jobs with `\"on_loss\": \"fail\"` fail.

Examples:
  caisson restore /backups/caisson.tar.zst --data /var/lib/caisson")]
pub(crate) struct RestoreArguments {
    /// Archive to restore.
    #[arg(value_name = "FILE")]
    pub(crate) archive: PathBuf,
    /// Data folder to create; must be empty or missing.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn back_up(arguments: &BackupArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &[], false)?;
    let report = orchestrator::back_up(&DATABASE, &config.data, &arguments.archive)
        .with_context(|| format!("backing up {}", config.data.display()))?;
    show(&report, &arguments.archive, arguments.json)
}

pub(crate) fn restore(arguments: &RestoreArguments) -> Result<ExitCode> {
    let data = std::path::absolute(&arguments.data)
        .with_context(|| format!("finding the folder {}", arguments.data.display()))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let report = runtime
        .block_on(orchestrator::restore(Arc::new(DATABASE), &arguments.archive, &data))
        .with_context(|| format!("restoring {}", arguments.archive.display()))?;
    show(&report, &data, arguments.json)
}

fn show(report: &BackupReport, made: &Path, json: bool) -> Result<ExitCode> {
    print(&if json { serde_json::to_string_pretty(report)? + "\n" } else { text(report, made) })?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &BackupReport, made: &Path) -> String {
    let BackupReport { created, jobs, unfinished, files, bytes, gone } = report;
    let mut text = format!(
        "{}: {jobs} jobs ({unfinished} unfinished), {files} files, {:.1} MiB, as of {created}\n",
        made.display(),
        *bytes as f64 / 1_048_576.0
    );
    for job in gone {
        text += &format!("job {job} was deleted during the backup; its result is not included\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_missing_from_backup_is_reported() {
        let report = BackupReport {
            created: "2030-01-01T00:00:00Z".into(),
            jobs: 2,
            unfinished: 1,
            files: 3,
            bytes: 3 << 20,
            gone: vec!["x".into()],
        };
        let text = text(&report, Path::new("/b"));
        assert_eq!(
            text.lines().next(),
            Some("/b: 2 jobs (1 unfinished), 3 files, 3.0 MiB, as of 2030-01-01T00:00:00Z")
        );
        assert!(text.contains("job x was deleted during the backup"), "{text}");
    }
}
