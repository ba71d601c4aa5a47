//! Backups: one archive (tar, zstd) with a copy of the database and the folders of its jobs, made while a server
//! runs.
//!
//! The database is copied first, as of one moment, and the files after it. A result file is renamed into place before
//! the database refers to it, so every result in the copy exists. Only a checkpoint can be replaced by a later one in
//! between: checkpoints are held open from before the copy, and the copy is repeated if that was not enough. The
//! digests of all files come last, so an archive that ends with them is complete.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use job::{JobView, format_time};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::{DATABASE_FILE, LocalDatabase, TrustedKeys};
use tar::{Builder, Header};

use crate::clock::now_ms;
use crate::data_folder::AUTHORITY;
use crate::error::OrchestratorError;

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const FORMAT: u32 = 1;
/// How often the database is copied again because a checkpoint was replaced in the meantime.
const ATTEMPTS: u32 = 5;
const LEVEL: i32 = 3;
/// For files that only the server's user may read.
const PRIVATE_MODE: u32 = 0o600;

/// The last entry of an archive: a list of its files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) caisson: String,
    pub(crate) created: String,
    /// The keys whose signed heads the original server trusts; absent in older archives.
    #[serde(default)]
    pub(crate) audit_keys: Option<Vec<String>>,
    pub(crate) files: Vec<ManifestFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestFile {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) sha256: String,
}

/// Contents of a backup or of a restored folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// When the backup was made, as RFC 3339.
    pub created: String,
    pub jobs: usize,
    /// Number of jobs that are not over.
    pub unfinished: usize,
    /// Number of files, including the database.
    pub files: usize,
    pub bytes: u64,
    /// Jobs whose files were removed while the backup was made.
    pub gone: Vec<String>,
}

/// Writes a backup of a data folder, whether or not a server is using it. Never overwrites an existing file. A file
/// under the final name is always complete.
///
/// # Errors
/// The folder is not a Caisson data folder, the archive exists, or a file cannot be read or written.
pub fn back_up(
    database: &dyn LocalDatabase,
    data: &Path,
    archive: &Path,
) -> Result<BackupReport, OrchestratorError> {
    if !data.join(DATABASE_FILE).is_file() {
        return Err(OrchestratorError::Backup(format!(
            "{} is no data folder of a server; name it with --data",
            data.display()
        )));
    }
    refuse_existing(archive)?;
    let partial = beside(archive, "partial");
    let file = open_locked(&partial, archive)?;
    let scratch =
        Scratch { database: beside(archive, "partial-database"), file: beside(archive, "partial-file") };
    scratch.remove();
    let written = refuse_existing(archive)
        .and_then(|()| write((database, data), &file, &partial, &scratch))
        .and_then(|report| {
            fs::rename(&partial, archive)
                .map_err(OrchestratorError::io(format!("writing {}", archive.display())))?;
            Ok(report)
        });
    scratch.remove();
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

fn refuse_existing(archive: &Path) -> Result<(), OrchestratorError> {
    if archive.exists() {
        return Err(OrchestratorError::Backup(format!("{} exists; choose another name", archive.display())));
    }
    Ok(())
}

/// Opens and locks the unfinished archive; two processes writing the same file would corrupt it.
fn open_locked(partial: &Path, archive: &Path) -> Result<File, OrchestratorError> {
    let failed = || OrchestratorError::io(format!("writing {}", partial.display()));
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(PRIVATE_MODE)
        .open(partial)
        .map_err(failed())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let archive = archive.display();
            return Err(OrchestratorError::Backup(format!(
                "another backup to {archive} is in progress; choose another name"
            )));
        }
        Err(TryLockError::Error(error)) => return Err(failed()(error)),
    }
    file.set_len(0).map_err(failed())?;
    Ok(file)
}

