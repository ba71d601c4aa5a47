//! Files that a job brings with it: kept in its folder as a draft, put into its workspace when it starts.
//!
//! Only this file writes to that folder and it never makes a link there, so a path that is checked once stays inside.
//! Archives are treated as hostile: links, devices, names that lead out and archives that grow without end are refused.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures::{Stream, StreamExt};
use protocol::FileErrorCode;
use tar::EntryType;
use uuid::Uuid;
use zip::ZipArchive;

use crate::answers::{Accepted, Repeated};
use crate::error::OrchestratorError;
use crate::event::{EventBody, Fence};
use crate::files::file_error;
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::request::workspace_path;
use crate::state::{Happening, JobState};
use crate::store::{Created, NewRecord};
use crate::view::JobView;

/// The most files of one upload.
const MAX_FILES: u64 = 200_000;

/// What an uploaded file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveKind {
    /// A zip.
    Zip,
    /// A tar, plain.
    Tar,
    /// A tar, compressed with gzip.
    TarGz,
}

impl ArchiveKind {
    /// The kind that a file name says.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if name.ends_with(".zip") {
            Some(Self::Zip)
        } else if name.ends_with(".tar") {
            Some(Self::Tar)
        } else if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Some(Self::TarGz)
        } else {
            None
        }
    }
}

impl Orchestrator {
    /// Adds a file to a draft, as a whole or not at all; returns its size.
    ///
    /// # Errors
    /// The job is no draft, the path leads out, or the files are more than the job's disk holds.
    pub async fn upload_file(
        &self,
        id: JobId,
        path: &str,
        mode: Option<u32>,
        body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<u64, OrchestratorError> {
        let budget = self.upload_budget(id).await?;
        let relative =
            workspace_path(path).map_err(|problem| file_error(FileErrorCode::OutsideWorkspace, problem))?;
        let incoming = Incoming::receive(&self.core.folder.job(id), mode, budget, body).await?;
        let target = self.core.folder.upload(id).join(&relative);
        incoming.keep(&target).map_err(|error| place_error(&relative, error))
    }

    /// Unpacks an archive into a draft.
    ///
    /// # Errors
    /// The job is no draft, or the archive cannot be accepted; it says which entry and why.
    pub async fn upload_archive(
        &self,
        id: JobId,
        kind: ArchiveKind,
        body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<(), OrchestratorError> {
        let budget = self.upload_budget(id).await?;
        let incoming = Incoming::receive(&self.core.folder.job(id), None, budget, body).await?;
        let target = self.core.folder.upload(id);
        let unpacking = tokio::task::spawn_blocking(move || unpack(&incoming.path, kind, &target, budget));
        unpacking
            .await
            .map_err(|error| OrchestratorError::io("unpacking an archive")(io::Error::other(error)))?
    }

    /// Removes a draft with its files: what it was made for has failed.
    ///
    /// # Errors
    /// The job is no draft.
    pub async fn discard_draft(&self, id: JobId) -> Result<(), OrchestratorError> {
        self.draft(id).await?;
        let mut news = self.watch(id);
        let mut view = self.cancel(id).await?;
        while !view.state.is_over() && news.changed().await.is_ok() {
            view = self.core.store.job(id).await?;
        }
        self.delete(id).await
    }

    /// Removes a file from a draft.
    ///
    /// # Errors
    /// The job is no draft, or there is no such file.
    pub async fn remove_upload(&self, id: JobId, path: &str) -> Result<(), OrchestratorError> {
        self.upload_budget(id).await?;
        let relative =
            workspace_path(path).map_err(|problem| file_error(FileErrorCode::OutsideWorkspace, problem))?;
        let target = self.core.folder.upload(id).join(&relative);
        let removed = if target.is_dir() { fs::remove_dir_all(&target) } else { fs::remove_file(&target) };
        removed.map_err(|error| place_error(&relative, error))
    }

    /// Starts a draft.
    ///
    /// # Errors
    /// The job is no draft.
    pub async fn start_draft(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.draft(id).await?;
        let spec = self.core.store.spec(id).await?;
        let mut events = Vec::new();
        let (state, code, reason) = Self::first_state(&spec.work);
        if state == JobState::Queued {
            self.check_queue().await?;
            let state = view.state.after(Happening::Submitted)?;
            events.push(EventBody::StateChanged { state, code: None, reason: None }.into());
        } else {
            events.push(EventBody::StateChanged { state, code, reason }.into());
        }
        self.core.store.append(id, Fence::Anybody, events).await?;
        self.core.queue_changed.notify_one();
        self.core.store.job(id).await
    }

    /// A new job that does the same as another one, with the same files.
    ///
    /// # Errors
    /// There is no such job, or the queue is full.
    pub async fn retry(&self, id: JobId) -> Result<Accepted, OrchestratorError> {
        let spec = self.core.store.spec(id).await?;
        self.check_queue().await?;
        let copy = JobId::generate();
        let (from, to) = (self.core.folder.upload(id), self.core.folder.upload(copy));
        let copying =
            tokio::task::spawn_blocking(move || if from.is_dir() { copy_tree(&from, &to) } else { Ok(()) });
        copying
            .await
            .map_err(io::Error::other)
            .and_then(|copied| copied)
            .map_err(OrchestratorError::io("copying the files of the job"))?;
        let (state, code, reason) = Self::first_state(&spec.work);
        let hint = reason.clone();
        let events = vec![EventBody::StateChanged { state, code, reason }.into()];
        match self.core.store.create(NewRecord { id: copy, spec, events, idempotency: None }).await? {
            Created::New(view) => {
                self.core.queue_changed.notify_one();
                Ok(Accepted { view: *view, repeated: Repeated::No, hint })
            }
            Created::Repeated(_) | Created::Mismatch => Err(OrchestratorError::IdempotencyMismatch),
        }
    }

    async fn draft(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if view.state != JobState::Draft {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: view.state,
                problem: "it is no draft; send it with `\"start\": false` to add files first".into(),
            });
        }
        Ok(view)
    }

