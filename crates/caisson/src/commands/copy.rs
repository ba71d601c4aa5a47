//! `caisson cp`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::copy_destination::CopyDestination;
use super::transfer::Transfer;
use super::upload::{self, SymlinkPolicy, UploadKind, join};
use crate::arguments::{OutputArguments, ServerArguments};
use crate::client::Client;
use crate::client::encoding::encode;
use crate::client::ids::{self, Target};
use crate::coded_error::has_code;
use crate::output::{print, print_json};

/// `caisson cp`
#[derive(Debug, Args)]
#[command(after_help = "\
One side is ID:PATH, a path in the workspace of a job or bare sandbox; the other is a local path. A name works in place of
the id unless it has a slash or colon. Prefix a local path with ./ if it contains a colon. Folders are copied recursively, and symlinks as symlinks. Unreadable files are skipped and
reported, and the exit code is 2. Files of a finished job come from its result.

Examples:
  caisson cp 1c2d4e6f:report.pdf .
  caisson cp nightly:src ./src
  caisson cp data.csv 1c2d4e6f:
  caisson cp ./fixtures 1c2d4e6f:tests/fixtures")]
pub(crate) struct CopyArguments {
    /// Source: a local path, or ID:PATH.
    source: String,
    /// Destination: a local path, or ID:PATH.
    destination: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Server errors about a single file, for example because it is unreadable or its name is not UTF-8.
const FILE_ERRORS: [&str; 3] = ["file_not_found", "permission_denied", "invalid_path"];

/// A local path or a path in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Endpoint {
    Local(PathBuf),
    Sandbox { id: String, path: String },
}

impl Endpoint {
    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((id, path)) if may_be_id_or_name(id) => {
                Self::Sandbox { id: id.to_owned(), path: in_workspace(path) }
            }
            _ => Self::Local(text.into()),
        }
    }

    /// Finds the workspace, and checks the path: `..` in it would lead to other URLs of the server.
    async fn find(client: &Client, id: &str, path: &str) -> Result<Target> {
        if path.split('/').any(|name| name == "..") {
            bail!("`{path}` contains `..`; write a path relative to the workspace");
        }
        ids::target(client, id).await
    }
}

/// Whether the text before a colon is not the beginning of a local path, which is decided as in `docker cp`.
fn may_be_id_or_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.contains('/')
}

/// Strips the two possible names of the workspace. Keeps a trailing slash, which means a folder.
fn in_workspace(path: &str) -> String {
    let inside = ["/workspace/", "/app/"].iter().find_map(|root| path.strip_prefix(root));
    let path = match path {
        "/workspace" | "/app" | "." | "./" => "",
        path => inside.unwrap_or(path),
    };
    path.strip_prefix("./").unwrap_or(path).to_owned()
}

