//! The access log file: one JSON object per line. A dedicated thread writes it, so that no request waits for the
//! disk. The end of the file is read back at the next start.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::entry::AccessLogEntry;
use super::recent_entries::MAX_ENTRIES;

const NAME: &str = "access.jsonl";
/// A file of this size is rotated.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The number of rotated files to keep.
const MAX_ROTATED: u32 = 4;
/// Capacity of the queue to the writer thread. Lines beyond it are counted and dropped.
const QUEUE_CAPACITY: usize = 8192;
/// The most that is read back of a file. A thousand of the longest lines fit.
const READ_BACK_BYTES: u64 = 2 * 1024 * 1024;

/// How long a server shutdown waits for the disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to the writer thread.
enum WriterMessage {
    Line(String),
    /// A flush marker, acknowledged once all earlier lines are written.
    Flush(SyncSender<()>),
}

/// The handle for writing to the file.
pub(super) struct AccessLogFile {
    lines: SyncSender<WriterMessage>,
    lost: AtomicU64,
}

impl AccessLogFile {
    /// Opens the file in a folder and returns its latest entries, oldest first.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, VecDeque<AccessLogEntry>)> {
        Self::open_bounded(folder, MAX_BYTES)
    }

    fn open_bounded(folder: &Path, max_bytes: u64) -> io::Result<(Self, VecDeque<AccessLogEntry>)> {
        let entries = read_back(folder);
        let log = Log::open(folder.join(NAME), max_bytes)?;
        let (lines, queue) = sync_channel(QUEUE_CAPACITY);
        std::thread::Builder::new().name("access-log".into()).spawn(move || write_all(log, &queue))?;
        Ok((Self { lines, lost: AtomicU64::new(0) }, entries))
    }

    /// Queues a line for the writer thread. Never blocks.
    pub(super) fn write(&self, entry: &AccessLogEntry) {
        let Ok(line) = serde_json::to_string(entry) else { return };
        if self.lines.try_send(WriterMessage::Line(line + "\n")).is_err() {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            if lost.is_power_of_two() {
                tracing::error!(lost, "lost lines of {NAME}: the disk is too slow or unavailable");
            }
        }
    }

    /// Waits until all queued lines are written, up to a time limit.
    pub(super) fn flush(&self) {
        let (mark, written) = sync_channel(1);
        if self.lines.try_send(WriterMessage::Flush(mark)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

struct Log {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    max_bytes: u64,
}

impl Log {
    fn open(path: PathBuf, max_bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
        let bytes = file.metadata()?.len();
        let mut log = Self { path, file: BufWriter::new(file), bytes, max_bytes };
        // A killed server may have left an incomplete line. Terminate it.
        if bytes > 0 && last_byte(&log.path).is_ok_and(|byte| byte != b'\n') {
            log.add("\n")?;
        }
        Ok(log)
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        if self.bytes >= self.max_bytes {
            self.rotate()?;
        }
        self.bytes += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        for number in (1..MAX_ROTATED).rev() {
            let _ = fs::rename(rotated_path(&self.path, number), rotated_path(&self.path, number + 1));
        }
        fs::rename(&self.path, rotated_path(&self.path, 1))?;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        (self.file, self.bytes) = (BufWriter::new(file), 0);
        Ok(())
    }
}

fn rotated_path(path: &Path, number: u32) -> PathBuf {
    path.with_file_name(format!("{NAME}.{number}"))
}

fn last_byte(path: &Path) -> io::Result<u8> {
    let (mut file, mut byte) = (File::open(path)?, [0]);
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn write_all(mut log: Log, queue: &Receiver<WriterMessage>) {
    let mut has_failed = false;
    while let Ok(message) = queue.recv() {
        let mut marks = Vec::new();
        let more = std::iter::once(message).chain(queue.try_iter()).take(QUEUE_CAPACITY);
        let mut written = Ok(());
        for message in more {
            match message {
                WriterMessage::Line(line) if written.is_ok() => written = log.add(&line),
                WriterMessage::Line(_) => {}
                WriterMessage::Flush(mark) => marks.push(mark),
            }
        }
        match written.and_then(|()| log.file.flush()) {
            Ok(()) => has_failed = false,
            Err(error) if !has_failed => {
                has_failed = true;
                tracing::error!(%error, "cannot write {}", log.path.display());
            }
            Err(_) => {}
        }
        for mark in marks {
            let _ = mark.send(());
        }
    }
}

/// The latest entries on disk, oldest first.
fn read_back(folder: &Path) -> VecDeque<AccessLogEntry> {
    let path = folder.join(NAME);
    let mut entries = VecDeque::new();
    for file in [path.clone(), rotated_path(&path, 1)] {
        let Ok(text) = read_end(&file) else { continue };
        for entry in text.lines().rev().filter_map(|line| serde_json::from_str::<AccessLogEntry>(line).ok()) {
            if entries.len() == MAX_ENTRIES {
                return entries;
            }
            entries.push_front(entry);
        }
    }
    entries
}

fn read_end(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BACK_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(READ_BACK_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn entry(number: usize) -> AccessLogEntry {
        AccessLogEntry::new("ada", None, "POST", &format!("/{number}"), 202)
    }

    fn wait_until(holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds() {
            assert!(Instant::now() < end, "waited in vain");
            std::thread::yield_now();
        }
    }

    #[test]
    fn entries_are_read_back_after_an_incomplete_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let (file, before) = AccessLogFile::open(folder.path()).unwrap();
        assert!(before.is_empty());
        (0..1500).for_each(|number| file.write(&entry(number)));
        wait_until(|| fs::read_to_string(&path).unwrap().lines().count() == 1500);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        drop(file);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"at\":\"20").unwrap();
        let (file, read) = AccessLogFile::open(folder.path()).unwrap();
        assert_eq!(
            (read.len(), &read[MAX_ENTRIES - 1].path[..], &read[0].path[..]),
            (MAX_ENTRIES, "/1499", "/500")
        );
        file.write(&entry(2000));
        wait_until(|| fs::read_to_string(&path).unwrap().lines().any(|line| line.contains("/2000")));
        assert_eq!(read_back(folder.path()).back().unwrap().path, "/2000");
    }

    #[test]
    fn flush_waits_until_all_lines_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let (file, _) = AccessLogFile::open(folder.path()).unwrap();
        (0..100).for_each(|number| file.write(&entry(number)));
        file.flush();
        assert_eq!(fs::read_to_string(folder.path().join(NAME)).unwrap().lines().count(), 100);
    }

    #[test]
    fn large_log_file_is_rotated_and_old_ones_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, _) = AccessLogFile::open_bounded(folder.path(), 500).unwrap();
        for number in 0..100 {
            file.write(&entry(number));
            wait_until(|| {
                read_back(folder.path()).back().is_some_and(|last| *last.path == format!("/{number}"))
            });
        }
        let names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names.len(), 1 + MAX_ROTATED as usize, "{names:?}");
    }
}
