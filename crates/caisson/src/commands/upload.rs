//! Uploads files, empty folders and symlinks into a workspace. The files of a new job are uploaded into a draft,
//! which is started when they are complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::stream;
use reqwest::Method;
use serde_json::{Map, Value, json};
use std::io::Read;

use super::transfer::Transfer;
use crate::client::Client;
use crate::client::encoding::encode;
use crate::client::ids::{Kind, Target};
use crate::output::say;
use crate::signals;

/// The maximum size of a chunk of a file.
const CHUNK_BYTES: usize = 256 * 1024;
/// How long to wait for the id of a draft after a signal, in order to cancel the draft.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A local file and its path in the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Upload {
    pub(crate) from: PathBuf,
    pub(crate) to: String,
    pub(crate) kind: UploadKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UploadKind {
    File,
    /// A folder without content; other folders are created with their files.
    EmptyFolder,
    /// A symlink and its target.
    Link(String),
}

/// How to treat symlinks below a folder. A path that the user named is always followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SymlinkPolicy {
    Copy,
    /// A job that has not started accepts none.
    Skip,
}

/// All files below the given paths, each under the name of its path.
pub(crate) fn collect(paths: &[PathBuf]) -> Result<Vec<Upload>> {
    let mut uploads = Vec::new();
    for path in paths {
        let whole = fs::canonicalize(path).with_context(|| format!("reading {}", path.display()))?;
        // `.` and the like stand for the folder's content.
        let name = match path.file_name() {
            Some(name) => workspace_name(name)?,
            None => String::new(),
        };
        add(&whole, &name, SymlinkPolicy::Skip, &mut uploads)?;
    }
    let mut paths_seen: BTreeMap<&str, &Upload> = BTreeMap::new();
    for upload in &uploads {
        if let Some(other) = paths_seen.insert(&upload.to, upload) {
            let (one, two) = (other.from.display(), upload.from.display());
            bail!("{one} and {two} would both become `{}` in the workspace; rename one of them", upload.to);
        }
    }
    Ok(uploads)
}

/// Adds a file, or everything below a folder.
pub(crate) fn add(from: &Path, to: &str, symlinks: SymlinkPolicy, uploads: &mut Vec<Upload>) -> Result<()> {
    let reading = || format!("reading {}", from.display());
    let kind = fs::symlink_metadata(from).with_context(reading)?.file_type();
    let mut push = |kind| uploads.push(Upload { from: from.to_owned(), to: to.to_owned(), kind });
    if kind.is_symlink() && symlinks == SymlinkPolicy::Skip {
        say(&format!("skipped {}: a symlink", from.display()));
    } else if kind.is_symlink() {
        let target = fs::read_link(from).with_context(reading)?;
        push(UploadKind::Link(workspace_name(target.as_os_str())?));
    } else if kind.is_dir() {
        let entries = fs::read_dir(from).with_context(reading)?;
        let mut entries: Vec<_> = entries.collect::<Result<_, _>>()?;
        if entries.is_empty() && !to.is_empty() {
            push(UploadKind::EmptyFolder);
        }
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let name = workspace_name(&entry.file_name())?;
            add(&entry.path(), &join(to, &name), symlinks, uploads)?;
        }
    } else if kind.is_file() {
        push(UploadKind::File);
    } else {
        bail!("{} is neither a file nor a folder", from.display());
    }
    Ok(())
}

fn workspace_name(name: &std::ffi::OsStr) -> Result<String> {
    name.to_str().map(ToOwned::to_owned).with_context(|| format!("the name {} is not UTF-8", name.display()))
}

/// Joins a folder and a name; an empty folder is the workspace.
pub(crate) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{}/{name}", folder.trim_end_matches('/')) }
}

/// Submits a job with its files. If it cannot be started, nothing is left of it. `None` if a signal stopped the
/// submission before the job was started.
pub(crate) async fn submit(
    client: &Client,
    mut job: Map<String, Value>,
    uploads: &[Upload],
) -> Result<Option<Value>> {
    if uploads.is_empty() {
        return client.post("/v1/jobs", &Value::Object(job)).await.map(Some);
    }
    job.insert("start".into(), json!(false));
    let draft = Value::Object(job);
    let mut stop = std::pin::pin!(signals::termination_or_interrupt());
    let mut creating = std::pin::pin!(client.post("/v1/jobs", &draft));
    let mut answer_limit = std::pin::pin!(tokio::time::sleep(ANSWER_LIMIT));
    let mut is_stopped = false;
    // Listens for signals before creating the draft, and then waits for its id. Otherwise a signal would leave the
    // draft behind.
    let accepted = loop {
        tokio::select! {
            biased;
            () = stop.as_mut(), if !is_stopped => {
                is_stopped = true;
                answer_limit.set(tokio::time::sleep(ANSWER_LIMIT));
            }
            () = answer_limit.as_mut(), if is_stopped => return Ok(None),
            accepted = creating.as_mut() => break accepted?,
        }
    };
    let id = accepted["job_id"].as_str().context("the server sent no job id")?.to_owned();
    let target = Target { kind: Kind::Job, id: id.clone() };
    let start = async {
        send_all(client, &target, uploads).await?;
        client.post(&format!("/v1/jobs/{id}/start"), &json!({})).await
    };
    let started = tokio::select! {
        biased;
        () = std::future::ready(()), if is_stopped => Ok(None),
        () = stop.as_mut(), if !is_stopped => Ok(None),
        started = start => started.map(Some),
    };
    if !matches!(started, Ok(Some(_))) {
        // Best effort: a draft that nobody starts is deleted when its retention ends.
        let _ = client.post(&format!("/v1/jobs/{id}/cancel"), &json!({})).await;
    }
    Ok(started?.map(|mut answer| {
        answer["job_id"] = json!(id);
        answer
    }))
}

