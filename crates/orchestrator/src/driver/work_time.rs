//! How long a job has worked, and its deadline.
//!
//! Time used under an earlier driver is computed from the wall clock. From then on, time is measured by a clock that
//! neither jumps nor advances while the host sleeps: closing a laptop over night fails no job. See decision 38.

use std::time::Duration;

use job::{JobView, at_most};
use tokio::time::Instant;

use super::Driver;
use crate::clock::now_ms;

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

impl Driver {
    /// The deadline of the job. Time during which the job could not run does not count.
    pub(super) fn deadline(&self) -> Instant {
        // Extend the allowance and not the resulting instant, which is never before now.
        self.work_time.deadline(self.time_limit().saturating_add(self.recorder.waiting().total()))
    }

    /// How long the job may work. Users can extend it at any time.
    pub(super) fn time_limit(&self) -> Duration {
        self.recorder.time_limit().changed_to().unwrap_or(self.spec.wall_clock)
    }

    /// The timeout of a call that an agent has asked for, lowered to the most that the job's submitter may ask for.
    pub(super) fn bounded_timeout(&self, asked: Duration) -> Duration {
        let submitter = self.spec.submitter.as_ref();
        let ceilings = self.core.ceilings_of(submitter.map(|submitter| &submitter.key));
        at_most(asked, ceilings.effective().step_timeout_s)
    }

    /// Returns when the deadline has passed, however often it moves in the meantime.
    pub(super) async fn time_over(&self) {
        while !self.is_time_over() {
            tokio::time::sleep_until(self.deadline()).await;
        }
    }

    pub(super) fn is_time_over(&self) -> bool {
        // A deadline in the past is clamped to the time of the call, so the clock must be read after it.
        let is_over = self.deadline() <= Instant::now();
        if is_over {
            self.recorder.time_limit().set_used_up();
        }
        is_over
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
