//! `caisson download`

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use super::download_files::{JobFiles, print_file, store};
use super::result_destination::{ResultDestination, ZIP_NAME, default_folder};
use super::transfer::receive;
use super::unpack::{Remark, Unpacking};
use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::ids;
use crate::coded_error::CodedError;
use crate::output::terminal::strip_control_characters;
use crate::output::{print, print_json, say};

/// The code of the error if the zip was downloaded and could not be unpacked.
pub(crate) const NOT_UNPACKED: &str = "not_unpacked";

/// `caisson download`
#[derive(Debug, Args)]
#[command(after_help = "\
--out FILE.zip writes that file, which must not exist. --out FOLDER writes output.zip in the folder and creates it if
necessary. Without --out, the folder is named after the job. `caisson run --out` unpacks the result instead.

Examples:
  caisson download 1c2d4e6f
  caisson download 1c2d4e6f --out result.zip
  caisson download nightly --out results/
  caisson download 1c2d4e6f --out - > result.zip
  caisson download 1c2d4e6f --file manifest.json --file memory.json
  caisson download 1c2d4e6f --all --out result")]
pub(crate) struct DownloadArguments {
    /// Id or name of the job.
    id: String,
    /// Zip file to write, or folder for output.zip; `-` writes the zip to standard output.
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Download this file instead, such as manifest.json; can be repeated.
    #[arg(long = "file", value_name = "NAME")]
    files: Vec<String>,
    /// Download output.zip and all files that the job leaves beside it.
    #[arg(long, conflicts_with = "files")]
    all: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: DownloadArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let id = ids::job(&client, &arguments.id).await?;
    if arguments.all || !arguments.files.is_empty() {
        return fetch_several(&client, &id, arguments).await;
    }
    if arguments.out.as_deref() == Some(Path::new("-")) {
        copy(&client, &id, &mut std::io::stdout()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let destination = arguments.out.as_deref().map(ResultDestination::of_zip);
    if let Some(destination) = &destination {
        destination.check()?;
    }
    let (path, bytes) = fetch(&client, &id, destination).await?;
    if arguments.output.json {
        print_json(&json!({"job_id": id, "path": path, "bytes": bytes}))?;
    } else {
        print(&format!("{}\n", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn fetch_several(client: &Client, id: &str, arguments: DownloadArguments) -> Result<ExitCode> {
    let files = JobFiles::of(client, id).await?;
    let chosen = if arguments.all { files.all()? } else { files.choose(&arguments.files)? };
    if arguments.out.as_deref() == Some(Path::new("-")) {
        match chosen.as_slice() {
            [file] if !arguments.all => print_file(client, file).await?,
            _ => bail!("only one file can be written to standard output; choose a folder with --out"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let folder = arguments.out.unwrap_or_else(|| default_folder(id));
    let mut paths = Vec::new();
    if arguments.all && files.has_result() {
        let destination = ResultDestination::ZipIn(folder.clone());
        paths.push(fetch(client, id, Some(destination)).await?.0);
    }
    for file in chosen {
        paths.push(store(client, file, &folder).await?);
    }
    if arguments.output.json {
        print_json(&json!({"job_id": id, "paths": paths}))?;
    } else {
        for path in &paths {
            print(&format!("{}\n", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Downloads the result, by default into a folder named after the job. Returns the path of the zip or of the folder
/// with its files, and the size of the zip.
pub(crate) async fn fetch(
    client: &Client,
    id: &str,
    destination: Option<ResultDestination>,
) -> Result<(PathBuf, u64)> {
    match destination.unwrap_or_else(|| ResultDestination::ZipIn(default_folder(id))) {
        ResultDestination::ZipIn(folder) => {
            let zip = folder.join(ZIP_NAME);
            fetch_zip(client, id, &folder, &zip).await.map(|bytes| (zip, bytes))
        }
        ResultDestination::ZipAs(zip) => {
            let folder = zip.parent().unwrap_or(Path::new("")).to_owned();
            fetch_zip(client, id, &folder, &zip).await.map(|bytes| (zip, bytes))
        }
        ResultDestination::Unpacked(folder) => {
            // The name is not that of any other file, and says which result it is if the zip has to stay.
            let zip = folder.join(format!("caisson-{id}.zip"));
            let bytes = fetch_zip(client, id, &folder, &zip).await?;
            unpack(&zip, &folder).await.map_err(|error| {
                let kept = zip.display();
                CodedError::error(
                    NOT_UNPACKED,
                    format!("the result is not unpacked completely: {error:#}; all of it is in {kept}"),
                )
            })?;
            fs::remove_file(&zip).with_context(|| format!("removing {}", zip.display()))?;
            Ok((folder, bytes))
        }
    }
}

/// Downloads the zip. The file appears complete or not at all.
async fn fetch_zip(client: &Client, id: &str, folder: &Path, zip: &Path) -> Result<u64> {
    // The parent of a plain file name is empty.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let made = !folder.exists();
    fs::create_dir_all(folder).with_context(|| format!("creating the folder {}", folder.display()))?;
    let mut name = OsString::from(".");
    name.push(zip.file_name().unwrap_or_default());
    name.push(".partial");
    let partial = folder.join(name);
    let write = async {
        let mut file = File::create(&partial).with_context(|| format!("writing {}", partial.display()))?;
        let bytes = copy(client, id, &mut file).await?;
        let is_replaced = zip.metadata().is_ok_and(|found| found.len() > 0);
        fs::rename(&partial, zip).with_context(|| format!("writing {}", zip.display()))?;
        if is_replaced {
            say(&format!("replaced {}", zip.display()));
        }
        anyhow::Ok(bytes)
    };
    let written = write.await;
    if written.is_err() {
        // Leave no partial file behind.
        let _ = fs::remove_file(&partial);
        if made {
            let _ = fs::remove_dir(folder);
        }
    }
    written
}

/// Unpacks a zip and names the files of the user that it replaces.
async fn unpack(zip: &Path, folder: &Path) -> Result<()> {
    let mut unpacking = Unpacking::begin(File::open(zip)?, folder)?;
    while let Some(remarks) = unpacking.step()? {
        remarks.iter().for_each(say_remark);
        // Lets the caller react to Ctrl-C.
        tokio::task::yield_now().await;
    }
    unpacking.finish()?.iter().for_each(say_remark);
    Ok(())
}

fn say_remark(remark: &Remark) {
    let line = match remark {
        Remark::Replaced(path) => format!("replaced {}", path.display()),
        Remark::SkippedLink(path) => format!("skipped {}: the link leads out of the folder", path.display()),
    };
    say(&strip_control_characters(&line));
}

async fn copy(client: &Client, id: &str, into: &mut impl Write) -> Result<u64> {
    receive(client, &format!("/jobs/{id}/output.zip"), ZIP_NAME, into).await
}
