//! How long a job has worked, for its deadline.
//!
//! Time used under an earlier driver is computed from the wall clock. From then on, time is measured by a clock that
//! neither jumps nor advances while the host sleeps: closing a laptop over night fails no job. See decision 0049.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::now_ms;
use crate::view::JobView;

#[derive(Debug, Clone, Copy)]
pub(super) struct WorkTime {
    before: Duration,
    since: Instant,
    waited: Duration,
}

impl WorkTime {
    /// Starts counting for a job with this view.
    pub(super) fn resumed(view: &JobView) -> Self {
        // Time spent paused does not count.
        let until_ms = view.paused_since_ms.unwrap_or_else(now_ms);
        let used_ms = view.started_ms.map_or(0, |started| until_ms - started - view.paused_ms);
        let before = Duration::from_millis(u64::try_from(used_ms).unwrap_or(0));
        Self { before, since: Instant::now(), waited: Duration::ZERO }
    }

    /// Counts this time as waiting.
    pub(super) fn add_wait(&mut self, time: Duration) {
        self.waited += time;
    }

    /// The deadline of a job that may work for this long.
    pub(super) fn deadline(&self, allowed: Duration) -> Instant {
        let now = Instant::now();
        let used = self.before + now.duration_since(self.since).saturating_sub(self.waited);
        now.checked_add(allowed.saturating_sub(used)).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: Duration = Duration::from_secs(100);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn resumed(before: Duration) -> WorkTime {
        WorkTime { before, since: Instant::now(), waited: Duration::ZERO }
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_counts_only_monotonic_time() {
        let work = resumed(seconds(10));
        let end = Instant::now() + seconds(90);
        assert_eq!(work.deadline(ALLOWED), end);
        tokio::time::advance(seconds(30)).await;
        assert_eq!(work.deadline(ALLOWED), end);
        tokio::time::advance(seconds(70)).await;
        assert_eq!(work.deadline(ALLOWED), Instant::now(), "its time is over");
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_does_not_count_as_work() {
        let mut work = resumed(Duration::ZERO);
        tokio::time::advance(seconds(500)).await;
        work.add_wait(seconds(500));
        assert_eq!(work.deadline(ALLOWED), Instant::now() + ALLOWED);
    }
}