fn beside(archive: &Path, suffix: &str) -> PathBuf {
    let mut name = archive.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

/// Temporary files that exist only during a backup.
struct Scratch {
    database: PathBuf,
    file: PathBuf,
}

impl Scratch {
    fn remove(&self) {
        for path in [&self.database, &self.file] {
            let _ = fs::remove_file(path);
        }
    }
}

fn write(
    (database, data): (&dyn LocalDatabase, &Path),
    file: &File,
    partial: &Path,
    scratch: &Scratch,
) -> Result<BackupReport, OrchestratorError> {
    let failed = || OrchestratorError::io(format!("writing {}", partial.display()));
    let (jobs, checkpoints) = copy(database, data, scratch)?;
    let encoder = zstd::Encoder::new(BufWriter::new(file), LEVEL).map_err(failed())?;
    let mut archive = Archive { tar: Builder::new(encoder), files: Vec::new() };
    let database = File::open(&scratch.database).map_err(failed())?;
    archive.add(DATABASE_FILE, database, PRIVATE_MODE)?;
    let mut gone = Vec::new();
    for job in &jobs {
        if !add_job(&mut archive, data, job, &checkpoints, scratch)? {
            gone.push(job.job_id.to_string());
        }
    }
    let created = format_time(now_ms());
    let report = BackupReport {
        created: created.clone(),
        jobs: jobs.len(),
        unfinished: jobs.iter().filter(|job| !job.state.is_over()).count(),
        files: archive.files.len(),
        bytes: archive.files.iter().map(|file| file.size).sum(),
        gone,
    };
    let audit_keys = TrustedKeys::of_folder(data).list();
    archive.finish(created, audit_keys).and_then(|file| file.sync_all()).map_err(failed())?;
    Ok(report)
}

/// Checkpoints by their path in the archive, held open so that they stay readable after they are replaced.
type Checkpoints = HashMap<String, File>;

/// Copies the database and makes sure that every checkpoint it refers to can be read.
fn copy(
    database: &dyn LocalDatabase,
    data: &Path,
    scratch: &Scratch,
) -> Result<(Vec<JobView>, Checkpoints), OrchestratorError> {
    for _ in 0..ATTEMPTS {
        scratch.remove();
        let mut held = hold_checkpoints(data);
        database.copy(data, &scratch.database)?;
        let jobs = database.jobs_in_copy(&scratch.database)?;
        let all_held = jobs.iter().filter_map(checkpoint_of).all(|path| {
            if !held.contains_key(&path)
                && let Ok(file) = File::open(data.join(&path))
            {
                held.insert(path.clone(), file);
            }
            held.contains_key(&path)
        });
        if all_held {
            return Ok((jobs, held));
        }
    }
    Err(OrchestratorError::Backup("checkpoints of running jobs are replaced too fast; try again".into()))
}

fn hold_checkpoints(data: &Path) -> Checkpoints {
    let mut held = HashMap::new();
    for job in entries(&data.join("jobs")).into_iter().flatten() {
        for file in entries(&data.join("jobs").join(&job)).into_iter().flatten() {
            if is_checkpoint(&file)
                && let Ok(open) = File::open(data.join("jobs").join(&job).join(&file))
            {
                held.insert(format!("jobs/{job}/{file}"), open);
            }
        }
    }
    held
}

/// The checkpoint that a job would resume from, as a path in the archive.
fn checkpoint_of(job: &JobView) -> Option<String> {
    let steps = job.checkpoint_steps.filter(|_| !job.state.is_over())?;
    Some(format!("jobs/{}/checkpoint-{steps}.tar.zst", job.job_id))
}

fn is_checkpoint(name: &str) -> bool {
    name.starts_with("checkpoint-") && !is_partial(name)
}

fn is_partial(name: &str) -> bool {
    name.ends_with("partial")
}

/// Files that are skipped: half-written files, uploads in progress, and checkpoints, which are added separately.
fn is_skipped(name: &str) -> bool {
    is_partial(name) || name.starts_with("incoming-") || name.starts_with("checkpoint-")
}

/// The names in a folder, sorted. Fails if the folder does not exist.
fn entries(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Adds the files of a job. Returns `false` if its result is gone because the job was removed in the meantime.
fn add_job(
    archive: &mut Archive<impl Write>,
    data: &Path,
    job: &JobView,
    checkpoints: &Checkpoints,
    scratch: &Scratch,
) -> Result<bool, OrchestratorError> {
    let wanted = checkpoint_of(job);
    if let Some(path) = &wanted
        && let Some(file) = checkpoints.get(path)
    {
        let file = file.try_clone().map_err(OrchestratorError::io(format!("reading {path}")))?;
        archive.add(path, file, PRIVATE_MODE)?;
    }
    let mut found_result = false;
    let top = format!("jobs/{}", job.job_id);
    let result = format!("{top}/output.zip");
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for name in entries(&data.join(&folder)).unwrap_or_default() {
            let path = format!("{folder}/{name}");
            let Ok(metadata) = fs::symlink_metadata(data.join(&path)) else { continue };
            if metadata.is_dir() {
                // The private key of the job's CA never goes into an archive; a restored job creates its own.
                if !(folder == top && name == AUTHORITY) {
                    folders.push(path);
                }
            } else if metadata.is_file() && !(folder == top && is_skipped(&name)) {
                let is_result = path == result;
                let still = if is_result { None } else { Some(scratch) };
                let added = add_file(archive, data, &path, still)?;
                found_result |= added && is_result;
            }
        }
    }
    Ok(found_result || job.artifact.is_none())
}

/// Adds a file. Returns `false` if it is gone. A file that may still change is copied first and added from the copy.
fn add_file(
    archive: &mut Archive<impl Write>,
    data: &Path,
    path: &str,
    may_change: Option<&Scratch>,
) -> Result<bool, OrchestratorError> {
    let reading = || OrchestratorError::io(format!("reading {path}"));
    let mut file = match File::open(data.join(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(reading())?,
    };
    let mode = file.metadata().map_err(reading())?.permissions().mode() & 0o777;
    if let Some(scratch) = may_change {
        let mut still = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&scratch.file)
            .map_err(reading())?;
        io::copy(&mut file, &mut still).and_then(|_| still.rewind()).map_err(reading())?;
        file = still;
    }
    archive.add(path, file, mode)?;
    Ok(true)
}

struct Archive<W: Write> {
    tar: Builder<W>,
    files: Vec<ManifestFile>,
}

impl<W: Write> Archive<W> {
    fn add(&mut self, path: &str, file: File, mode: u32) -> Result<(), OrchestratorError> {
        let size = file.metadata().map_err(OrchestratorError::io(format!("reading {path}")))?.len();
        let mut reader = Hashed::new(file.take(size));
        self.append(path, size, mode, &mut reader)
            .map_err(OrchestratorError::io(format!("adding {path} to the backup")))?;
        let (sha256, read) = reader.finish();
        if read != size {
            return Err(OrchestratorError::Backup(format!(
                "{path} became shorter while it was read; try again"
            )));
        }
        self.files.push(ManifestFile { path: path.to_owned(), size, mode, sha256 });
        Ok(())
    }

    fn append(&mut self, path: &str, size: u64, mode: u32, reader: impl Read) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(size);
        header.set_mode(mode);
        self.tar.append_data(&mut header, path, reader)
    }
}

impl<'a> Archive<zstd::Encoder<'_, BufWriter<&'a File>>> {
    fn finish(mut self, created: String, audit_keys: Vec<String>) -> io::Result<&'a File> {
        let files = std::mem::take(&mut self.files);
        let manifest = Manifest {
            format: FORMAT,
            caisson: env!("CARGO_PKG_VERSION").into(),
            created,
            audit_keys: Some(audit_keys),
            files,
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::other)?;
        self.append(MANIFEST, text.len() as u64, PRIVATE_MODE, text.as_slice())?;
        let writer = self.tar.into_inner()?.finish()?;
        writer.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// A reader that computes the SHA-256 digest of what it passes on.
pub(crate) struct Hashed<R> {
    inner: R,
    digest: Sha256,
    bytes: u64,
}

impl<R> Hashed<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, digest: Sha256::new(), bytes: 0 }
    }

    /// The digest in hexadecimal, and the number of bytes read.
    pub(crate) fn finish(self) -> (String, u64) {
        let text = self.digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        (text, self.bytes)
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.digest.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}
