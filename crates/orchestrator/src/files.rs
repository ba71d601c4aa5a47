//! The files of a job: from its sandbox while it has one, from its output.zip afterwards.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use protocol::{FileError, FileErrorCode, FileKind, FileOperation, FileReply, GuestClient};
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;
use zip::ZipArchive;

use crate::driver::is_own;
use crate::error::OrchestratorError;
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::request::workspace_path;
use crate::state::JobState;

/// The most entries of one listing.
const MAX_LISTED: u32 = 10_000;

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
}

/// The content of a file as it comes.
pub struct FileContent {
    /// Bytes.
    pub size: u64,
    /// Milliseconds since 1970; 0 where it is not known.
    pub modified_ms: i64,
    /// The bytes.
    pub chunks: ByteChunks<OrchestratorError>,
}

/// Bytes as they come.
pub type ByteChunks<E> = Pin<Box<dyn Stream<Item = Result<Bytes, E>> + Send>>;

/// Where the files of a job are.
enum Place {
    Sandbox(GuestClient),
    Zip(PathBuf),
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
                let operation = FileOperation::List { path: path.clone(), depth, limit: MAX_LISTED };
                match client.file(None, operation).await? {
                    FileReply::Entries { entries, truncated } => {
                        let entries = entries
                            .into_iter()
                            .map(|entry| FileItem {
                                path: entry.path,
                                kind: entry.stat.kind,
                                size: entry.stat.size,
                                mode: entry.stat.mode,
                                modified_ms: entry.stat.modified_ms,
                            })
                            .collect();
                        Ok(FileListing { path, entries, truncated })
                    }
                    _ => Err(file_error(FileErrorCode::Other, "the guest sent no listing".into())),
                }
            }
            Place::Zip(zip) => in_thread(move || list_zip(&zip, path, depth)).await,
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
                // The client stays with the stream: without it the link would end.
                let state = (client, download);
                let chunks = futures::stream::unfold(Some(state), |state| async move {
                    let (client, mut download) = state?;
                    match download.next().await {
                        Ok(Some(bytes)) => Some((Ok(bytes), Some((client, download)))),
                        Ok(None) => None,
                        Err(error) => Some((Err(error.into()), None)),
                    }
                });
                Ok(FileContent { size: stat.size, modified_ms: stat.modified_ms, chunks: Box::pin(chunks) })
            }
            Place::Zip(zip) => read_zip(zip, path).await,
        }
    }

    /// Writes a file as a whole, atomically; returns its size.
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
        let mut upload = client.upload(path, mode).await?;
        while let Some(bytes) = body.next().await {
            upload.write(&bytes.map_err(OrchestratorError::io("reading the body of the request"))?).await?;
        }
        match upload.finish().await? {
            FileReply::Written { size } => Ok(size),
            _ => Ok(0),
        }
    }

    /// Removes a file or directory.
    ///
    /// # Errors
    /// There is none, it is a directory with content and `recursive` is not set, or the job has no sandbox now.
    pub async fn delete_file(&self, id: JobId, path: &str, recursive: bool) -> Result<(), OrchestratorError> {
        if self.core.store.job(id).await?.state == JobState::Draft {
            return self.remove_upload(id, path).await;
        }
        let path = checked(path)?;
        let (_, client) = self.reach(id).await?;
        client.file(None, FileOperation::Remove { path, recursive }).await?;
        Ok(())
    }

    /// Moves a file or directory.
    ///
    /// # Errors
    /// There is none, the target exists, or the job has no sandbox now.
    pub async fn move_file(&self, id: JobId, from: &str, to: &str) -> Result<(), OrchestratorError> {
        let (from, to) = (checked(from)?, checked(to)?);
        let (_, client) = self.reach(id).await?;
        client.file(None, FileOperation::Move { from, to }).await?;
        Ok(())
    }

    async fn place(&self, id: JobId) -> Result<Place, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if view.artifact.is_some() {
            return Ok(Place::Zip(self.core.folder.output(id)));
        }
        self.reach(id).await.map(|(_, client)| Place::Sandbox(client))
    }
}

fn checked(path: &str) -> Result<String, OrchestratorError> {
    workspace_path(path).map_err(|problem| file_error(FileErrorCode::OutsideWorkspace, problem))
}

pub(crate) fn file_error(code: FileErrorCode, message: String) -> OrchestratorError {
    FileError { code, message }.into()
}

async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OrchestratorError> + Send + 'static,
) -> Result<T, OrchestratorError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| OrchestratorError::io("reading output.zip")(std::io::Error::other(error)))?
}

fn open_zip(path: &Path) -> Result<ZipArchive<std::fs::File>, OrchestratorError> {
    let file = std::fs::File::open(path).map_err(OrchestratorError::io("opening output.zip"))?;
    ZipArchive::new(file)
        .map_err(|error| OrchestratorError::io("reading output.zip")(std::io::Error::other(error)))
}

fn list_zip(zip: &Path, path: String, depth: u32) -> Result<FileListing, OrchestratorError> {
    let mut archive = open_zip(zip)?;
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    let mut entries = Vec::new();
    let mut exists = path.is_empty();
    for index in 0..archive.len() {
        let Ok(file) = archive.by_index_raw(index) else { continue };
        let Ok(name) = file.name().map(|name| name.trim_end_matches('/').to_owned()) else { continue };
        if name == path && file.is_dir() {
            exists = true;
        }
        let Some(rest) = name.strip_prefix(&prefix) else { continue };
        exists = true;
        if rest.is_empty() || is_own(&name) || rest.split('/').count() > depth as usize {
            continue;
        }
        let kind = if file.is_dir() {
            FileKind::Directory
        } else if file.is_symlink() {
            FileKind::Symlink
        } else {
            FileKind::File
        };
        let mode = file.unix_mode().unwrap_or(0o644) & 0o777;
        entries.push(FileItem { path: name, kind, size: file.size(), mode, modified_ms: 0 });
    }
    if !exists {
        return Err(file_error(FileErrorCode::NotFound, format!("there is no directory `{path}`")));
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let truncated = entries.len() > MAX_LISTED as usize;
    entries.truncate(MAX_LISTED as usize);
    Ok(FileListing { path, entries, truncated })
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
        // The thread ended before it knew the size: its error says why.
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
