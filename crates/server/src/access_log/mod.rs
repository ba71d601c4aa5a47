//! The access log: who did what over the API. Every request that changes something, fetches content or is rejected
//! becomes a line in the server's log and in a file. The latest entries stay in memory for the API.

mod entry;
mod file;
mod recent_entries;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::ServerError;

use self::file::AccessLogFile;
use self::recent_entries::Recent;

pub(crate) use self::entry::{AccessLogEntry, NOBODY};

/// The interval of rate-limited entries. Beyond their allowance they are only counted, and the count is logged at its
/// end.
const INTERVAL: Duration = Duration::from_secs(10);
/// Rejections of one caller that are logged individually per interval.
const MAX_REJECTIONS: u64 = 20;
/// Reads of one path by one caller that are logged individually per interval. An open page polls.
const MAX_READS: u64 = 3;
/// The number of counters. Once it is reached, further reads are counted per caller, regardless of the path.
const MAX_COUNTERS: usize = 500;

/// A group of entries that are summarised once there are many of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum LogGroup {
    /// Requests without a valid key: an attacker may be guessing keys.
    UnknownKey,
    /// All other requests without a key.
    Nobody,
    /// Requests that the guard rejects before authentication: foreign origins and host names.
    RejectedByGuard,
    /// Rejected requests of an authenticated caller.
    Caller(String),
    /// Reads of an authenticated caller: of one path, or of any path if the second field is empty.
    Reads(String, String),
}

impl LogGroup {
    /// How many entries per interval are logged individually.
    fn individual_limit(&self) -> u64 {
        match self {
            Self::Caller(_) => MAX_REJECTIONS,
            Self::Reads(..) => MAX_READS,
            Self::UnknownKey | Self::Nobody | Self::RejectedByGuard => 1,
        }
    }
}

/// The access log. All listeners share it.
#[derive(Clone, Default)]
pub struct AccessLog(Arc<AccessLogInner>);

impl AccessLog {
    /// Opens the access log in a data folder, or continues an existing one.
    ///
    /// # Errors
    /// The file cannot be opened for writing.
    pub fn open(folder: &Path) -> Result<Self, ServerError> {
        let (file, entries) = AccessLogFile::open(folder).map_err(ServerError::AccessLog)?;
        let recent = Mutex::new(entries.into_iter().collect());
        Ok(Self(Arc::new(AccessLogInner { recent, file: Some(file), ..AccessLogInner::default() })))
    }

    pub(crate) fn access_log(&self) -> &Arc<AccessLogInner> {
        &self.0
    }

    /// Logs a request that was rejected before authentication.
    pub(crate) fn log_rejected(&self, from: Option<IpAddr>, method: &str, path: &str, status: u16) {
        self.0
            .log_limited(&LogGroup::RejectedByGuard, AccessLogEntry::new(NOBODY, from, method, path, status));
    }

    /// Logs all pending counts and waits until the file has everything.
    pub(crate) fn flush(&self) {
        self.0.log_counts(Counters::All);
        if let Some(file) = &self.0.file {
            file.flush();
        }
    }
}

impl fmt::Debug for AccessLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AccessLog")
    }
}

impl PartialEq for AccessLog {
    /// Settings are compared by what the operator configured, which does not include this log.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The latest entries and the current counters.
#[derive(Default)]
pub(crate) struct AccessLogInner {
    recent: Mutex<Recent>,
    counts: Mutex<HashMap<LogGroup, Count>>,
    file: Option<AccessLogFile>,
}

/// The entries of one [`LogGroup`] since the interval began.
#[derive(Debug)]
struct Count {
    since: Instant,
    logged: u64,
    left: u64,
    last: Option<AccessLogEntry>,
}

/// Which counters to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counters {
    /// Those whose interval is over.
    Due,
    All,
}

impl AccessLogInner {
    /// Logs an entry.
    pub(crate) fn write(&self, entry: AccessLogEntry) {
        let AccessLogEntry { who, key, from, method, path, status, count, .. } = &entry;
        let (from, key) = (from.as_deref().unwrap_or("inside"), key.as_deref().unwrap_or_default());
        tracing::info!(target: "caisson_access", who, key, from, method, path, status, count, "over the API");
        self.store(entry);
    }

