//! The file that starts a sandbox and by which it is found again. It has one JSON value per line: the backend's own
//! record, the launch specification, then the records that the launcher appends.
//!
//! It is a single file because creating and removing files dominates the run time of a short job.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, fcntl_lock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{LaunchError, Step};
use crate::spec::{EndRecord, LaunchSpec, Running};

/// Name of the file in the sandbox's directory. The write lock shows that the launcher lives, and which process it
/// is. The modification time shows when the file access log was last complete.
pub const LAUNCH_FILE: &str = "launch.jsonl";
/// Name of the file once no launcher may start any more.
const CLOSED_FILE: &str = "launch-closed.jsonl";

/// A record that the launcher appends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchRecord {
    /// The guest is running.
    Running(Running),
    /// Every process is gone.
    Ended(EndRecord),
    /// The disk is about to be synced.
    SyncStarted { number: u64 },
    /// The disk was synced, or the sync failed.
    Synced(Synced),
}

/// The result of syncing the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    pub number: u64,
    /// Why the disk does not hold everything that was written to it, now or at any time before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// The contents of a launch file.
pub struct LaunchFileContents {
    text: Vec<u8>,
}

impl LaunchFileContents {
    /// Reads the launch file of a sandbox; `None` if there is none.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        for name in [LAUNCH_FILE, CLOSED_FILE] {
            match fs::read(directory.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other.map(|text| Some(Self { text })),
            }
        }
        Ok(None)
    }

    /// The backend's own record; `None` if the line is incomplete.
    pub fn record<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        self.line(0)
    }

    /// The launch specification.
    pub fn spec(&self) -> io::Result<Option<LaunchSpec>> {
        self.line(1)
    }

    /// The resources of a running sandbox; `None` if it never ran.
    #[must_use]
    pub fn running(&self) -> Option<Running> {
        self.launch_records().find_map(|note| match note {
            LaunchRecord::Running(running) => Some(running),
            _ => None,
        })
    }

    /// How the sandbox ended; `None` if it has not ended or its launcher could not record it.
    #[must_use]
    pub fn ended(&self) -> Option<EndRecord> {
        self.launch_records().find_map(|note| match note {
            LaunchRecord::Ended(ended) => Some(ended),
            _ => None,
        })
    }

    /// The number of the last sync that was started; 0 if there was none.
    #[must_use]
    pub fn last_sync_started(&self) -> u64 {
        let started = self.launch_records().filter_map(|note| match note {
            LaunchRecord::SyncStarted { number } => Some(number),
            _ => None,
        });
        started.max().unwrap_or(0)
    }

    /// The result of a sync that was started after the one with this number.
    #[must_use]
    pub fn synced_after(&self, number: u64) -> Option<Synced> {
        self.launch_records().find_map(|note| match note {
            LaunchRecord::Synced(synced) if synced.number > number => Some(synced),
            _ => None,
        })
    }

    /// The first damage that any sync has found.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        self.launch_records().find_map(|note| match note {
            LaunchRecord::Synced(synced) => synced.damage,
            _ => None,
        })
    }

    fn launch_records(&self) -> impl Iterator<Item = LaunchRecord> {
        self.lines().skip(2).filter_map(|line| serde_json::from_slice(line).ok())
    }

    fn line<T: DeserializeOwned>(&self, number: usize) -> io::Result<Option<T>> {
        self.lines()
            .nth(number)
            .map(|line| serde_json::from_slice(line).map_err(io::Error::other))
            .transpose()
    }

    /// Complete lines only: a line without a line feed is still being written.
    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"))
    }
}

/// Writes the launch file of a new sandbox. As long as it exists, a launcher may start.
pub fn write(directory: &Path, record: &impl Serialize, spec: &LaunchSpec) -> io::Result<()> {
    let mut text = serde_json::to_vec(record)?;
    text.push(b'\n');
    serde_json::to_writer(&mut text, spec)?;
    text.push(b'\n');
    fs::write(directory.join(LAUNCH_FILE), text)
}

/// Prevents launchers from starting: one that was started just before, by a server that was then killed, finds the
/// file gone or locked and exits. The contents can still be read.
///
/// # Errors
/// A launcher has locked the file.
pub fn close(directory: &Path) -> io::Result<()> {
    let path = directory.join(LAUNCH_FILE);
    let file = match OpenOptions::new().write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(path, directory.join(CLOSED_FILE))
}

