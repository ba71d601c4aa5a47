//! Files beside the log whose digests the log has: the result of a job, and the list of files that it touched.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::deeds::Weighed;

/// Where the list of files lies in the folder of a job.
pub(crate) const FILE_LIST: &str = "audit/files.jsonl";

/// A file beside the log, as the log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredFile {
    /// Its name in the folder of the job.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

impl StoredFile {
    /// A file as it is now.
    pub(crate) fn of(folder: &Path, name: &str) -> io::Result<Self> {
        let weighed = weigh(&folder.join(name))?;
        Ok(Self { name: name.to_owned(), bytes: weighed.bytes(), sha256: weighed.sha256() })
    }

    /// How the file in a folder compares.
    pub(crate) fn compare(&self, folder: &Path) -> FileState {
        let path = folder.join(&self.name);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => FileState::Absent,
            // What is no plain file is not read: it may have no end.
            Ok(facts) if facts.is_file() && facts.len() == self.bytes => match weigh(&path) {
                Ok(weighed) if weighed.sha256() == self.sha256 => FileState::Sound,
                _ => FileState::Changed,
            },
            _ => FileState::Changed,
        }
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

/// Looks at the files of a job's folder whose digests the log has, newest digest last.
pub(super) fn look(folder: &Path, stored: &[StoredFile]) -> Vec<FileAudit> {
    let mut found: Vec<FileAudit> = Vec::new();
    for file in stored.iter().rev() {
        if found.iter().all(|known| known.name != file.name) {
            found.push(FileAudit { name: file.name.clone(), state: file.compare(folder) });
        }
    }
    if found.iter().all(|known| known.name != FILE_LIST) && folder.join(FILE_LIST).exists() {
        found.push(FileAudit { name: FILE_LIST.to_owned(), state: FileState::Unknown });
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn weigh(path: &Path) -> io::Result<Weighed> {
    let mut file = File::open(path)?;
    let mut weighed = Weighed::default();
    let mut buffer = vec![0; 32 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(weighed),
            count => weighed.add(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_another_or_gone_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output.zip");
        fs::write(&path, "as it was").unwrap();
        let stored = StoredFile::of(folder.path(), "output.zip").unwrap();
        assert_eq!(stored.compare(folder.path()), FileState::Sound);
        fs::write(&path, "as it is!").unwrap();
        assert_eq!(stored.compare(folder.path()), FileState::Changed, "of the same size");
        fs::remove_file(&path).unwrap();
        assert_eq!(stored.compare(folder.path()), FileState::Absent);
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(stored.compare(folder.path()), FileState::Changed, "without reading it");
    }

    #[test]
    fn the_newest_digest_counts_and_a_list_without_one_is_said_to_be_so() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("audit")).unwrap();
        fs::write(folder.path().join(FILE_LIST), "one\n").unwrap();
        let unknown = [FileAudit { name: FILE_LIST.into(), state: FileState::Unknown }];
        assert_eq!(look(folder.path(), &[]), unknown);
        let first = StoredFile::of(folder.path(), FILE_LIST).unwrap();
        fs::write(folder.path().join(FILE_LIST), "one\ntwo\n").unwrap();
        let second = StoredFile::of(folder.path(), FILE_LIST).unwrap();
        let state = |stored: &[StoredFile]| look(folder.path(), stored)[0].state;
        assert_eq!(state(&[first.clone(), second.clone()]), FileState::Sound);
        assert_eq!(state(&[second, first]), FileState::Changed);
    }
}