    /// Logs an entry of a kind that can come in floods, or only counts it. A flood must neither fill the log nor push
    /// out the entries of others. The count is logged at the end of the interval, even if no further request arrives.
    pub(crate) fn log_limited(self: &Arc<Self>, group: &LogGroup, entry: AccessLogEntry) {
        self.log_counts(Counters::Due);
        let mut counts = self.counts();
        let fresh = || Count { since: Instant::now(), logged: 0, left: 0, last: None };
        let count = counts.entry(group.clone()).or_insert_with(fresh);
        if count.logged < group.individual_limit() {
            count.logged += 1;
            drop(counts);
            return self.log(group, entry);
        }
        count.left += 1;
        count.last = Some(entry);
        let is_first = count.left == 1;
        let due = count.since + INTERVAL;
        drop(counts);
        if is_first && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let access_log = Arc::downgrade(self);
            runtime.spawn(async move {
                tokio::time::sleep_until(due).await;
                if let Some(access_log) = access_log.upgrade() {
                    access_log.log_counts(Counters::Due);
                }
            });
        }
    }

    /// Logs a read of content. Repeated reads of the same path cannot push out the entries of others.
    pub(crate) fn log_read(self: &Arc<Self>, entry: AccessLogEntry) {
        let is_full = self.counts().len() >= MAX_COUNTERS;
        let path = if is_full { String::new() } else { entry.path.clone() };
        self.log_limited(&LogGroup::Reads(entry.who.clone(), path), entry);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<LogGroup, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the counted entries. A counter with entries starts the next interval with no individual entries left,
    /// because the flood may continue.
    fn log_counts(&self, which: Counters) {
        let mut due = Vec::new();
        self.counts().retain(|group, count| {
            if which == Counters::Due && count.since.elapsed() < INTERVAL {
                return true;
            }
            let Some(last) = count.last.take() else { return false };
            due.push((group.clone(), AccessLogEntry { count: count.left, ..last }));
            *count = Count { since: Instant::now(), logged: group.individual_limit(), left: 0, last: None };
            true
        });
        due.into_iter().for_each(|(group, entry)| self.log(&group, entry));
    }

    fn log(&self, group: &LogGroup, entry: AccessLogEntry) {
        if *group != LogGroup::UnknownKey {
            return self.write(entry);
        }
        let from = entry.from.as_deref().unwrap_or("inside");
        tracing::warn!(
            target: "caisson_access", count = entry.count, from, path = entry.path,
            "requests without a valid API key; address and path are those of the last one"
        );
        self.store(entry);
    }

    fn store(&self, entry: AccessLogEntry) {
        if let Some(file) = &self.file {
            file.write(&entry);
        }
        self.recent().push(entry);
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest entries, newest first.
    pub(crate) fn last(&self, count: usize) -> Vec<AccessLogEntry> {
        self.recent().newest(count)
    }
}

#[cfg(test)]
mod tests {
    use super::recent_entries::{MAX_ENTRIES, MAX_UNAUTHENTICATED};
    use super::*;

    fn entry(path: &str) -> AccessLogEntry {
        AccessLogEntry::new("ada", None, "POST", path, 202)
    }

    fn paths(access_log: &AccessLogInner, count: usize) -> Vec<String> {
        access_log.last(count).into_iter().map(|entry| entry.path).collect()
    }

    #[test]
    fn newest_entries_are_kept_and_unknown_keys_are_logged_rarely() {
        let access_log = Arc::new(AccessLogInner::default());
        for number in 0..MAX_ENTRIES + 5 {
            access_log.write(entry(&format!("/{number}")));
        }
        assert_eq!(paths(&access_log, 2), ["/1004", "/1003"]);
        assert_eq!(access_log.last(usize::MAX).len(), MAX_ENTRIES);
        for _ in 0..100 {
            access_log.log_limited(&LogGroup::UnknownKey, entry("/v1/jobs"));
        }
        assert_eq!(paths(&access_log, 2), ["/v1/jobs", "/1004"]);
    }

    #[tokio::test(start_paused = true)]
    async fn flood_is_logged_with_its_count_after_the_interval() {
        let access_log = Arc::new(AccessLogInner::default());
        for number in 0..1000 {
            access_log.log_limited(&LogGroup::UnknownKey, entry(&format!("/{number}")));
        }
        assert_eq!(access_log.last(9).len(), 1);
        tokio::time::sleep(INTERVAL * 2).await;
        let entries = access_log.last(9);
        assert_eq!(entries.iter().map(|entry| entry.count).collect::<Vec<_>>(), [999, 1]);
        assert_eq!(entries[0].path, "/999", "the last of them");
        tokio::time::sleep(INTERVAL * 2).await;
        access_log.log_limited(&LogGroup::UnknownKey, entry("/later"));
        assert_eq!(paths(&access_log, 1), ["/later"], "a single one later is told at once");
    }

    #[test]
    fn pending_counts_are_logged_on_flush() {
        let log = AccessLog::default();
        for _ in 0..50 {
            log.log_rejected(None, "POST", "/v1/jobs", 403);
        }
        log.flush();
        log.flush();
        let counts: Vec<u64> = log.access_log().last(9).iter().map(|entry| entry.count).collect();
        assert_eq!(counts, [49, 1]);
    }

    #[test]
    fn rejections_of_one_caller_evict_no_other_entries() {
        let access_log = Arc::new(AccessLogInner::default());
        access_log.write(entry("/first"));
        let refuse = |who: &str, path: &str, status: u16| {
            let entry = AccessLogEntry::new(who, None, "POST", path, status);
            access_log.log_limited(&LogGroup::Caller(who.to_owned()), entry);
        };
        for _ in 0..5000 {
            refuse("ada", "/schedule", 429);
        }
        refuse("bob", "/v1/keys", 403);
        let kept = access_log.last(usize::MAX);
        assert_eq!(kept.len(), usize::try_from(MAX_REJECTIONS).unwrap() + 2);
        assert_eq!((kept[0].who.as_str(), kept[kept.len() - 1].path.as_str()), ("bob", "/first"));
    }

    #[test]
    fn repeated_reads_are_counted_by_path_and_caller() {
        let access_log = Arc::new(AccessLogInner::default());
        let read =
            |who: &str, path: &str| access_log.log_read(AccessLogEntry::new(who, None, "GET", path, 200));
        for _ in 0..3000 {
            read("eve", "/v1/jobs/a/events");
        }
        read("eve", "/v1/jobs/b/events");
        read("ada", "/v1/jobs/a/events");
        let individual_limit = usize::try_from(MAX_READS).unwrap();
        assert_eq!(access_log.last(usize::MAX).len(), individual_limit + 2);
        for number in 0..5000 {
            read("eve", &format!("/v1/jobs/a/files/{number}"));
        }
        assert!(access_log.counts().len() <= MAX_COUNTERS + 1);
        assert!(access_log.last(usize::MAX).len() < MAX_ENTRIES);
    }

    #[test]
    fn busy_caller_evicts_only_own_entries() {
        let access_log = AccessLogInner::default();
        access_log.write(entry("/first"));
        for number in 0..3 * MAX_ENTRIES {
            access_log.write(AccessLogEntry::new("eve", None, "POST", &format!("/{number}"), 202));
        }
        let kept = access_log.last(usize::MAX);
        assert_eq!((kept.len(), kept[MAX_ENTRIES - 1].path.as_str()), (MAX_ENTRIES, "/first"));
        assert_eq!((kept[0].path.as_str(), kept[MAX_ENTRIES - 2].path.as_str()), ("/2999", "/2001"));
    }

    #[test]
    fn unauthenticated_requests_evict_no_other_entries() {
        let access_log = AccessLogInner::default();
        access_log.write(entry("/first"));
        for _ in 0..2 * MAX_ENTRIES {
            access_log.store(AccessLogEntry::new(NOBODY, None, "DELETE", "/v1/session", 204));
        }
        let kept = access_log.last(usize::MAX);
        assert_eq!(
            (kept.len(), kept[MAX_UNAUTHENTICATED].path.as_str()),
            (MAX_UNAUTHENTICATED + 1, "/first")
        );
    }
}
