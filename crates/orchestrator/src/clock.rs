//! The three clocks that the orchestrator uses.
//!
//! The first is wall-clock time for people. It may jump: an administrator sets it, or a machine boots with the wrong
//! year. The other two are monotonic and are used to measure durations. Decision 38.

use std::sync::OnceLock;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

pub(crate) use store::now_ms;

/// Milliseconds for which this process has existed and the machine was awake; suspended time does not count.
pub(crate) fn monotonic_ms() -> i64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    i64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds since the machine booted, including time spent suspended.
pub(crate) fn since_boot_ms() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}
