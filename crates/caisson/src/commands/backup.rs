//! `caisson backup` and `caisson restore`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use orchestrator::BackupReport;

use crate::arguments::HostArguments;
use crate::config::Config;
use crate::output::print;

/// `caisson backup`
#[derive(Debug, Args)]
#[command(after_help = "\
Works while a server uses the folder. The archive (tar, zstd) holds the database as it is at one moment, results, logs
and checkpoints. Jobs that run are in it too: see `caisson restore --help`.

Examples:
  caisson backup /backups/caisson.tar.zst
  caisson backup --data ./data monday.tar.zst")]
pub(crate) struct BackupArguments {
    /// The archive; it must not exist.
    #[arg(value_name = "FILE")]
    pub(crate) archive: PathBuf,
    #[command(flatten)]
    pub(crate) host: HostArguments,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `caisson restore`
#[derive(Debug, Args)]
#[command(after_help = "\
Everything is checked against the digests in the archive before anything is put in place. Jobs that ran when the backup
was made are taken up by the next server: their sandboxes are gone, so they go on from their last checkpoint, or fail
where they said `\"on_loss\": \"fail\"`.

Examples:
  caisson restore /backups/caisson.tar.zst --data /var/lib/caisson")]
pub(crate) struct RestoreArguments {
    /// The archive.
    #[arg(value_name = "FILE")]
    pub(crate) archive: PathBuf,
    /// The data folder to make; empty, or not there yet.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn back_up(arguments: &BackupArguments) -> Result<ExitCode> {
    let config = Config::load(&arguments.host, &[], false)?;
    let report = orchestrator::back_up(&config.data, &arguments.archive)
        .with_context(|| format!("backing up {}", config.data.display()))?;
    show(&report, &arguments.archive, arguments.json)
}

pub(crate) fn restore(arguments: &RestoreArguments) -> Result<ExitCode> {
    let data = std::path::absolute(&arguments.data)
        .with_context(|| format!("finding the folder {}", arguments.data.display()))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let report = runtime
        .block_on(orchestrator::restore(&arguments.archive, &data))
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
        "{}: {jobs} jobs ({unfinished} not over), {files} files, {:.1} MiB, as of {created}\n",
        made.display(),
        *bytes as f64 / 1_048_576.0
    );
    for job in gone {
        text += &format!("job {job} was removed meanwhile; its result is not in the backup\n");
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
            Some("/b: 2 jobs (1 not over), 3 files, 3.0 MiB, as of 2030-01-01T00:00:00Z")
        );
        assert!(text.contains("job x was removed meanwhile"), "{text}");
    }
}
