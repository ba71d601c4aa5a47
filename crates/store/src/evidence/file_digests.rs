//! Files beside the log that the log vouches for: the artifact of a job and the list of files it touched, each by
//! digest, and the list of its connections, line by line.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use job::{ContentDigest, JobId, StoredFile};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Path of the list of files, relative to the job's folder.
pub const FILE_LIST: &str = "audit/files.jsonl";

/// Path of the list of connections, relative to the job's folder.
pub const NETWORK_LIST: &str = "audit/network.jsonl";

/// The folder of a job in a data folder.
#[must_use]
pub fn job_folder(data: &Path, job: JobId) -> PathBuf {
    data.join("jobs").join(job.to_string())
}

/// Measures a file as it is now.
///
/// # Errors
/// The file cannot be read.
pub fn measure_file(folder: &Path, name: &str) -> io::Result<StoredFile> {
    let file_digest = digest_file(&folder.join(name))?;
    Ok(StoredFile { name: name.to_owned(), bytes: file_digest.bytes(), sha256: file_digest.sha256() })
}

/// Compares the file in `folder` with the recorded size and digest.
pub(crate) fn compare(stored: &StoredFile, folder: &Path) -> FileState {
    let path = folder.join(&stored.name);
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => FileState::Absent,
        // Only regular files are read: anything else may be endless.
        Ok(facts) if facts.is_file() && facts.len() == stored.bytes => match digest_file(&path) {
            Ok(file_digest) if file_digest.sha256() == stored.sha256 => FileState::Sound,
            _ => FileState::Changed,
        },
        _ => FileState::Changed,
    }
}

/// How a file beside the log compares with what the log has of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// It is what it was.
    Sound,
    /// It is another one.
    Changed,
    /// It is not there.
    Absent,
    /// Its last lines are missing, and the log has them: a server was about to write them. It does so when it starts again.
    Behind,
    /// The log has no digest of it: the job ended under a server of before there were any, or the list came too late.
    Unknown,
}

/// A file beside the log that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FileAudit {
    /// Its name in the folder of the job.
    pub name: String,
    /// How it compares.
    pub state: FileState,
}

/// The list of connections as found in a job's folder.
pub enum NetworkFile {
    Absent,
    /// It cannot be read, or is not a regular file.
    Unreadable,
    Read(StoredFile),
}

impl NetworkFile {
    /// The list as it is now. A caller that compares it with the log must read the log afterwards: each line is
    /// written to the log before it is written to the file.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        match fs::symlink_metadata(folder.join(NETWORK_LIST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Absent,
            Ok(facts) if facts.is_file() => {
                measure_file(folder, NETWORK_LIST).map_or(Self::Unreadable, Self::Read)
            }
            _ => Self::Unreadable,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Read(file) => file.bytes,
            Self::Absent | Self::Unreadable => 0,
        }
    }
}

/// Compares the list of connections with the lines in the log.
pub(crate) struct NetworkCheck {
    file: NetworkFile,
    /// Digest of the lines in the log, up to the length of the file.
    expected: ContentDigest,
    /// The length of all lines in the log.
    bytes: u64,
    /// When the first line that the file lacks was written to the log.
    missing_since_ms: Option<i64>,
}

impl NetworkCheck {
    pub(crate) fn new(file: NetworkFile) -> Self {
        Self { file, expected: ContentDigest::default(), bytes: 0, missing_since_ms: None }
    }

    /// Adds the next line of the log.
    pub(crate) fn take(&mut self, line: &[u8], time_ms: i64) {
        for piece in [line, b"\n"] {
            let room = self.file.bytes().saturating_sub(self.expected.bytes());
            let fitting = usize::try_from(room).unwrap_or(usize::MAX).min(piece.len());
            self.expected.add(&piece[..fitting]);
            self.bytes += piece.len() as u64;
        }
        if self.bytes > self.file.bytes() {
            self.missing_since_ms.get_or_insert(time_ms);
        }
    }

    /// How the file compares; `None` if there is no file and should be none. Missing lines must be newer than
    /// `missing_after_ms`.
    pub(crate) fn finish(self, missing_after_ms: i64) -> Option<FileState> {
        let Self { file, expected, bytes, missing_since_ms } = self;
        Some(match file {
            NetworkFile::Absent if bytes == 0 => return None,
            NetworkFile::Absent => FileState::Absent,
            NetworkFile::Read(file) if file.bytes <= bytes && expected.sha256() == file.sha256 => {
                match missing_since_ms {
                    None => FileState::Sound,
                    Some(since_ms) if since_ms >= missing_after_ms => FileState::Behind,
                    Some(_) => FileState::Changed,
                }
            }
            NetworkFile::Read(_) | NetworkFile::Unreadable => FileState::Changed,
        })
    }

