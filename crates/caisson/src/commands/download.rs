//! `caisson download`

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::StreamExt;
use reqwest::Method;
use serde_json::json;

use super::transfer::Transfer;
use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::output::{print, print_json};

/// `caisson download`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  caisson download 1c2d4e6f
  caisson download 1c2d4e6f --out result
  caisson download 1c2d4e6f --out - > result.zip")]
pub(crate) struct DownloadArguments {
    /// The job.
    id: String,
    /// Folder for the result; output.zip is put there. `-` for standard output.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: DownloadArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    if arguments.out.as_deref() == Some(Path::new("-")) {
        copy(&client, &id, &mut std::io::stdout()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let (path, bytes) = fetch(&client, &id, arguments.out).await?;
    if arguments.output.json {
        print_json(&json!({"job_id": id, "path": path, "bytes": bytes}))?;
    } else {
        print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails early if the result could not be stored at the given location.
pub(crate) fn check(out: Option<&Path>) -> Result<()> {
    // Without `--out`, a new folder is created in the current one.
    let folder = std::path::absolute(out.unwrap_or(Path::new("."))).context("reading the current folder")?;
    let file = folder.join("output.zip");
    if out.is_some() && file.is_dir() {
        bail!("{} is a folder, where the result would be; name another one with --out", file.display());
    }
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(&folder);
    if !there.is_dir() {
        bail!(
            "{} is no folder that the result could be put into; name another one with --out",
            there.display()
        );
    }
    // Writing may fail despite sufficient permissions, for example on a full file system.
    tempfile::tempfile_in(there).map(drop).with_context(|| {
        format!("the result cannot be put into {}; name another folder with --out", there.display())
    })
}

/// Downloads the result into a folder, by default one named after the job. The file appears complete or not at all.
pub(crate) async fn fetch(client: &Client, id: &str, out: Option<PathBuf>) -> Result<(PathBuf, u64)> {
    let folder = out.unwrap_or_else(|| PathBuf::from(format!("caisson-{id}")));
    let made = !folder.exists();
    fs::create_dir_all(&folder).with_context(|| format!("making the folder {}", folder.display()))?;
    let path = folder.join("output.zip");
    let partial = folder.join(".output.zip.partial");
    let write = async {
        let mut file = File::create(&partial).with_context(|| format!("writing {}", partial.display()))?;
        let bytes = copy(client, id, &mut file).await?;
        fs::rename(&partial, &path).with_context(|| format!("writing {}", path.display()))?;
        Ok(bytes)
    };
    match write.await {
        Ok(bytes) => Ok((path, bytes)),
        Err(error) => {
            // Leave no partial file behind.
            let _ = fs::remove_file(&partial);
            if made {
                let _ = fs::remove_dir(&folder);
            }
            Err(error)
        }
    }
}

async fn copy(client: &Client, id: &str, into: &mut impl Write) -> Result<u64> {
    let response = client.send(client.request(Method::GET, &format!("/jobs/{id}/output.zip"))).await?;
    let transfer = Transfer::receiving(response.content_length());
    transfer.of("output.zip");
    let mut body = response.bytes_stream();
    let mut count = 0;
    while let Some(bytes) = body.next().await {
        let bytes = bytes.context("reading the result")?;
        into.write_all(&bytes).context("writing the result")?;
        transfer.add(bytes.len());
        count += bytes.len() as u64;
    }
    into.flush().context("writing the result")?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_location_is_checked_before_the_job_runs() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        fs::create_dir_all(folder.path().join("taken/output.zip")).unwrap();
        let refused = |name: &str| check(Some(&folder.path().join(name))).unwrap_err().to_string();
        check(Some(&folder.path().join("new/one"))).unwrap();
        check(Some(folder.path())).unwrap();
        assert!(refused("file").contains("file is no folder"), "{}", refused("file"));
        assert!(refused("file/below").contains("file is no folder"));
        assert!(refused("taken").contains("output.zip is a folder"));
        assert!(!folder.path().join("new").exists(), "nothing is made yet");
        let nowhere = check(Some(Path::new("/proc/nowhere"))).unwrap_err().to_string();
        assert!(nowhere.contains("cannot be put into /proc"), "{nowhere}");
    }
}
