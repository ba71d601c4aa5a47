//! The newest output of a service, with a size limit.

use std::collections::VecDeque;

/// The most bytes to keep.
const KEPT_BYTES: usize = 64 * 1024;
/// The most lines and bytes of output in an error message.
const LAST_LINES: usize = 8;
const LAST_BYTES: usize = 1200;

/// The newest part of a service's output on both streams.
#[derive(Default)]
pub(super) struct ServiceLog {
    bytes: VecDeque<u8>,
    /// Where the output of the newest start begins, counted from the first byte ever printed.
    start_mark: u64,
    total: u64,
}

impl ServiceLog {
    /// Marks the beginning of the output of the next start.
    pub(super) fn mark_start(&mut self) {
        self.start_mark = self.total;
    }

    /// Appends output. Drops the oldest output over the limit.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let bytes = bytes.get(bytes.len().saturating_sub(KEPT_BYTES)..).unwrap_or_default();
        let over = (self.bytes.len() + bytes.len()).saturating_sub(KEPT_BYTES);
        self.bytes.drain(..over.min(self.bytes.len()));
        self.bytes.extend(bytes);
    }

    /// Number of bytes ever printed.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// All output that is kept.
    pub(super) fn text(&self) -> String {
        let (one, other) = self.bytes.as_slices();
        String::from_utf8_lossy(&[one, other].concat()).into_owned()
    }

    /// The output since the newest start.
    pub(super) fn since_start(&self) -> String {
        let printed = usize::try_from(self.total - self.start_mark).unwrap_or(usize::MAX);
        let skipped = self.bytes.len().saturating_sub(printed);
        let bytes: Vec<u8> = self.bytes.iter().skip(skipped).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines since the newest start, for an error message.
    pub(super) fn last_lines(&self) -> String {
        let text = self.since_start();
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines.drain(..lines.len().saturating_sub(LAST_LINES));
        let mut last = lines.join("\n");
        if last.len() > LAST_BYTES {
            let mut from = last.len() - LAST_BYTES;
            while !last.is_char_boundary(from) {
                from += 1;
            }
            last = last.split_off(from);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_output_is_kept() {
        let mut log = ServiceLog::default();
        log.append(b"first\n");
        log.append(&vec![b'x'; KEPT_BYTES]);
        assert_eq!(log.text().len(), KEPT_BYTES);
        assert!(!log.text().contains("first"));
        log.append(&vec![b'y'; KEPT_BYTES * 2]);
        assert_eq!(log.text(), "y".repeat(KEPT_BYTES));
    }

    #[test]
    fn error_shows_last_lines_of_the_newest_start_only() {
        let mut log = ServiceLog::default();
        log.append(b"old\n");
        log.mark_start();
        log.append("a\n\nü\n".as_bytes());
        assert_eq!(log.last_lines(), "a\nü");
        log.append("é".repeat(LAST_BYTES).as_bytes());
        assert!(log.last_lines().len() <= LAST_BYTES);
    }
}
