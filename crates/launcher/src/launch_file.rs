//! The file by which a sandbox is started and found again. A line of JSON each: what the backend keeps for itself, what
//! the launcher is told, and then what the launcher adds.
//!
//! One file, because making and removing files is what a short job spends most of its time on.

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

/// Its name in the sandbox's directory. The write lock tells that the launcher lives, and which process it is; the time
/// of its last change, when the list of files was last whole.
pub const LAUNCH_FILE: &str = "launch.jsonl";
/// Its name once no launcher may come any more.
const CLOSED_FILE: &str = "launch-closed.jsonl";

/// What the launcher adds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The guest runs.
    Running(Running),
    /// Every process is gone.
    Ended(EndRecord),
    /// The disk is about to be synced.
    SyncStarted {
        /// Counts from 1.
        number: u64,
    },
    /// The disk was synced, or could not be.
    Synced(Synced),
}

/// What came of syncing the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// As in [`Note::SyncStarted`].
    pub number: u64,
    /// Why the disk does not hold everything that was written to it, now or at any time before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// What such a file says.
pub struct LaunchText {
    text: Vec<u8>,
}

impl LaunchText {
    /// Reads the file of a sandbox; `None` when there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(directory: &Path) -> io::Result<Option<Self>> {
        for name in [LAUNCH_FILE, CLOSED_FILE] {
            match fs::read(directory.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other.map(|text| Some(Self { text })),
            }
        }
        Ok(None)
    }

    /// What the backend keeps for itself; `None` where the file was never written to its end.
    ///
    /// # Errors
    /// It is something else.
    pub fn record<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        self.line(0)
    }

    /// What the launcher is told.
    ///
    /// # Errors
    /// It is something else.
    pub fn spec(&self) -> io::Result<Option<LaunchSpec>> {
        self.line(1)
    }

    /// What a running sandbox holds; `None` when it never ran.
    #[must_use]
    pub fn running(&self) -> Option<Running> {
        self.notes().find_map(|note| match note {
            Note::Running(running) => Some(running),
            _ => None,
        })
    }

    /// How the sandbox ended, where it has and somebody was there to tell.
    #[must_use]
    pub fn ended(&self) -> Option<EndRecord> {
        self.notes().find_map(|note| match note {
            Note::Ended(ended) => Some(ended),
            _ => None,
        })
    }

    /// The number of the last sync of the disk that was begun; 0 when there was none.
    #[must_use]
    pub fn last_sync_started(&self) -> u64 {
        let started = self.notes().filter_map(|note| match note {
            Note::SyncStarted { number } => Some(number),
            _ => None,
        });
        started.max().unwrap_or(0)
    }

    /// The result of a sync that was begun after the one of this number.
    #[must_use]
    pub fn synced_after(&self, number: u64) -> Option<Synced> {
        self.notes().find_map(|note| match note {
            Note::Synced(synced) if synced.number > number => Some(synced),
            _ => None,
        })
    }

    /// The first damage that any sync has found.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        self.notes().find_map(|note| match note {
            Note::Synced(synced) => synced.damage,
            _ => None,
        })
    }

    fn notes(&self) -> impl Iterator<Item = Note> {
        self.lines().skip(2).filter_map(|line| serde_json::from_slice(line).ok())
    }

    fn line<T: DeserializeOwned>(&self, number: usize) -> io::Result<Option<T>> {
        self.lines()
            .nth(number)
            .map(|line| serde_json::from_slice(line).map_err(io::Error::other))
            .transpose()
    }

    /// Whole lines: what has no end yet is still being written.
    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"))
    }
}

/// Writes the file of a new sandbox. Its presence means that a launcher may come.
///
/// # Errors
/// It cannot be written.
pub fn write(directory: &Path, record: &impl Serialize, spec: &LaunchSpec) -> io::Result<()> {
    let mut text = serde_json::to_vec(record)?;
    text.push(b'\n');
    serde_json::to_writer(&mut text, spec)?;
    text.push(b'\n');
    fs::write(directory.join(LAUNCH_FILE), text)
}

/// Keeps launchers away: one that was started just before, by a server that was killed, finds the file gone or locked, and
/// gives up. What the file says can still be read.
///
/// # Errors
/// A launcher has it.
pub fn close(directory: &Path) -> io::Result<()> {
    let path = directory.join(LAUNCH_FILE);
    let file = match OpenOptions::new().write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(path, directory.join(CLOSED_FILE))
}

/// The file as the launcher holds it. The lock goes with the process.
pub(crate) struct Held {
    file: File,
}

impl Held {
    #[cfg(test)]
    pub(crate) fn of(file: File) -> Self {
        Self { file }
    }

    /// Takes the file for this process and reads what is to be done.
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
        let spec = LaunchText { text }.spec().and_then(|spec| spec.ok_or_else(nothing)).step(reading)?;
        Ok((spec, Self { file }))
    }

    /// Adds a line.
    pub(crate) fn add(&mut self, note: &Note) -> Result<(), LaunchError> {
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

    /// Says that the list of files is whole.
    pub(crate) fn tell_of_list(&self) {
        // Who asked waits for a while only.
        let _ = self.file.set_modified(SystemTime::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> LaunchText {
        LaunchText { text: text.into() }
    }

    #[test]
    fn a_line_without_an_end_is_not_there_yet() {
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
        let mut held = Held::of(OpenOptions::new().read(true).append(true).open(&path).unwrap());
        for number in 1..=2 {
            held.add(&Note::SyncStarted { number }).unwrap();
        }
        let text = LaunchText::read(directory.path()).unwrap().unwrap();
        assert_eq!(text.last_sync_started(), 2);
        let is_first = |note| matches!(note, Note::SyncStarted { number: 1 });
        assert!(text.notes().any(is_first));
    }

    #[test]
    fn a_file_that_was_closed_is_read_and_taken_by_nobody() {
        let directory = tempfile::tempdir().unwrap();
        close(directory.path()).unwrap();
        assert!(LaunchText::read(directory.path()).unwrap().is_none());
        fs::write(directory.path().join(LAUNCH_FILE), "7\n").unwrap();
        close(directory.path()).unwrap();
        close(directory.path()).unwrap();
        let text = LaunchText::read(directory.path()).unwrap().unwrap();
        assert_eq!(text.record::<u32>().unwrap(), Some(7));
        let error = Held::take(&directory.path().join(LAUNCH_FILE)).err().unwrap();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    }
}