pub(crate) async fn run(arguments: CopyArguments) -> Result<ExitCode> {
    let client = Client::new(&arguments.server)?;
    let files = match (Endpoint::parse(&arguments.source), Endpoint::parse(&arguments.destination)) {
        (Endpoint::Local(from), Endpoint::Sandbox { id, path }) => {
            let target = Endpoint::find(&client, &id, &path).await?;
            copy_in(&client, &target, &from, &path).await?
        }
        (Endpoint::Sandbox { id, path }, Endpoint::Local(to)) => {
            let target = Endpoint::find(&client, &id, &path).await?;
            copy_out(&client, &target, &path, &to).await?
        }
        (Endpoint::Local(_), Endpoint::Local(_)) => {
            bail!("neither path is in a sandbox; write one as ID:PATH")
        }
        (Endpoint::Sandbox { .. }, Endpoint::Sandbox { .. }) => {
            bail!("both paths are in a sandbox; copy through a local file")
        }
    };
    if arguments.output.json {
        print_json(&json!({ "files": files }))?;
    } else {
        print(&format!("{files} {}\n", if files == 1 { "file" } else { "files" }))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn copy_in(client: &Client, target: &Target, from: &Path, to: &str) -> Result<usize> {
    let whole = fs::canonicalize(from).with_context(|| format!("reading {}", from.display()))?;
    // For `.` and the like, the name of the folder itself.
    let name = from.file_name().or_else(|| whole.file_name()).and_then(|name| name.to_str());
    let name = name.context("the file name is not UTF-8")?.to_owned();
    let is_folder = to.is_empty() || to.ends_with('/') || is_folder_there(client, target, to).await?;
    let to = if is_folder { join(to, &name) } else { to.to_owned() };
    let mut uploads = Vec::new();
    upload::add(&whole, &to, SymlinkPolicy::Copy, &mut uploads)?;
    upload::send_all(client, target, &uploads).await?;
    Ok(uploads.iter().filter(|upload| upload.kind != UploadKind::EmptyFolder).count())
}

async fn is_folder_there(client: &Client, target: &Target, path: &str) -> Result<bool> {
    let request = client.request(Method::GET, &target.path(&format!("files/{}", encode(path))));
    Ok(client.send_or_missing(request).await?.is_some_and(|response| is_listing(&response)))
}

/// Distinguishes a folder listing, which is JSON, from a file, which is always sent as bytes.
fn is_listing(response: &Response) -> bool {
    let media = response.headers().get("content-type").and_then(|value| value.to_str().ok());
    media.is_some_and(|media| media.starts_with("application/json"))
}

async fn copy_out(client: &Client, target: &Target, from: &str, to: &Path) -> Result<usize> {
    let from = from.trim_end_matches('/');
    let name = from.rsplit('/').next().unwrap_or_default();
    let to = if to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        to.join(name)
    } else {
        to.into()
    };
    let transfer = Transfer::receiving_uncounted();
    let mut destination = CopyDestination::default();
    // Still to copy: path, local path, and permissions if they are known.
    let mut waiting = vec![(from.to_owned(), to, None)];
    let mut left_out = 0;
    while let Some((from, to, mode)) = waiting.pop() {
        let rest = if from.is_empty() { "files".to_owned() } else { format!("files/{}", encode(&from)) };
        let response = match client.send(client.request(Method::GET, &target.path(&rest))).await {
            Ok(response) => response,
            // Skips a file within a folder: it may have been removed since it was listed, or be unreadable.
            Err(error) if mode.is_some() && has_code(&error, &FILE_ERRORS) => {
                transfer.say(&format!("skipped `{from}`: {error:#}"));
                left_out += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        if !is_listing(&response) {
            transfer.of(&from);
            destination.file(response, &to, mode, &transfer).await?;
            continue;
        }
        destination.folder(&to)?;
        let listing: Value = response.json().await.context("reading the listing")?;
        if listing["truncated"] == true {
            bail!("`{from}` has too many entries to list; copy its subfolders one by one");
        }
        for entry in listing["entries"].as_array().into_iter().flatten() {
            let path = entry["path"].as_str().unwrap_or_default();
            // Entries further down are listed with their own folder.
            let Some(name) = name_in(&from, path) else { continue };
            let mode = entry["mode"].as_u64().and_then(|mode| u32::try_from(mode).ok());
            match (entry["kind"].as_str(), entry["link_target"].as_str()) {
                (Some("file" | "directory"), _) => waiting.push((path.to_owned(), to.join(name), mode)),
                (Some("symlink"), Some(target)) => destination.link(to.join(name), target),
                _ => transfer.say(&format!("skipped {path}: neither a file nor a folder")),
            }
        }
    }
    let copied = destination.finish()?;
    if left_out > 0 {
        bail!("{copied} files copied, {left_out} skipped");
    }
    Ok(copied)
}

/// The name of an entry directly in a folder. Guards against a sandbox that reports names leading out of the local
/// folder.
fn name_in<'a>(folder: &str, path: &'a str) -> Option<&'a str> {
    let name = if folder.is_empty() { path } else { path.strip_prefix(folder)?.strip_prefix('/')? };
    (!name.is_empty() && name != "." && name != ".." && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_sandbox(id: &str, path: &str) -> Endpoint {
        Endpoint::Sandbox { id: id.into(), path: path.into() }
    }

    #[test]
    fn an_id_or_name_before_a_colon_means_the_sandbox() {
        assert_eq!(Endpoint::parse("1c2d:src/a.txt"), in_sandbox("1c2d", "src/a.txt"));
        assert_eq!(Endpoint::parse("1c2d:"), in_sandbox("1c2d", ""));
        assert_eq!(Endpoint::parse("1c2d:/workspace/a"), in_sandbox("1c2d", "a"));
        assert_eq!(Endpoint::parse("1c2d:/app"), in_sandbox("1c2d", ""));
        assert_eq!(Endpoint::parse("1c2d:./out/"), in_sandbox("1c2d", "out/"));
        assert_eq!(Endpoint::parse("my job:a:b"), in_sandbox("my job", "a:b"));
    }

    #[test]
    fn anything_else_is_a_path_here() {
        for text in ["a.txt", "./1c2d:a", "../1c2d:a", "/tmp/x:y", "folder/name:with", ":a"] {
            assert_eq!(Endpoint::parse(text), Endpoint::Local(text.into()), "{text}");
        }
    }

    #[test]
    fn listing_entries_cannot_escape_the_folder() {
        assert_eq!(name_in("src", "src/a"), Some("a"));
        assert_eq!(name_in("", "a"), Some("a"));
        for path in ["src/..", "src/../x", "other/a", "src/", "src/a/b"] {
            assert_eq!(name_in("src", path), None, "{path}");
        }
    }
}
