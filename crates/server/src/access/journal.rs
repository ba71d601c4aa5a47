//! The access log: who did what over the API. Every request that changes something, fetches content or is rejected
//! becomes a line in the server's log and in a file. The latest entries stay in memory for the API.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrator::KeyId;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::journal_file::JournalFile;
use super::recent::Recent;
use crate::answers::{now_ms, timestamp};
use crate::error::ServerError;

/// The interval of rate-limited entries. Beyond their allowance they are only counted, and the count is logged at its
/// end.
pub(super) const PAUSE: Duration = Duration::from_secs(10);
/// Rejections of one caller that are logged individually per interval.
const MOST_REFUSALS: u64 = 20;
/// Reads of one path by one caller that are logged individually per interval. An open page polls.
const MOST_LOOKS: u64 = 3;
/// The number of counters. Once it is reached, further reads are counted per caller, regardless of the path.
const MOST_COUNTED: usize = 500;
/// The caller name for requests without a valid key.
pub(super) const NOBODY: &str = "nobody";
/// Longer paths are cut to this many bytes.
const MAX_PATH: usize = 256;

/// Something that somebody did, or tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Deed {
    /// When.
    #[schema(format = DateTime)]
    pub(crate) at: String,
    /// The name of the key; `anybody` where there are none, `guest` for who came by a link that was shared, `nobody`
    /// without a good key.
    pub(crate) who: String,
    /// The id of the key, which no other key ever has although names are used again; of a guest, that of who shared the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The address that it came from.
    pub(crate) from: Option<String>,
    /// The method.
    pub(crate) method: String,
    /// The path, without the query.
    pub(crate) path: String,
    /// What was answered.
    pub(crate) status: u16,
    /// How many requests this line stands for: floods are counted, and the last of them is told.
    #[serde(default = "one")]
    #[schema(required, minimum = 1)]
    pub(crate) count: u64,
}

fn one() -> u64 {
    1
}

impl Deed {
    pub(crate) fn new(who: &str, from: Option<IpAddr>, method: &str, path: &str, status: u16) -> Self {
        let end = path.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_PATH).last().unwrap_or(0);
        let path = if path.len() > MAX_PATH { &path[..end] } else { path };
        Self {
            at: timestamp(now_ms()),
            who: who.to_owned(),
            key: None,
            from: from.map(|address| address.to_string()),
            method: method.to_owned(),
            path: path.to_owned(),
            status,
            count: 1,
        }
    }

    /// Sets the key that made the request.
    pub(crate) fn by_key(self, key: Option<&KeyId>) -> Self {
        Self { key: key.map(ToString::to_string), ..self }
    }

    pub(super) fn is_of_nobody(&self) -> bool {
        self.who == NOBODY && self.key.is_none()
    }
}

/// A group of entries that are summarised once there are many of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Ration {
    /// Requests without a valid key: somebody may be guessing keys.
    Strangers,
    /// All other requests without a key.
    Nobody,
    /// Requests that the guard rejects before authentication: foreign origins and host names.
    Outside,
    /// Rejected requests of an authenticated caller.
    Caller(String),
    /// Reads of an authenticated caller: of one path, or of any path if the second field is empty.
    Looks(String, String),
}

impl Ration {
    /// How many entries per interval are logged individually.
    fn most(&self) -> u64 {
        match self {
            Self::Caller(_) => MOST_REFUSALS,
            Self::Looks(..) => MOST_LOOKS,
            Self::Strangers | Self::Nobody | Self::Outside => 1,
        }
    }
}

/// The access log. All listeners share it.
#[derive(Clone, Default)]
pub struct AccessLog(Arc<Journal>);

impl AccessLog {
    /// Opens the access log in a data folder, or continues an existing one.
    ///
    /// # Errors
    /// The file cannot be opened for writing.
    pub fn open(folder: &Path) -> Result<Self, ServerError> {
        let (file, deeds) = JournalFile::open(folder).map_err(ServerError::AccessLog)?;
        let recent = Mutex::new(deeds.into_iter().collect());
        Ok(Self(Arc::new(Journal { recent, file: Some(file), ..Journal::default() })))
    }

    pub(super) fn journal(&self) -> &Arc<Journal> {
        &self.0
    }

    /// Logs a request that was rejected before authentication.
    pub(crate) fn note_outside(&self, from: Option<IpAddr>, method: &str, path: &str, status: u16) {
        self.0.write_rationed(&Ration::Outside, Deed::new(NOBODY, from, method, path, status));
    }

