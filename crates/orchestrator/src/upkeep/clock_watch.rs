//! Detects wall-clock jumps, for code that removes old data. A clock that is set a month ahead by mistake must not
//! delete a month of jobs. Decision 38.

use std::fs;
use std::path::{Path, PathBuf};

use crate::clock::{now_ms, since_boot_ms};

/// How far ahead of the expected time the clock may be.
const MAX_AHEAD_MS: i64 = 86_400_000;
/// A clock that is further ahead for this long, while the machine runs, is accepted as correct.
const ACCEPT_AFTER_MS: i64 = 86_400_000;
/// The file in the data folder that stores when the clock was last checked.
const FILE: &str = "last-look";

/// Readings of both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    now_ms: i64,
    /// The monotonic clock.
    since_boot_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The clock may be right.
    Trusted,
    /// The clock has jumped ahead by this much since the previous check.
    Jumped { ahead_ms: i64 },
    /// The clock is still ahead; the jump was reported before.
    StillAhead,
}

pub(crate) struct ClockWatch {
    file: PathBuf,
    /// When an earlier server process last trusted the clock.
    before_ms: Option<i64>,
    /// When this process last trusted the clock.
    last: Option<Moment>,
    ahead_since_boot_ms: Option<i64>,
}

impl ClockWatch {
    /// Loads the state that an earlier server process left in the data folder.
    pub(crate) fn new(data: &Path) -> Self {
        let file = data.join(FILE);
        let before_ms = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        Self { file, before_ms, last: None, ahead_since_boot_ms: None }
    }

    /// Whether the clock has never been checked for this folder.
    pub(crate) fn is_new(&self) -> bool {
        self.before_ms.is_none() && self.last.is_none()
    }

    /// Checks the clock. `newest_ms` is the newest known time of any job, for a folder without an earlier check.
    pub(crate) fn look(&mut self, newest_ms: Option<i64>) -> Verdict {
        self.before_ms = self.before_ms.or(newest_ms);
        let verdict = self.judge(Moment { now_ms: now_ms(), since_boot_ms: since_boot_ms() });
        if let (Verdict::Trusted, Some(last)) = (verdict, self.last) {
            // If the file cannot be written, the next server process is merely more cautious.
            let _ = fs::write(&self.file, format!("{}\n", last.now_ms));
        }
        verdict
    }

    fn judge(&mut self, now: Moment) -> Verdict {
        let passed = |last: Moment| last.now_ms.saturating_add(now.since_boot_ms - last.since_boot_ms);
        let expected_ms = self.last.map(passed).or(self.before_ms).unwrap_or(now.now_ms);
        let ahead_ms = now.now_ms.saturating_sub(expected_ms);
        let doubted_since = self.ahead_since_boot_ms;
        let has_lasted = doubted_since.is_some_and(|since| now.since_boot_ms - since >= ACCEPT_AFTER_MS);
        if ahead_ms <= MAX_AHEAD_MS || has_lasted {
            // A clock that went back is expected to return to where it was.
            self.last = Some(Moment { now_ms: now.now_ms.max(expected_ms), ..now });
            self.ahead_since_boot_ms = None;
            return Verdict::Trusted;
        }
        self.ahead_since_boot_ms = doubted_since.or(Some(now.since_boot_ms));
        if doubted_since.is_none() { Verdict::Jumped { ahead_ms } } else { Verdict::StillAhead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;

    fn watch(before_ms: Option<i64>) -> ClockWatch {
        ClockWatch { file: PathBuf::new(), before_ms, last: None, ahead_since_boot_ms: None }
    }

    fn at(now_ms: i64, since_boot_ms: i64) -> Moment {
        Moment { now_ms, since_boot_ms }
    }

    #[test]
    fn clock_a_month_ahead_is_not_trusted_until_corrected() {
        let mut clock = watch(None);
        assert_eq!(clock.judge(at(100 * DAY, 0)), Verdict::Trusted);
        assert_eq!(clock.judge(at(130 * DAY, HOUR)), Verdict::Jumped { ahead_ms: 30 * DAY - HOUR });
        assert_eq!(clock.judge(at(130 * DAY + HOUR, 2 * HOUR)), Verdict::StillAhead);
        assert_eq!(clock.judge(at(100 * DAY + 3 * HOUR, 3 * HOUR)), Verdict::Trusted);
    }

    #[test]
    fn clock_is_trusted_after_a_week_of_suspend() {
        let mut clock = watch(Some(100 * DAY));
        assert_eq!(clock.judge(at(100 * DAY, 0)), Verdict::Trusted);
        assert_eq!(clock.judge(at(107 * DAY, 7 * DAY)), Verdict::Trusted);
    }

    #[test]
    fn clock_is_trusted_a_day_after_a_long_shutdown() {
        let mut clock = watch(Some(100 * DAY));
        assert_eq!(clock.judge(at(110 * DAY, 5 * DAY)), Verdict::Jumped { ahead_ms: 10 * DAY });
        assert_eq!(clock.judge(at(110 * DAY + 23 * HOUR, 5 * DAY + 23 * HOUR)), Verdict::StillAhead);
        assert_eq!(clock.judge(at(111 * DAY, 6 * DAY)), Verdict::Trusted);
        assert_eq!(clock.judge(at(111 * DAY + HOUR, 6 * DAY + HOUR)), Verdict::Trusted);
    }

    #[test]
    fn clock_may_return_from_zero_to_its_last_time() {
        let mut clock = watch(Some(100 * DAY));
        assert_eq!(clock.judge(at(0, 0)), Verdict::Trusted);
        assert_eq!(clock.judge(at(100 * DAY + HOUR, HOUR)), Verdict::Trusted);
    }

    #[test]
    fn clock_state_survives_a_server_restart() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ClockWatch::new(folder.path()).look(None), Verdict::Trusted);
        let seen = ClockWatch::new(folder.path()).before_ms.unwrap();
        assert!((now_ms() - seen).abs() < DAY);
        fs::write(folder.path().join(FILE), (seen - 40 * DAY).to_string()).unwrap();
        assert!(matches!(ClockWatch::new(folder.path()).look(Some(seen)), Verdict::Jumped { .. }));
    }
}