    /// How many bytes may still be added to a draft.
    async fn upload_budget(&self, id: JobId) -> Result<u64, OrchestratorError> {
        self.draft(id).await?;
        let spec = self.core.store.spec(id).await?;
        let disk = spec.limits.disk_mib.value().saturating_mul(1024 * 1024);
        Ok(disk.saturating_sub(tree_bytes(&self.core.folder.upload(id))))
    }
}

/// A file that is being received. Removed when it is dropped, whatever the reason.
struct Incoming {
    path: PathBuf,
    size: u64,
}

impl Incoming {
    async fn receive(
        folder: &Path,
        mode: Option<u32>,
        budget: u64,
        mut body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<Self, OrchestratorError> {
        let mut incoming = Self { path: folder.join(format!("incoming-{}", Uuid::now_v7())), size: 0 };
        let mut file = create(&incoming.path, mode.unwrap_or(0o644))
            .map_err(OrchestratorError::io("making a file for an upload"))?;
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(OrchestratorError::io("reading the body of the request"))?;
            incoming.size += bytes.len() as u64;
            if incoming.size > budget {
                return Err(too_large(budget));
            }
            file.write_all(&bytes).map_err(OrchestratorError::io("writing an upload"))?;
        }
        Ok(incoming)
    }

    /// Puts it where it belongs; returns its size.
    fn keep(self, target: &Path) -> io::Result<u64> {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(&self.path, target)?;
        Ok(self.size)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn too_large(budget: u64) -> OrchestratorError {
    file_error(
        FileErrorCode::TooLarge,
        format!("the files take more than the {budget} bytes that the job's disk has left"),
    )
}

fn place_error(path: &str, error: io::Error) -> OrchestratorError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => FileErrorCode::NotFound,
        io::ErrorKind::IsADirectory => FileErrorCode::IsDirectory,
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => FileErrorCode::NotDirectory,
        _ => return OrchestratorError::io(format!("writing {path}"))(error),
    };
    file_error(code, format!("`{path}`: {error}"))
}

fn create(target: &Path, mode: u32) -> io::Result<File> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().write(true).create(true).truncate(true).mode(mode & 0o777).open(target)
}

fn tree_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => tree_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// What may still come out of an archive.
struct Budget {
    bytes: u64,
    files: u64,
    whole: u64,
}

impl Budget {
    fn take_file(&mut self) -> Result<(), OrchestratorError> {
        self.files = self.files.checked_sub(1).ok_or_else(|| {
            file_error(FileErrorCode::TooLarge, format!("the archive has more than {MAX_FILES} entries"))
        })?;
        Ok(())
    }

    /// Copies what really comes, whatever the archive claims.
    fn copy(&mut self, from: &mut impl Read, to: &mut File) -> Result<(), OrchestratorError> {
        let copied = io::copy(&mut from.take(self.bytes.saturating_add(1)), to).map_err(|error| {
            match error.kind() {
                // What the readers of archives say of content that is damaged.
                io::ErrorKind::InvalidData
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::UnexpectedEof
                | io::ErrorKind::Other => broken(error),
                _ => OrchestratorError::io("unpacking an archive")(error),
            }
        })?;
        self.bytes = self.bytes.checked_sub(copied).ok_or_else(|| too_large(self.whole))?;
        Ok(())
    }
}

fn unpack(archive: &Path, kind: ArchiveKind, target: &Path, budget: u64) -> Result<(), OrchestratorError> {
    let file = File::open(archive).map_err(OrchestratorError::io("opening an uploaded archive"))?;
    let mut budget = Budget { bytes: budget, files: MAX_FILES, whole: budget };
    match kind {
        ArchiveKind::Zip => unpack_zip(file, target, &mut budget),
        ArchiveKind::Tar => unpack_tar(BufReader::new(file), target, &mut budget),
        ArchiveKind::TarGz => unpack_tar(MultiGzDecoder::new(BufReader::new(file)), target, &mut budget),
    }
}