/// Uploads everything, one after the other.
pub(crate) async fn send_all(client: &Client, target: &Target, uploads: &[Upload]) -> Result<()> {
    let transfer = Transfer::sending(uploads.iter().map(bytes_of).sum());
    for upload in uploads {
        transfer.of(&upload.to);
        send(client, target, upload, &transfer).await?;
    }
    Ok(())
}

/// The size of a file; 0 if it is unreadable, which is reported when it is uploaded.
fn bytes_of(upload: &Upload) -> u64 {
    match upload.kind {
        UploadKind::File => fs::metadata(&upload.from).map_or(0, |metadata| metadata.len()),
        UploadKind::EmptyFolder | UploadKind::Link(_) => 0,
    }
}

async fn send(client: &Client, target: &Target, upload: &Upload, transfer: &Transfer) -> Result<()> {
    let make = async |kind: &str, body: String| {
        let path = target.path(&format!("files/{}?kind={kind}", encode(&upload.to)));
        let request = client.request(Method::PUT, &path).body(body);
        client.send(request).await.with_context(|| format!("creating {}", upload.to)).map(drop)
    };
    match &upload.kind {
        UploadKind::File => send_file(client, target, upload, transfer).await,
        UploadKind::EmptyFolder => make("directory", String::new()).await,
        UploadKind::Link(points_to) => make("symlink", points_to.clone()).await,
    }
}

/// Uploads one file with its permissions.
async fn send_file(client: &Client, target: &Target, upload: &Upload, transfer: &Transfer) -> Result<()> {
    let reading = || format!("reading {}", upload.from.display());
    let file = File::open(&upload.from).with_context(reading)?;
    let metadata = file.metadata().with_context(reading)?;
    let mode = metadata.permissions().mode() & 0o777;
    let path = target.path(&format!("files/{}?mode={mode:o}", encode(&upload.to)));
    let transfer = transfer.clone();
    let chunks = chunks_of(file).inspect(move |chunk| transfer.add(chunk.as_ref().map_or(0, Vec::len)));
    let request = client
        .request(Method::PUT, &path)
        .header("Content-Length", metadata.len())
        .header("Content-Type", "application/octet-stream")
        .body(reqwest::Body::wrap_stream(stream::iter(chunks)));
    client.send(request).await.with_context(|| format!("writing {}", upload.to)).map(drop)
}

fn chunks_of(mut file: File) -> impl Iterator<Item = std::io::Result<Vec<u8>>> {
    std::iter::from_fn(move || {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        match file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk) {
            Ok(0) => None,
            Ok(_) => Some(Ok(chunk)),
            Err(error) => Some(Err(error)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_keeps_its_name_and_symlinks_are_optional() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("src");
        fs::create_dir_all(source.join("deep")).unwrap();
        fs::write(source.join("deep/a.txt"), "a").unwrap();
        fs::write(source.join("b.txt"), "b").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", source.join("link")).unwrap();
        let names = |path: PathBuf| -> Vec<String> {
            collect(&[path]).unwrap().into_iter().map(|upload| upload.to).collect()
        };
        fs::create_dir(source.join("empty")).unwrap();
        assert_eq!(names(source.clone()), ["src/b.txt", "src/deep/a.txt", "src/empty"]);
        let mut all = Vec::new();
        add(&source, "x", SymlinkPolicy::Copy, &mut all).unwrap();
        let link = all.iter().find(|upload| upload.to == "x/link").unwrap();
        assert_eq!(link.kind, UploadKind::Link("/etc/passwd".into()));
        assert_eq!(names(source.join("b.txt")), ["b.txt"]);
        assert_eq!(names(source.join("deep/..").join("..").join("src").join("deep")), ["deep/a.txt"]);
        let twice = collect(&[source.join("b.txt"), source.join("deep/../b.txt")]).unwrap_err().to_string();
        assert!(twice.ends_with("would both become `b.txt` in the workspace; rename one of them"), "{twice}");
        assert!(collect(&[folder.path().join("missing")]).unwrap_err().to_string().contains("missing"));
    }

    #[test]
    fn paths_are_joined_with_one_slash() {
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("x/", "a"), "x/a");
    }
}
