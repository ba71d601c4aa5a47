//! What time it is, by three clocks.
//!
//! The first tells moments to people and may jump: somebody sets it, or a machine comes back from the wrong year. The others
//! only count, so what lasts is measured by them. Decision 0049.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds that this process has been awake: the time that a machine sleeps does not count.
pub(crate) fn awake_ms() -> i64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    i64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds since this machine was started, those that it slept included.
pub(crate) fn since_boot_ms() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}