fn broken(error: impl std::fmt::Display) -> OrchestratorError {
    file_error(FileErrorCode::Other, format!("the archive cannot be read: {error}"))
}

fn refused(name: &str, why: &str) -> OrchestratorError {
    file_error(FileErrorCode::OutsideWorkspace, format!("the archive has `{name}`, which {why}"))
}

/// The place of an entry; `None` for the root of the archive.
fn place(name: &str, target: &Path) -> Result<Option<PathBuf>, OrchestratorError> {
    if name.trim_matches(['/', '.']).is_empty() && !name.contains("..") {
        return Ok(None);
    }
    if name.starts_with('/') || name.contains('\\') {
        return Err(refused(name, "is no relative path"));
    }
    workspace_path(name)
        .map(|path| Some(target.join(path)))
        .map_err(|_| refused(name, "leads out of the workspace"))
}

fn unpack_zip(file: File, target: &Path, budget: &mut Budget) -> Result<(), OrchestratorError> {
    let mut archive = ZipArchive::new(file).map_err(broken)?;
    for index in 0..archive.len() {
        budget.take_file()?;
        let mut entry = archive.by_index(index).map_err(broken)?;
        let name = entry.name().map_err(broken)?.into_owned();
        let Some(path) = place(&name, target)? else { continue };
        if entry.is_symlink() {
            return Err(refused(&name, "is a link"));
        }
        if entry.is_dir() {
            fs::create_dir_all(&path).map_err(|error| place_error(&name, error))?;
            continue;
        }
        let mode = entry.unix_mode().unwrap_or(0o644);
        let mut out = create(&path, mode).map_err(|error| place_error(&name, error))?;
        budget.copy(&mut entry, &mut out)?;
    }
    Ok(())
}

fn unpack_tar(reader: impl Read, target: &Path, budget: &mut Budget) -> Result<(), OrchestratorError> {
    let mut archive = tar::Archive::new(reader);
    for entry in archive.entries().map_err(broken)? {
        budget.take_file()?;
        let mut entry = entry.map_err(broken)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let Some(path) = place(&name, target)? else { continue };
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir_all(&path).map_err(|error| place_error(&name, error))?,
            EntryType::Regular | EntryType::Continuous => {
                let mode = entry.header().mode().unwrap_or(0o644);
                let mut out = create(&path, mode).map_err(|error| place_error(&name, error))?;
                budget.copy(&mut entry, &mut out)?;
            }
            EntryType::XGlobalHeader
            | EntryType::XHeader
            | EntryType::GNULongName
            | EntryType::GNULongLink => {}
            EntryType::Symlink | EntryType::Link => return Err(refused(&name, "is a link")),
            _ => return Err(refused(&name, "is neither a file nor a directory")),
        }
    }
    Ok(())
}

/// Writes the files of an upload as tar.
pub(crate) fn pack(folder: &Path, out: impl Write) -> io::Result<()> {
    let mut builder = tar::Builder::new(out);
    builder.follow_symlinks(false);
    builder.append_dir_all("", folder)?;
    builder.into_inner()?.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zip_with(name: &str, content: &[u8]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap().into_inner()
    }

    fn unpack_bytes(
        bytes: &[u8],
        kind: ArchiveKind,
        budget: u64,
    ) -> Result<tempfile::TempDir, OrchestratorError> {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        fs::write(&archive, bytes).unwrap();
        unpack(&archive, kind, &folder.path().join("upload"), budget).map(|()| folder)
    }

    #[test]
    fn a_zip_is_unpacked() {
        let folder = unpack_bytes(&zip_with("a/b.txt", b"hello"), ArchiveKind::Zip, 100).unwrap();
        assert_eq!(fs::read(folder.path().join("upload/a/b.txt")).unwrap(), b"hello");
    }

    #[test]
    fn names_that_lead_out_are_refused_by_name() {
        for name in ["../evil", "a/../../evil", "/etc/passwd"] {
            let error = unpack_bytes(&zip_with(name, b"x"), ArchiveKind::Zip, 100).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(error.code(), "path_outside_workspace");
        }
    }

    #[test]
    fn an_archive_that_grows_beyond_the_disk_is_refused() {
        let bomb = zip_with("zeros", &vec![0; 1 << 20]);
        assert!(bomb.len() < 10_000);
        assert_eq!(unpack_bytes(&bomb, ArchiveKind::Zip, 1000).unwrap_err().code(), "file_too_large");
    }

    #[test]
    fn links_in_a_tar_are_refused() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "link", "/etc/passwd").unwrap();
        let error = unpack_bytes(&builder.into_inner().unwrap(), ArchiveKind::Tar, 1000).unwrap_err();
        assert!(error.to_string().contains("`link`, which is a link"), "{error}");
    }

    #[test]
    fn garbage_is_no_archive() {
        for kind in [ArchiveKind::Zip, ArchiveKind::TarGz] {
            assert!(unpack_bytes(b"garbage garbage garbage", kind, 1000).is_err());
        }
    }
}
