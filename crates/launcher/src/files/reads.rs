//! Deduplicates open events: if a process opens the same file repeatedly, only the first event is recorded.

use std::time::{Duration, Instant};

use super::told::Told;

/// If a process exits before its start time can be read, its pid identifies it only for this long, because pids are
/// reused.
const GONE: Duration = Duration::from_secs(1);

/// The start time of a process in ticks or, if it cannot be read, the number of the `GONE` interval in which it was
/// seen.
type Began = Result<u64, u128>;

pub(super) struct Reads {
    since: Instant,
    known: Told,
}

impl Reads {
    pub(super) fn new(most: usize) -> Self {
        Self { since: Instant::now(), known: Told::new(most) }
    }

    /// Whether this process has not opened this path before, as far as is remembered.
    pub(super) fn is_new(&mut self, pid: i32, began: Option<u64>, path: &[u8]) -> bool {
        self.is_new_at(Instant::now(), pid, began, path)
    }

    fn is_new_at(&mut self, now: Instant, pid: i32, began: Option<u64>, path: &[u8]) -> bool {
        if self.known.is_full() {
            self.known.forget();
        }
        let stretch = now.duration_since(self.since).as_millis() / GONE.as_millis();
        let began: Began = began.ok_or(stretch);
        self.known.is_new((pid, began, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_of_the_same_number_reads_is_new() {
        let mut reads = Reads::new(100);
        assert!(reads.is_new(7, Some(100), b"/workspace/a"));
        assert!(!reads.is_new(7, Some(100), b"/workspace/a"));
        assert!(reads.is_new(7, Some(100), b"/workspace/b"));
        assert!(reads.is_new(7, Some(200), b"/workspace/a"));
        assert!(reads.is_new(8, Some(200), b"/workspace/a"));
    }

    #[test]
    fn who_is_gone_is_told_of_again_later() {
        let mut reads = Reads::new(100);
        let start = reads.since;
        assert!(reads.is_new_at(start, 7, None, b"/a"));
        assert!(!reads.is_new_at(start + GONE / 2, 7, None, b"/a"));
        assert!(reads.is_new_at(start + GONE * 2, 7, None, b"/a"));
    }

    #[test]
    fn no_more_is_remembered_than_may() {
        let mut reads = Reads::new(2);
        for number in 0..5 {
            assert!(reads.is_new(number, None, b"/a"));
            assert!(reads.known.len() <= 2);
        }
    }
}
