//! The files of a job: from its uploads before it starts, from its sandbox while it has one, and from output.zip
//! afterwards.

pub(crate) use crate::error::file_error;

use std::io::Read;
use std::path::PathBuf;
use std::pin::Pin;

use bytes::Bytes;
use egress::Redactor;
use futures::{Stream, StreamExt};
use job::{ContentDigest, JobId, JobState, UserAction, UserActionKind, workspace_path};
use protocol::{FileErrorCode, FileKind, FileOperation, FileReply, GuestClient};
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::clock::now_ms;
use crate::core::Orchestrator;
use crate::error::OrchestratorError;
use crate::live::draft_files;
use crate::live::zip_listing::{list_zip, open_zip};

/// Maximum number of entries in a listing.
pub(crate) const MAX_LISTED: u32 = 10_000;

/// A directory of a job.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileListing {
    /// The directory, empty for the workspace itself.
    pub path: String,
    /// Sorted by path.
    pub entries: Vec<FileItem>,
    /// Whether there are more than could be listed.
    pub truncated: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct FileItem {
    /// Path relative to the workspace.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[schema(value_type = String)]
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Milliseconds since 1970; 0 where it is not known.
    pub modified_ms: i64,
    /// Where a link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// A file as a stream.
pub struct FileContent {
    /// Size in bytes.
    pub size: u64,
    /// Unix time in milliseconds; 0 if unknown.
    pub modified_ms: i64,
    pub chunks: ByteChunks<OrchestratorError>,
}

/// A stream of byte chunks.
pub type ByteChunks<E> = Pin<Box<dyn Stream<Item = Result<Bytes, E>> + Send>>;

/// The source of a job's files.
enum Place {
    Sandbox(GuestClient),
    Zip(PathBuf),
    /// The uploads of a job that has not started.
    Uploads(PathBuf),
}

impl Orchestrator {
    /// Lists a directory; an empty path is the workspace.
    ///
    /// # Errors
    /// There is no such directory, or the job has no files (yet).
    pub async fn list_files(
        &self,
        id: JobId,
        path: &str,
        depth: u32,
    ) -> Result<FileListing, OrchestratorError> {
        let path = if path.trim_matches('/').is_empty() { String::new() } else { checked(path)? };
        match self.place(id).await? {
            Place::Sandbox(client) => {
                let operation =
                    FileOperation::List { path: path.clone(), depth, limit: MAX_LISTED, skip: Vec::new() };
                match client.file(None, operation).await? {
                    FileReply::Entries { entries, truncated } => {
                        let redactor = self.redactor_of(id);
                        let entries = entries
                            .into_iter()
                            .map(|entry| FileItem {
                                path: redactor.redact_text(&entry.path),
                                kind: entry.stat.kind,
                                size: entry.stat.size,
                                mode: entry.stat.mode,
                                modified_ms: entry.stat.modified_ms,
                                link_target: entry
                                    .stat
                                    .link_target
                                    .map(|target| redactor.redact_text(&target)),
                            })
                            .collect();
                        Ok(FileListing { path, entries, truncated })
                    }
                    _ => Err(file_error(FileErrorCode::Other, "the guest sent no listing".into())),
                }
            }
            Place::Zip(zip) => in_thread(move || list_zip(&zip, path, depth)).await,
            Place::Uploads(folder) => {
                in_thread(move || draft_files::list(&folder, path, depth, MAX_LISTED as usize)).await
            }
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// There is no such file, it is a directory, or the job has no files (yet).
    pub async fn read_file(&self, id: JobId, path: &str) -> Result<FileContent, OrchestratorError> {
        let path = checked(path)?;
        match self.place(id).await? {
            Place::Sandbox(client) => {
                let (stat, download) = client.download(path, 0, None).await?;
                let cover = self.redactor_of(id).stream();
                // Keep the client with the stream: dropping it would close the link.
                let state = (client, download, cover);
                let chunks = futures::stream::unfold(Some(state), |state| async move {
                    let (client, mut download, mut cover) = state?;
                    match download.next().await {
                        Ok(Some(bytes)) => {
                            let shown = cover.push(bytes);
                            Some((Ok(shown), Some((client, download, cover))))
                        }
                        Ok(None) if cover.is_empty() => None,
                        Ok(None) => Some((Ok(cover.finish()), None)),
                        Err(error) => Some((Err(error.into()), None)),
                    }
                });
                Ok(FileContent { size: stat.size, modified_ms: stat.modified_ms, chunks: Box::pin(chunks) })
            }
            Place::Zip(zip) => read_zip(zip, path).await,
            Place::Uploads(folder) => draft_files::read(&folder, &path).await,
        }
    }

    /// Reads a file as it was uploaded with the job.
    ///
    /// # Errors
    /// No such file was uploaded.
    pub async fn read_start_file(&self, id: JobId, path: &str) -> Result<FileContent, OrchestratorError> {
        let path = checked(path)?;
        self.core.store.job(id).await?;
        draft_files::read(&self.core.folder.upload(id), &path).await
    }

    /// Writes a whole file atomically and returns its size.
    ///
    /// # Errors
    /// The path cannot be written, or the job has no sandbox now.
    pub async fn write_file(
        &self,
        id: JobId,
        path: &str,
        mode: Option<u32>,
        mut body: ByteChunks<std::io::Error>,
    ) -> Result<u64, OrchestratorError> {
        if self.core.store.job(id).await?.state == JobState::Draft {
            return self.upload_file(id, path, mode, body).await;
        }
        let path = checked(path)?;
        let (_, client) = self.reach(id).await?;
        let mut upload = client.upload(path.clone(), mode).await?;
        let mut digest = ContentDigest::default();
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(OrchestratorError::io("reading the body of the request"))?;
            digest.add(&bytes);
            upload.write(&bytes).await?;
        }
        // The upload replaces the file only in `finish`, so the digest is logged before the action takes effect.
        let put = UserAction::to_file(UserActionKind::FilePut, &path).with_content(&digest);
        let finish = async {
            match upload.finish().await? {
                FileReply::Written { size } => Ok(size),
                _ => Ok(0),
            }
        };
        self.audited(id, put, finish).await
    }

    /// Creates a directory and its parents.
    ///
    /// # Errors
    /// The path exists and is not a directory, or the job has no sandbox now.
    pub async fn make_directory(&self, id: JobId, path: &str) -> Result<(), OrchestratorError> {
        if self.core.store.job(id).await?.state == JobState::Draft {
            return self.upload_directory(id, path).await;
        }
        let path = checked(path)?;
        let (_, client) = self.reach(id).await?;
        let made = UserAction::to_file(UserActionKind::DirectoryMade, &path);
        self.audited(id, made, act(&client, FileOperation::MakeDirectory { path })).await
    }

    /// Creates a symbolic link, replacing a file or link at that path. The target may be any path, because it is
    /// resolved inside the sandbox.
    ///
    /// # Errors
    /// A directory is at that path, or the job has no sandbox now. A draft accepts no links.
    pub async fn make_link(&self, id: JobId, path: &str, target: &str) -> Result<(), OrchestratorError> {
        if self.core.store.job(id).await?.state == JobState::Draft {
            let problem =
                format!("`{path}`: a job that has not started takes no links, only files and directories");
            return Err(file_error(FileErrorCode::Denied, problem));
        }
        let path = checked(path)?;
        let archive = archive_of_link(&path, target)
            .map_err(|error| file_error(FileErrorCode::InvalidPath, format!("`{path}`: {error}")))?;
        let (_, client) = self.reach(id).await?;
        let link = async {
            let mut upload = client.unpack(String::new()).await?;
            upload.write(&archive).await?;
            upload.finish().await?;
            Ok(())
        };
        self.audited(id, UserAction::to_file(UserActionKind::LinkMade, &path).with_target(target), link).await
    }

    /// Removes a file or directory.
    ///
    /// # Errors
    /// There is none, it is a non-empty directory and `recursive` is not set, or the job has no sandbox now.
    pub async fn delete_file(&self, id: JobId, path: &str, recursive: bool) -> Result<(), OrchestratorError> {
        if self.core.store.job(id).await?.state == JobState::Draft {
            return self.remove_upload(id, path).await;
        }
        let path = checked(path)?;
        let (_, client) = self.reach(id).await?;
        let deleted = UserAction::to_file(UserActionKind::FileDeleted, &path);
        self.audited(id, deleted, act(&client, FileOperation::Remove { path, recursive })).await
    }

    /// Moves a file or directory.
    ///
    /// # Errors
    /// There is none, the target exists, or the job has no sandbox now.
    pub async fn move_file(&self, id: JobId, from: &str, to: &str) -> Result<(), OrchestratorError> {
        let (from, to) = (checked(from)?, checked(to)?);
        let (_, client) = self.reach(id).await?;
        let moved = UserAction::to_file(UserActionKind::FileMoved, &from).with_target(&to);
        self.audited(id, moved, act(&client, FileOperation::Move { from, to })).await
    }

    /// The redactor for the values of a job's secrets.
    pub(crate) fn redactor_of(&self, id: JobId) -> Redactor {
        let live = self.core.live.get(id);
        live.map_or_else(|| Redactor::new([]), |live| live.recorder.redactor())
    }

    async fn place(&self, id: JobId) -> Result<Place, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if view.artifact.is_some() {
            return Ok(Place::Zip(self.core.folder.output(id)));
        }
        if view.state == JobState::Draft {
            return Ok(Place::Uploads(self.core.folder.upload(id)));
        }
        self.reach(id).await.map(|(_, client)| Place::Sandbox(client))
    }
}

async fn act(client: &GuestClient, operation: FileOperation) -> Result<(), OrchestratorError> {
    client.file(None, operation).await?;
    Ok(())
}

fn checked(path: &str) -> Result<String, OrchestratorError> {
    workspace_path(path).map_err(|problem| file_error(FileErrorCode::OutsideWorkspace, problem))
}

/// The guest creates links only when it unpacks an archive.
fn archive_of_link(path: &str, target: &str) -> std::io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    header.set_mtime(u64::try_from(now_ms() / 1000).unwrap_or(0));
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_link(&mut header, path, target)?;
    builder.into_inner()
}

