//! Deduplicates open events: if a process opens the same file repeatedly, only the first event is recorded.

use std::time::{Duration, Instant};

use super::seen_set::SeenSet;

/// If a process exits before its start time can be read, its pid identifies it only for this long, because pids are
/// reused.
const UNKNOWN_START_INTERVAL: Duration = Duration::from_secs(1);

/// The start time of a process in ticks or, if it cannot be read, the number of the `UNKNOWN_START_INTERVAL` interval in which it was
/// seen.
type StartTime = Result<u64, u128>;

pub(super) struct SeenReads {
    since: Instant,
    known: SeenSet,
}

impl SeenReads {
    pub(super) fn new(most: usize) -> Self {
        Self { since: Instant::now(), known: SeenSet::new(most) }
    }

    /// Whether this process has not opened this path before, as far as is remembered.
    pub(super) fn is_new(&mut self, pid: i32, start_time: Option<u64>, path: &[u8]) -> bool {
        self.is_new_at(Instant::now(), pid, start_time, path)
    }

    fn is_new_at(&mut self, now: Instant, pid: i32, start_time: Option<u64>, path: &[u8]) -> bool {
        if self.known.is_full() {
            self.known.forget();
        }
        let interval = now.duration_since(self.since).as_millis() / UNKNOWN_START_INTERVAL.as_millis();
        let start_time: StartTime = start_time.ok_or(interval);
        self.known.is_new((pid, start_time, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_a_later_process_with_the_same_pid_are_new() {
        let mut reads = SeenReads::new(100);
        assert!(reads.is_new(7, Some(100), b"/workspace/a"));
        assert!(!reads.is_new(7, Some(100), b"/workspace/a"));
        assert!(reads.is_new(7, Some(100), b"/workspace/b"));
        assert!(reads.is_new(7, Some(200), b"/workspace/a"));
        assert!(reads.is_new(8, Some(200), b"/workspace/a"));
    }

    #[test]
    fn reads_of_processes_with_unknown_start_time_are_reported_again_later() {
        let mut reads = SeenReads::new(100);
        let start = reads.since;
        assert!(reads.is_new_at(start, 7, None, b"/a"));
        assert!(!reads.is_new_at(start + UNKNOWN_START_INTERVAL / 2, 7, None, b"/a"));
        assert!(reads.is_new_at(start + UNKNOWN_START_INTERVAL * 2, 7, None, b"/a"));
    }

    #[test]
    fn seen_reads_are_bounded() {
        let mut reads = SeenReads::new(2);
        for number in 0..5 {
            assert!(reads.is_new(number, None, b"/a"));
            assert!(reads.known.len() <= 2);
        }
    }
}