    /// How the file compares with the digest of the lines that the log had.
    pub(crate) fn against(&self, bytes: u64, sha256: &str) -> Option<FileState> {
        Some(match &self.file {
            NetworkFile::Absent if bytes == 0 => return None,
            NetworkFile::Absent => FileState::Absent,
            NetworkFile::Read(file) if file.bytes == bytes && file.sha256 == sha256 => FileState::Sound,
            NetworkFile::Read(_) | NetworkFile::Unreadable => FileState::Changed,
        })
    }

    /// The result for a job whose log has no record of the list.
    pub(crate) fn unknown(&self) -> Option<FileState> {
        match self.file {
            NetworkFile::Absent => None,
            NetworkFile::Read(_) | NetworkFile::Unreadable => Some(FileState::Unknown),
        }
    }
}

/// Checks the files of a job's folder whose digests are in the log. If a file has several digests, the last one
/// counts.
pub(crate) fn look(folder: &Path, stored: &[StoredFile]) -> Vec<FileAudit> {
    let mut found: Vec<FileAudit> = Vec::new();
    for file in stored.iter().rev() {
        if found.iter().all(|known| known.name != file.name) {
            found.push(FileAudit { name: file.name.clone(), state: compare(file, folder) });
        }
    }
    if found.iter().all(|known| known.name != FILE_LIST) && folder.join(FILE_LIST).exists() {
        found.push(FileAudit { name: FILE_LIST.to_owned(), state: FileState::Unknown });
    }
    found
}

fn digest_file(path: &Path) -> io::Result<ContentDigest> {
    let mut file = File::open(path)?;
    let mut file_digest = ContentDigest::default();
    let mut buffer = vec![0; 32 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(file_digest),
            count => file_digest.add(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_and_missing_files_are_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output.zip");
        fs::write(&path, "as it was").unwrap();
        let stored = measure_file(folder.path(), "output.zip").unwrap();
        assert_eq!(compare(&stored, folder.path()), FileState::Sound);
        fs::write(&path, "as it is!").unwrap();
        assert_eq!(compare(&stored, folder.path()), FileState::Changed, "of the same size");
        fs::remove_file(&path).unwrap();
        assert_eq!(compare(&stored, folder.path()), FileState::Absent);
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(compare(&stored, folder.path()), FileState::Changed, "without reading it");
    }

    #[test]
    fn connection_list_is_compared_with_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NETWORK_LIST);
        fs::create_dir(folder.path().join("audit")).unwrap();
        let look = |lines: &[&str]| {
            let mut check = NetworkCheck::new(NetworkFile::of(folder.path()));
            lines.iter().zip(10..).for_each(|(line, time_ms)| check.take(line.as_bytes(), time_ms));
            check.finish(11)
        };
        assert_eq!((look(&[]), look(&["one"])), (None, Some(FileState::Absent)));
        fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(look(&["one", "two"]), Some(FileState::Sound));
        assert_eq!(look(&["one", "two", "new"]), Some(FileState::Behind));
        for (text, state) in [
            ("one\n", FileState::Behind),
            ("one\ntw", FileState::Behind),
            ("", FileState::Changed),
            ("two\n", FileState::Changed),
            ("one\nTWO\n", FileState::Changed),
            ("one\ntwo\nmore\n", FileState::Changed),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(look(&["one", "two"]), Some(state), "{text:?}");
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(look(&[]), Some(FileState::Changed), "without reading it");
    }

    #[test]
    fn newest_digest_counts_and_a_list_without_digest_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("audit")).unwrap();
        fs::write(folder.path().join(FILE_LIST), "one\n").unwrap();
        let unknown = [FileAudit { name: FILE_LIST.into(), state: FileState::Unknown }];
        assert_eq!(look(folder.path(), &[]), unknown);
        let first = measure_file(folder.path(), FILE_LIST).unwrap();
        fs::write(folder.path().join(FILE_LIST), "one\ntwo\n").unwrap();
        let second = measure_file(folder.path(), FILE_LIST).unwrap();
        let state = |stored: &[StoredFile]| look(folder.path(), stored)[0].state;
        assert_eq!(state(&[first.clone(), second.clone()]), FileState::Sound);
        assert_eq!(state(&[second, first]), FileState::Changed);
    }
}
