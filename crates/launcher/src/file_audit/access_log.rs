//! The file access log: JSON lines appended to a file, up to a maximum size.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::process_info::ProcessInfo;

/// The maximum size of the log; everything after it is reported as a gap.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// One line of the log.
#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// The log file and its size so far.
pub(super) struct AccessLog {
    file: File,
    written: u64,
    most: u64,
    /// Whether lines were lost since the last one that was written, as on a full disk.
    has_lost: bool,
}

impl AccessLog {
    /// Opens the file and writes a first line that names the method.
    pub(super) fn begin(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let mut list = Self { file, written: 0, most: MAX_BYTES, has_lost: false };
        let line = serde_json::json!({"time_ms": now_ms(), "event": "begin", "method": "fanotify"});
        list.write(format!("{line}\n").as_bytes());
        Ok(list)
    }

    /// Writes and clears the pending text once it is longer than `most` bytes. Returns the number of bytes written.
    pub(super) fn write_over(&mut self, most: usize, text: &mut Vec<u8>) -> usize {
        if text.len() <= most {
            return 0;
        }
        self.write(text);
        let written = text.len();
        text.clear();
        written
    }

    /// Appends text. When the log becomes full, appends one final line that says so.
    pub(super) fn write(&mut self, text: &[u8]) {
        if self.written > self.most || text.is_empty() {
            return;
        }
        let mut lines = Vec::new();
        if self.has_lost {
            gap(&mut lines, "lines could not be written");
        }
        lines.extend_from_slice(text);
        if self.written + lines.len() as u64 > self.most {
            gap(&mut lines, "the list is full");
        }
        self.has_lost = self.add_lines(&lines).is_err();
    }

    /// Adds these lines, or none of them.
    fn add_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if let Err(error) = self.file.write_all(lines) {
            // Readers expect whole lines.
            let _ = self.file.set_len(length);
            return Err(error);
        }
        self.written += lines.len() as u64;
        Ok(())
    }
}

/// Adds a line which reports that events are missing.
pub(super) fn gap(text: &mut Vec<u8>, reason: &str) {
    add(text, "gap", None, None, ProcessInfo::default(), Some(reason));
}

pub(super) fn add(
    text: &mut Vec<u8>,
    event: &str,
    path: Option<String>,
    from: Option<String>,
    who: ProcessInfo,
    reason: Option<&str>,
) {
    let ProcessInfo { pid, process, call, .. } = who;
    let line = Line { time_ms: now_ms(), event, path, from, pid, process, call, reason };
    if serde_json::to_writer(&mut *text, &line).is_ok() {
        text.push(b'\n');
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_could_not_be_written_are_a_gap_in_the_list() {
        let path = std::env::temp_dir().join(format!("caisson-list-lost-{}", std::process::id()));
        let mut list = AccessLog::begin(&path).unwrap();
        // As while the disk is full: nothing can be written to this descriptor.
        let writable = std::mem::replace(&mut list.file, File::open(&path).unwrap());
        list.write(b"{\"event\":\"lost\"}\n");
        assert!(list.has_lost);
        list.file = writable;
        list.write(b"{\"event\":\"kept\"}\n");
        list.write(b"{\"event\":\"next\"}\n");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let events: Vec<_> = events.map(|line| line["event"].as_str().unwrap().to_owned()).collect();
        assert_eq!(events, ["begin", "gap", "kept", "next"]);
    }

    #[test]
    fn a_full_access_log_reports_it_once_and_accepts_nothing_more() {
        let path = std::env::temp_dir().join(format!("caisson-list-{}", std::process::id()));
        let mut list = AccessLog::begin(&path).unwrap();
        list.most = 200;
        for number in 0..20 {
            let mut text = Vec::new();
            add(&mut text, "written", Some(format!("/file-{number}")), None, ProcessInfo::default(), None);
            list.write(&text);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let last = text.lines().last().unwrap();
        assert!(last.contains("\"event\":\"gap\"") && last.contains("the list is full"), "{text}");
        assert_eq!(text.matches("gap").count(), 1, "{text}");
        assert!(text.lines().count() < 10, "{text}");
    }
}