    /// Logs all pending counts and waits until the file has everything.
    pub(crate) fn settle(&self) {
        self.0.tell_counted(Which::All);
        if let Some(file) = &self.0.file {
            file.settle();
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
pub(crate) struct Journal {
    recent: Mutex<Recent>,
    counts: Mutex<HashMap<Ration, Count>>,
    file: Option<JournalFile>,
}

/// The entries of one [`Ration`] since the interval began.
#[derive(Debug)]
struct Count {
    since: Instant,
    told: u64,
    left: u64,
    last: Option<Deed>,
}

/// Which counters to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Those whose interval is over.
    Due,
    All,
}

impl Journal {
    /// Logs an entry.
    pub(crate) fn write(&self, deed: Deed) {
        let Deed { who, key, from, method, path, status, count, .. } = &deed;
        let (from, key) = (from.as_deref().unwrap_or("inside"), key.as_deref().unwrap_or_default());
        tracing::info!(target: "caisson_access", who, key, from, method, path, status, count, "over the API");
        self.keep(deed);
    }

    /// Logs an entry of a kind that can come in floods, or only counts it. A flood must neither fill the log nor push
    /// out the entries of others. The count is logged at the end of the interval, even if no further request arrives.
    pub(crate) fn write_rationed(self: &Arc<Self>, ration: &Ration, deed: Deed) {
        self.tell_counted(Which::Due);
        let mut counts = self.counts();
        let fresh = || Count { since: Instant::now(), told: 0, left: 0, last: None };
        let count = counts.entry(ration.clone()).or_insert_with(fresh);
        if count.told < ration.most() {
            count.told += 1;
            drop(counts);
            return self.tell(ration, deed);
        }
        count.left += 1;
        count.last = Some(deed);
        let is_first = count.left == 1;
        let due = count.since + PAUSE;
        drop(counts);
        if is_first && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let journal = Arc::downgrade(self);
            runtime.spawn(async move {
                tokio::time::sleep_until(due).await;
                if let Some(journal) = journal.upgrade() {
                    journal.tell_counted(Which::Due);
                }
            });
        }
    }

    /// Logs a read of content. Repeated reads of the same path cannot push out the entries of others.
    pub(crate) fn write_look(self: &Arc<Self>, deed: Deed) {
        let is_full = self.counts().len() >= MOST_COUNTED;
        let path = if is_full { String::new() } else { deed.path.clone() };
        self.write_rationed(&Ration::Looks(deed.who.clone(), path), deed);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Ration, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the counted entries. A counter with entries starts the next interval with no individual entries left,
    /// because the flood may continue.
    fn tell_counted(&self, which: Which) {
        let mut told = Vec::new();
        self.counts().retain(|ration, count| {
            if which == Which::Due && count.since.elapsed() < PAUSE {
                return true;
            }
            let Some(last) = count.last.take() else { return false };
            told.push((ration.clone(), Deed { count: count.left, ..last }));
            *count = Count { since: Instant::now(), told: ration.most(), left: 0, last: None };
            true
        });
        told.into_iter().for_each(|(ration, deed)| self.tell(&ration, deed));
    }

    fn tell(&self, ration: &Ration, deed: Deed) {
        if *ration != Ration::Strangers {
            return self.write(deed);
        }
        let from = deed.from.as_deref().unwrap_or("inside");
        tracing::warn!(
            target: "caisson_access", count = deed.count, from, path = deed.path,
            "requests came without a key that this server knows; the address and path are those of the last"
        );
        self.keep(deed);
    }

    fn keep(&self, deed: Deed) {
        if let Some(file) = &self.file {
            file.write(&deed);
        }
        self.recent().push(deed);
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest entries, newest first.
    pub(crate) fn last(&self, count: usize) -> Vec<Deed> {
        self.recent().newest(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::recent::{KEPT, KEPT_OF_NOBODY};
    use super::*;

    fn deed(path: &str) -> Deed {
        Deed::new("ada", None, "POST", path, 202)
    }

    fn paths(journal: &Journal, count: usize) -> Vec<String> {
        journal.last(count).into_iter().map(|deed| deed.path).collect()
    }

    #[test]
    fn the_newest_are_kept_and_strangers_are_told_of_rarely() {
        let journal = Arc::new(Journal::default());
        for number in 0..KEPT + 5 {
            journal.write(deed(&format!("/{number}")));
        }
        assert_eq!(paths(&journal, 2), ["/1004", "/1003"]);
        assert_eq!(journal.last(usize::MAX).len(), KEPT);
        for _ in 0..100 {
            journal.write_rationed(&Ration::Strangers, deed("/v1/jobs"));
        }
        assert_eq!(paths(&journal, 2), ["/v1/jobs", "/1004"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_that_stops_is_told_with_how_many_they_were() {
        let journal = Arc::new(Journal::default());
        for number in 0..1000 {
            journal.write_rationed(&Ration::Strangers, deed(&format!("/{number}")));
        }
        assert_eq!(journal.last(9).len(), 1);
        tokio::time::sleep(PAUSE * 2).await;
        let told = journal.last(9);
        assert_eq!(told.iter().map(|deed| deed.count).collect::<Vec<_>>(), [999, 1]);
        assert_eq!(told[0].path, "/999", "the last of them");
        tokio::time::sleep(PAUSE * 2).await;
        journal.write_rationed(&Ration::Strangers, deed("/later"));
        assert_eq!(paths(&journal, 1), ["/later"], "a single one later is told at once");
    }

    #[test]
    fn what_is_left_is_told_at_the_end() {
        let log = AccessLog::default();
        for _ in 0..50 {
            log.note_outside(None, "POST", "/v1/jobs", 403);
        }
        log.settle();
        log.settle();
        let counts: Vec<u64> = log.journal().last(9).iter().map(|deed| deed.count).collect();
        assert_eq!(counts, [49, 1]);
    }

    #[test]
    fn a_flood_of_refusals_of_one_caller_pushes_nothing_out() {
        let journal = Arc::new(Journal::default());
        journal.write(deed("/first"));
        let refuse = |who: &str, path: &str, status: u16| {
            let deed = Deed::new(who, None, "POST", path, status);
            journal.write_rationed(&Ration::Caller(who.to_owned()), deed);
        };
        for _ in 0..5000 {
            refuse("ada", "/schedule", 429);
        }
        refuse("bob", "/v1/keys", 403);
        let kept = journal.last(usize::MAX);
        assert_eq!(kept.len(), usize::try_from(MOST_REFUSALS).unwrap() + 2);
        assert_eq!((kept[0].who.as_str(), kept[kept.len() - 1].path.as_str()), ("bob", "/first"));
    }

    #[test]
    fn looks_again_and_again_are_counted_by_path_and_by_caller() {
        let journal = Arc::new(Journal::default());
        let look = |who: &str, path: &str| journal.write_look(Deed::new(who, None, "GET", path, 200));
        for _ in 0..3000 {
            look("eve", "/v1/jobs/a/events");
        }
        look("eve", "/v1/jobs/b/events");
        look("ada", "/v1/jobs/a/events");
        let most = usize::try_from(MOST_LOOKS).unwrap();
        assert_eq!(journal.last(usize::MAX).len(), most + 2);
        for number in 0..5000 {
            look("eve", &format!("/v1/jobs/a/files/{number}"));
        }
        assert!(journal.counts().len() <= MOST_COUNTED + 1);
        assert!(journal.last(usize::MAX).len() < KEPT);
    }

    #[test]
    fn who_does_much_pushes_out_only_what_is_their_own() {
        let journal = Journal::default();
        journal.write(deed("/first"));
        for number in 0..3 * KEPT {
            journal.write(Deed::new("eve", None, "POST", &format!("/{number}"), 202));
        }
        let kept = journal.last(usize::MAX);
        assert_eq!((kept.len(), kept[KEPT - 1].path.as_str()), (KEPT, "/first"));
        assert_eq!((kept[0].path.as_str(), kept[KEPT - 2].path.as_str()), ("/2999", "/2001"));
    }

    #[test]
    fn nobody_pushes_out_what_others_did() {
        let journal = Journal::default();
        journal.write(deed("/first"));
        for _ in 0..2 * KEPT {
            journal.keep(Deed::new(NOBODY, None, "DELETE", "/v1/session", 204));
        }
        let kept = journal.last(usize::MAX);
        assert_eq!((kept.len(), kept[KEPT_OF_NOBODY].path.as_str()), (KEPT_OF_NOBODY + 1, "/first"));
    }

    #[test]
    fn a_line_of_before_there_were_counts_is_read() {
        let line = r#"{"at":"2026-01-01T00:00:00Z","who":"ada","from":null,"method":"POST","path":"/","status":202}"#;
        let read = serde_json::from_str::<Deed>(line).unwrap();
        assert_eq!((read.count, read.key), (1, None));
    }

    #[test]
    fn a_path_without_end_is_cut() {
        assert_eq!(deed(&"é".repeat(1000)).path.len(), MAX_PATH);
        assert_eq!(deed("/short").path, "/short");
    }
}
