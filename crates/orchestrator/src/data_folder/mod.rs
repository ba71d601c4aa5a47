//! The data folder: its lock and its layout.

pub(crate) mod result_files;

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use job::JobId;
use rustix::fs::{FlockOperation, flock};
use store::{FILE_LIST, NETWORK_LIST, job_folder};

use crate::error::OrchestratorError;

/// Path of the human-readable log, relative to the job's folder.
pub(crate) const AGENT_LOG: &str = "logs/agent.log";

/// The folder with a job's CA certificate and private key; never part of a backup.
pub(crate) const AUTHORITY: &str = "authority";
/// Contains an empty file for each job whose deletion has begun.
const DELETIONS: &str = "deletions";

/// The data folder of one server. Holds the folder's lock until it is dropped.
pub struct DataFolder {
    root: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if needed and locks it for this process.
    ///
    /// # Errors
    /// Another server has locked the folder, or it cannot be written.
    pub fn open(root: &Path) -> Result<Self, OrchestratorError> {
        for folder in [root.to_owned(), root.join("jobs")] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(OrchestratorError::io(format!("creating the folder {}", folder.display())))?;
            // Keep the remains of finished jobs on disk away from the sandbox disks, which come and go.
            if folder == root {
                sandbox::spread_children(root);
            }
        }
        let path = root.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(OrchestratorError::io(format!("opening {}", path.display())))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| OrchestratorError::FolderInUse { folder: root.display().to_string() })?;
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    #[must_use]
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    #[must_use]
    pub fn job(&self, job: JobId) -> PathBuf {
        job_folder(&self.root, job)
    }

    #[must_use]
    pub fn output(&self, job: JobId) -> PathBuf {
        self.job(job).join("output.zip")
    }

    /// The human-readable log of a job.
    #[must_use]
    pub fn agent_log(&self, job: JobId) -> PathBuf {
        self.job(job).join(AGENT_LOG)
    }

    /// The list of a job's connections.
    #[must_use]
    pub fn network_log(&self, job: JobId) -> PathBuf {
        self.job(job).join(NETWORK_LIST)
    }

    /// The list of files that a job touched.
    #[must_use]
    pub fn file_log(&self, job: JobId) -> PathBuf {
        self.job(job).join(FILE_LIST)
    }

    /// What the sandbox of a job has used over time.
    #[must_use]
    pub(crate) fn usage_log(&self, job: JobId) -> PathBuf {
        self.job(job).join("usage.jsonl")
    }

    /// The contents of the workspace at the start of a job, if the file list is the difference between start and end.
    #[must_use]
    pub fn files_before(&self, job: JobId) -> PathBuf {
        self.job(job).join("audit").join("files-before.json")
    }

    /// The CA that signs certificates for the hosts of a job's secrets.
    #[must_use]
    pub fn authority(&self, job: JobId) -> PathBuf {
        self.job(job).join(AUTHORITY)
    }

    /// The checkpoint of a job after `steps` steps.
    #[must_use]
    pub fn checkpoint(&self, job: JobId, steps: usize) -> PathBuf {
        self.job(job).join(format!("checkpoint-{steps}.tar.zst"))
    }

    /// The files uploaded for a job.
    #[must_use]
    pub fn upload(&self, job: JobId) -> PathBuf {
        self.job(job).join("upload")
    }

    /// The digest of the files that were submitted with a job.
    #[must_use]
    pub fn upload_digest(&self, job: JobId) -> PathBuf {
        self.job(job).join("upload.sha256")
    }

    /// Creates the folder of a job.
    pub fn make_job(&self, job: JobId) -> Result<(), OrchestratorError> {
        let logs = self.job(job).join("logs");
        fs::create_dir_all(&logs)
            .map_err(OrchestratorError::io(format!("creating the folder {}", logs.display())))
    }

    /// Removes files that an earlier server process has not finished writing.
    pub(crate) fn remove_partials(&self, job: JobId) {
        let folder = self.job(job);
        for folder in [folder.join("audit"), folder] {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()) {
                if path.extension().is_some_and(|extension| extension == "partial") {
                    let _ = fs::remove_file(path);
                }
            }
        }
    }

    /// Removes the folder of a job, if it exists.
    pub fn remove_job(&self, job: JobId) -> Result<(), OrchestratorError> {
        let folder = self.job(job);
        let mut removed = fs::remove_dir_all(&folder);
        if removed.as_ref().is_err_and(|error| error.kind() == ErrorKind::DirectoryNotEmpty) {
            // The last sample of the sandbox's usage was being stored when the job ended.
            removed = fs::remove_dir_all(&folder);
        }
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(OrchestratorError::io(format!("removing the folder {}", folder.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// Records that a job is about to be deleted, so that its folder is also removed if the server is killed first.
    /// Failure is not an error: a full disk may have no room for the record, and must not prevent deletions.
    pub(crate) fn note_deletion(&self, job: JobId) {
        let folder = self.root.join(DELETIONS);
        let noted = fs::create_dir_all(&folder).and_then(|()| File::create(folder.join(job.to_string())));
        if let Err(error) = noted {
            tracing::warn!(%job, %error, "the deletion of a job could not be noted");
        }
    }

    /// Removes the deletion record, once everything of the job is deleted.
    pub(crate) fn forget_deletion(&self, job: JobId) {
        // A record that stays is processed again later.
        let _ = fs::remove_file(self.root.join(DELETIONS).join(job.to_string()));
    }

    /// The jobs whose deletion has begun and not finished.
    pub(crate) fn noted_deletions(&self) -> Vec<JobId> {
        let entries = fs::read_dir(self.root.join(DELETIONS)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// The jobs whose folders were last modified before `moment_ms`. Skips folders that cannot be read.
    #[must_use]
    pub(crate) fn jobs_older_than(&self, moment_ms: i64) -> Vec<JobId> {
        let Ok(entries) = fs::read_dir(self.root.join("jobs")) else { return Vec::new() };
        let is_older = |entry: &fs::DirEntry| {
            let changed = entry.metadata().ok()?.modified().ok()?;
            let since = changed.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(i64::try_from(since.as_millis()).ok()? < moment_ms)
        };
        let job = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries
            .flatten()
            .filter(|entry| is_older(entry) == Some(true))
            .filter_map(|entry| job(&entry))
            .collect()
    }

    /// Size of a job's folder in bytes.
    #[must_use]
    pub fn job_bytes(&self, job: JobId) -> u64 {
        fn walk(folder: &Path) -> u64 {
            let Ok(entries) = fs::read_dir(folder) else { return 0 };
            entries
                .flatten()
                .map(|entry| match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => walk(&entry.path()),
                    Ok(metadata) => metadata.len(),
                    Err(_) => 0,
                })
                .sum()
        }
        walk(&self.job(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_partial_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(root.path()).unwrap();
        let job = JobId::generate();
        folder.make_job(job).unwrap();
        fs::create_dir(folder.job(job).join("audit")).unwrap();
        let [kept, partial] = ["output.zip", "output.zip.partial"].map(|name| folder.job(job).join(name));
        let [list, part] =
            ["files-a.jsonl", "files-a.0.partial"].map(|name| folder.job(job).join("audit").join(name));
        for file in [&kept, &partial, &list, &part] {
            fs::write(file, "x").unwrap();
        }
        folder.remove_partials(job);
        assert_eq!([kept, partial, list, part].map(|file| file.exists()), [true, false, true, false]);
    }

    #[test]
    fn second_server_on_the_same_folder_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let _first = DataFolder::open(root.path()).unwrap();
        let error = DataFolder::open(root.path()).err().unwrap().to_string();
        assert!(error.contains("in use by another caisson server"), "{error}");
    }
}
