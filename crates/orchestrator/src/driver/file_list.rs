//! `audit/files.jsonl`: the files that a job touched. If the backend lists file accesses as they happen, it is that
//! list; otherwise the difference between the workspace at the start and at the end. The first line says which of the
//! two it is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use egress::Redactor;
use protocol::{FileEntry, FileKind, FileOperation, FileReply, GuestClient};
use sandbox::{FileLog, SandboxError, SandboxId};
use serde_json::json;

use super::archive::removed_on_failure;
use super::{Driver, DriverExit, describe};
use crate::clock::now_ms;
use crate::error::OrchestratorError;
use crate::recorder::redact::redact_all;

/// Maximum number of files to compare; beyond that, the list says that it is incomplete.
const MAX_FILES: u32 = 200_000;
/// How long creating the list may take when the sandbox is about to be removed; the guest may no longer answer.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Deeper than any path can be.
const ALL_LEVELS: u32 = 2048;

/// What is compared: kind, size, mode, modification time, link target.
type ComparedFields = (FileKind, u64, u32, i64, Option<String>);

impl Driver {
    /// Saves the initial list of the workspace's files, unless the backend lists file accesses itself.
    pub(super) async fn save_initial_file_list(&self, client: &GuestClient) -> Result<(), DriverExit> {
        let path = self.core.folder.files_before(self.recorder.job());
        if self.backend_lists_files().await || path.exists() {
            return Ok(());
        }
        // If listing fails, the final list says so; the job goes on.
        if let Some(listed) = listing(client, &self.recorder.redactor()).await {
            let text = serde_json::to_vec(&listed).unwrap_or_default();
            write_whole(&path, &text)
                .map_err(OrchestratorError::io(format!("writing {}", path.display())))?;
        }
        Ok(())
    }

    async fn backend_lists_files(&self) -> bool {
        let sandbox = self.recorder.view().await.sandbox;
        let audit = self.core.backend.file_audit();
        audit.zip(sandbox).is_some_and(|(audit, sandbox)| audit.is_recorded(sandbox))
    }