/// The launch file, locked by this launcher. The lock is released when the process exits.
pub(crate) struct LockedLaunchFile {
    file: File,
}

impl LockedLaunchFile {
    #[cfg(test)]
    pub(crate) fn of(file: File) -> Self {
        Self { file }
    }

    /// Locks the file for this process and reads the specification.
    pub(crate) fn take(path: &Path) -> Result<(LaunchSpec, Self), LaunchError> {
        let opening = || format!("opening {}", path.display());
        let mut file = OpenOptions::new().read(true).append(true).open(path).step(opening)?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
            .step(|| format!("locking {}", path.display()))?;
        let number = |facts: fs::Metadata| facts.ino();
        if fs::metadata(path).map(number).ok() != Some(file.metadata().map(number).step(opening)?) {
            let gone = io::Error::new(io::ErrorKind::NotFound, "the sandbox was removed");
            return Err(LaunchError::new(opening(), gone));
        }
        let reading = || format!("reading {}", path.display());
        let mut text = Vec::new();
        file.read_to_end(&mut text).step(reading)?;
        let nothing = || io::Error::new(io::ErrorKind::UnexpectedEof, "it says nothing");
        let spec =
            LaunchFileContents { text }.spec().and_then(|spec| spec.ok_or_else(nothing)).step(reading)?;
        Ok((spec, Self { file }))
    }

    pub(crate) fn add(&mut self, note: &LaunchRecord) -> Result<(), LaunchError> {
        let mut add = || -> io::Result<()> {
            let mut line = Vec::new();
            if self.ends_in_part_of_a_line()? {
                line.push(b'\n');
            }
            serde_json::to_writer(&mut line, note)?;
            line.push(b'\n');
            self.file.write_all(&line)
        };
        add().named("writing down what became of the sandbox")
    }

    /// Whether an earlier line was cut off, as on a full disk. Readers skip such a line only if the next one starts on a new line.
    fn ends_in_part_of_a_line(&self) -> io::Result<bool> {
        let Some(last) = self.file.metadata()?.len().checked_sub(1) else { return Ok(false) };
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, last)?;
        Ok(byte != *b"\n")
    }

    /// Signals that the file access log is complete.
    pub(crate) fn mark_file_audit_complete(&self) {
        // Failure is harmless: the requester waits only for a limited time.
        let _ = self.file.set_modified(SystemTime::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> LaunchFileContents {
        LaunchFileContents { text: text.into() }
    }

    #[test]
    fn incomplete_lines_are_ignored() {
        assert_eq!(text("").record::<u32>().unwrap(), None);
        assert_eq!(text("7").record::<u32>().unwrap(), None);
        assert_eq!(text("7\n").record::<u32>().unwrap(), Some(7));
        assert!(text("{\n").record::<u32>().is_err());
        let running = r#"{"running":{"guest_pid":5,"guest_started":6,"loop_device":null}}"#;
        assert_eq!(text(&format!("7\n{{}}\n{running}")).running(), None);
        assert_eq!(text(&format!("7\n{{}}\n{running}\n")).running().unwrap().guest_pid, 5);
        assert_eq!(text(&format!("7\n{{}}\n{running}\n")).ended(), None);
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_hide_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LAUNCH_FILE);
        fs::write(&path, "7\n{}\n{\"synced\":{\"num").unwrap();
        let mut held = LockedLaunchFile::of(OpenOptions::new().read(true).append(true).open(&path).unwrap());
        for number in 1..=2 {
            held.add(&LaunchRecord::SyncStarted { number }).unwrap();
        }
        let text = LaunchFileContents::read(directory.path()).unwrap().unwrap();
        assert_eq!(text.last_sync_started(), 2);
        let is_first = |note| matches!(note, LaunchRecord::SyncStarted { number: 1 });
        assert!(text.launch_records().any(is_first));
    }

    #[test]
    fn a_closed_launch_file_can_be_read_but_not_locked() {
        let directory = tempfile::tempdir().unwrap();
        close(directory.path()).unwrap();
        assert!(LaunchFileContents::read(directory.path()).unwrap().is_none());
        fs::write(directory.path().join(LAUNCH_FILE), "7\n").unwrap();
        close(directory.path()).unwrap();
        close(directory.path()).unwrap();
        let text = LaunchFileContents::read(directory.path()).unwrap().unwrap();
        assert_eq!(text.record::<u32>().unwrap(), Some(7));
        let error = LockedLaunchFile::take(&directory.path().join(LAUNCH_FILE)).err().unwrap();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    }
}