async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OrchestratorError> + Send + 'static,
) -> Result<T, OrchestratorError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| OrchestratorError::io("reading files of a job")(std::io::Error::other(error)))?
}

async fn read_zip(zip: PathBuf, path: String) -> Result<FileContent, OrchestratorError> {
    let (size_sender, size) = tokio::sync::oneshot::channel();
    let (sender, receiver) = mpsc::channel::<Result<Bytes, OrchestratorError>>(8);
    let reading = tokio::task::spawn_blocking(move || {
        let mut archive = open_zip(&zip)?;
        let missing = || file_error(FileErrorCode::NotFound, format!("there is no file `{path}`"));
        let directory = format!("{path}/");
        if archive.file_names().any(|name| name.is_ok_and(|name| name.starts_with(&directory))) {
            return Err(file_error(FileErrorCode::IsDirectory, format!("`{path}` is a directory")));
        }
        let mut file = archive.by_name(&path).map_err(|_| missing())?;
        let _ = size_sender.send(file.size());
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let count = file.read(&mut buffer).map_err(OrchestratorError::io("reading output.zip"))?;
            if count == 0 || sender.blocking_send(Ok(Bytes::copy_from_slice(&buffer[..count]))).is_err() {
                return Ok(());
            }
        }
    });
    match size.await {
        Ok(size) => {
            let chunks = futures::stream::unfold(receiver, |mut receiver| async move {
                receiver.recv().await.map(|chunk| (chunk, receiver))
            });
            Ok(FileContent { size, modified_ms: 0, chunks: Box::pin(chunks) })
        }
        // The thread ended before it sent the size; its result contains the error.
        Err(_) => match in_thread_result(reading).await {
            Err(error) => Err(error),
            Ok(()) => Err(file_error(FileErrorCode::Other, "the file could not be read".into())),
        },
    }
}

async fn in_thread_result(
    task: tokio::task::JoinHandle<Result<(), OrchestratorError>>,
) -> Result<(), OrchestratorError> {
    task.await.map_err(|error| OrchestratorError::io("reading output.zip")(std::io::Error::other(error)))?
}