    /// Writes the list of a job whose sandbox is about to be removed. Only a temporary error is returned; any other
    /// failure is logged and does not stop the job.
    pub(super) async fn save_file_list(&self) -> Result<(), OrchestratorError> {
        let job = self.recorder.job();
        let target = self.core.folder.file_log(job);
        let sandbox = self.recorder.view().await.sandbox;
        let list = match sandbox {
            Some(sandbox) => self.recorded_files(sandbox).await,
            None => Ok(None),
        };
        let result = match list {
            Ok(Some(mut list)) => {
                let sandbox = sandbox.map(|it| it.to_string()).unwrap_or_default();
                keep(&mut list, &target, &sandbox, &self.recorder.redactor())
            }
            Ok(None) if target.exists() => Ok(()),
            Ok(None) => self.write_difference(&target).await,
            Err(error) => Err(io::Error::other(error)),
        };
        match result.map_err(OrchestratorError::io("writing the list of files")) {
            Err(error) if error.needs_operator() => Err(error),
            Err(error) => {
                tracing::warn!(%job, error = describe(&error), "the list of files could not be written");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// The file accesses that the backend recorded for a sandbox; `None` if it records none.
    async fn recorded_files(&self, sandbox: SandboxId) -> Result<Option<FileLog>, SandboxError> {
        match self.core.backend.file_audit() {
            Some(audit) => audit.open(sandbox).await,
            None => Ok(None),
        }
    }

    /// Writes the list of a job that ends without being collected, such as a bare sandbox.
    pub(super) async fn save_file_list_if_missing(&self) {
        let job = self.recorder.job();
        if self.core.folder.file_log(job).exists() {
            return;
        }
        match tokio::time::timeout(LIST_TIMEOUT, self.save_file_list()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%job, %error, "the list of files could not be written"),
            Err(_) => tracing::warn!(%job, "the list of files could not be had in time"),
        }
    }

    /// Saves the file accesses listed for a lost sandbox, before it is removed.
    pub(super) async fn save_file_list_of(&self, sandbox: SandboxId) {
        let job = self.recorder.job();
        let target = self.core.folder.file_log(job);
        let kept = match self.recorded_files(sandbox).await {
            Ok(None) => return,
            Ok(Some(mut list)) => keep(&mut list, &target, &sandbox.to_string(), &self.recorder.redactor()),
            Err(error) => Err(io::Error::other(error)),
        };
        if let Err(error) = kept {
            tracing::warn!(%job, %error, "the list of files could not be kept");
        }
    }

    async fn write_difference(&self, target: &Path) -> io::Result<()> {
        let before = fs::read(self.core.folder.files_before(self.recorder.job())).ok();
        let before: Option<(Vec<FileEntry>, bool)> =
            before.and_then(|text| serde_json::from_slice(&text).ok());
        let client = self.guest().await.ok();
        let after = match &client {
            Some(client) => listing(client, &self.recorder.redactor()).await,
            None => None,
        };
        let begin = json!({"time_ms": now_ms(), "event": "begin", "method": "difference"});
        let mut text = format!("{begin}\n");
        match (before, after) {
            (Some((before, was_cut)), Some((after, is_cut))) => {
                for (event, path) in difference(&before, &after) {
                    text += &format!("{}\n", json!({"event": event, "path": format!("/workspace/{path}")}));
                }
                if is_cut || was_cut {
                    let reason = "the workspace has more files than are listed";
                    text += &format!("{}\n", json!({"event": "gap", "reason": reason}));
                }
            }
            _ => {
                text +=
                    &format!("{}\n", json!({"event": "gap", "reason": "the workspace could not be listed"}))
            }
        }
        write_whole(target, text.as_bytes())
    }
}

/// The files of the workspace, with the values of secrets redacted, and whether the list is truncated.
async fn listing(client: &GuestClient, redactor: &Redactor) -> Option<(Vec<FileEntry>, bool)> {
    let operation =
        FileOperation::List { path: String::new(), depth: ALL_LEVELS, limit: MAX_FILES, skip: Vec::new() };
    match client.file(None, operation).await {
        Ok(FileReply::Entries { entries, truncated }) => Some((redact_all(entries, redactor)?, truncated)),
        _ => None,
    }
}

fn difference(before: &[FileEntry], after: &[FileEntry]) -> Vec<(&'static str, String)> {
    let facts = |entry: &FileEntry| -> ComparedFields {
        let stat = &entry.stat;
        // A directory's time changes with its entries, which are reported themselves.
        let time = if stat.kind == FileKind::Directory { 0 } else { stat.modified_ms };
        let size = if stat.kind == FileKind::Directory { 0 } else { stat.size };
        (stat.kind, size, stat.mode, time, stat.link_target.clone())
    };
    let table = |entries: &[FileEntry]| -> BTreeMap<String, ComparedFields> {
        entries.iter().map(|entry| (entry.path.clone(), facts(entry))).collect()
    };
    let (before, after) = (table(before), table(after));
    let mut changes: Vec<(&'static str, String)> = Vec::new();
    for (path, facts) in &after {
        match before.get(path) {
            None => changes.push(("created", path.clone())),
            Some(earlier) if earlier != facts => changes.push(("written", path.clone())),
            Some(_) => {}
        }
    }
    changes.extend(
        before.keys().filter(|path| !after.contains_key(*path)).map(|path| ("deleted", path.clone())),
    );
    changes
}

/// Saves the list of one sandbox, and rebuilds the job's list from those of all its sandboxes: a job that lost a
/// sandbox has several. Can be repeated after a crash.
fn keep(list: &mut dyn Read, target: &Path, sandbox: &str, redactor: &Redactor) -> io::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    copy_redacted(list, &folder.join(format!("files-{sandbox}.jsonl")), redactor)?;
    let _ = fs::remove_file(target.with_extension("live"));
    let mut lists: Vec<_> = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == "jsonl") && has_prefix(path, "files-"))
        .collect();
    lists.sort();
    let partial = target.with_extension("partial");
    // The usual case needs no second copy. A partial file is a leftover of a crash.
    if let [only] = &lists[..] {
        let _ = fs::remove_file(&partial);
        if fs::hard_link(only, &partial).is_ok() {
            return fs::rename(partial, target);
        }
    }
    removed_on_failure(&partial, || {
        let mut whole = File::create(&partial)?;
        for path in lists {
            io::copy(&mut File::open(path)?, &mut whole)?;
        }
        whole.sync_all()?;
        fs::rename(&partial, target)
    })
}

/// Copies a list with the values of secrets redacted, because a file name may contain one. Written completely or not
/// at all.
pub(crate) fn copy_redacted(list: &mut dyn Read, target: &Path, redactor: &Redactor) -> io::Result<()> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    // Several requests may do this at the same time.
    let partial = target.with_extension(format!("{}.partial", uuid::Uuid::now_v7()));
    removed_on_failure(&partial, || {
        write_redacted(list, &partial, redactor).and_then(|()| fs::rename(&partial, target))
    })
}

fn write_redacted(list: &mut dyn Read, partial: &Path, redactor: &Redactor) -> io::Result<()> {
    let mut copy = File::create(partial)?;
    let mut cover = redactor.stream();
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let count = list.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        copy.write_all(&cover.push(Bytes::copy_from_slice(&buffer[..count])))?;
    }
    copy.write_all(&cover.finish())?;
    copy.sync_all()
}

fn has_prefix(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}

/// Writes a file completely or not at all.
pub(super) fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = path.with_extension("partial");
    removed_on_failure(&partial, || {
        let mut file = File::create(&partial)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    })
}

#[cfg(test)]
mod tests {
    use protocol::FileStat;

    use super::*;

    fn entry(path: &str, kind: FileKind, size: u64, modified_ms: i64) -> FileEntry {
        FileEntry {
            path: path.into(),
            stat: FileStat { kind, size, mode: 0o644, modified_ms, link_target: None },
        }
    }

    #[test]
    fn secrets_in_file_names_are_redacted_in_the_file_list() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("audit/files.jsonl");
        let list = "{\"path\": \"/workspace/canary-7f3a-value.txt\"}\n";
        keep(&mut list.as_bytes(), &target, "one", &Redactor::new(["canary-7f3a-value"])).unwrap();
        let covered = "{\"path\": \"/workspace/*****************.txt\"}\n";
        assert_eq!(fs::read_to_string(&target).unwrap(), covered);
        assert_eq!(fs::read_to_string(folder.path().join("audit/files-one.jsonl")).unwrap(), covered);
        assert_eq!(fs::read_dir(folder.path().join("audit")).unwrap().count(), 2);
    }

    #[test]
    fn file_lists_of_several_sandboxes_are_concatenated() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("audit/files.jsonl");
        let redactor = Redactor::new([""; 0]);
        for (sandbox, text) in [("a", "first\n"), ("a", "first again\n"), ("b", "second\n")] {
            keep(&mut text.as_bytes(), &target, sandbox, &redactor).unwrap();
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "first again\nsecond\n");
        assert_eq!(fs::read_to_string(folder.path().join("audit/files-a.jsonl")).unwrap(), "first again\n");
        assert_eq!(fs::read_dir(folder.path().join("audit")).unwrap().count(), 3);
    }

    #[test]
    fn only_created_written_and_deleted_files_are_listed() {
        use FileKind::{Directory, File};
        let before = [
            entry("same", File, 1, 1),
            entry("grown", File, 1, 1),
            entry("gone", File, 1, 1),
            entry("d", Directory, 9, 1),
        ];
        let after = [
            entry("same", File, 1, 1),
            entry("grown", File, 2, 2),
            entry("d", Directory, 4096, 5),
            entry("d/new", File, 0, 3),
        ];
        let told = difference(&before, &after);
        let told: Vec<(&str, &str)> = told.iter().map(|(event, path)| (*event, path.as_str())).collect();
        assert_eq!(told, [("created", "d/new"), ("written", "grown"), ("deleted", "gone")]);
    }
}
