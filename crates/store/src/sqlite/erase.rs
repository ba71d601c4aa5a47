//! Erases deleted rows from the database files.
//!
//! SQLite overwrites deleted rows with zeros, but remains are left in two places: the write-ahead log has older
//! copies of the pages, and pages that were split have remains in their free space. So the log is truncated and the
//! database is rewritten with `VACUUM`: a small database within seconds of a deletion, a large one once a day. A mark
//! in the database says that this is still to be done.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::{LOCK_TIMEOUT, failed};
use crate::error::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

/// Delay before retrying after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A database up to this size is rewritten quickly, and in memory.
const SMALL_BYTES: i64 = 64 << 20;
const SMALL_REWRITE_INTERVAL: Duration = Duration::from_secs(10);
const LARGE_REWRITE_INTERVAL: Duration = Duration::from_secs(86_400);
/// The pragma that stores the mark, which nothing else uses. It is 1 if the database may have remains of deleted
/// rows.
const MARK: &str = "application_id";

/// Makes SQLite overwrite deleted content.
pub(super) fn prepare(connection: &Connection) -> Result<()> {
    // The pragma returns a row.
    connection.query_row("PRAGMA secure_delete = ON", [], |_| Ok(())).map_err(failed("opening the database"))
}

/// Marks the database; called in the deleting transaction.
pub(super) fn mark(connection: &Connection) -> Result<()> {
    connection.pragma_update(None, MARK, 1).map_err(failed("marking the database"))
}

/// Erases what deletions have left, between transactions.
#[derive(Debug, Default)]
pub(super) struct Eraser {
    /// Whether the write-ahead log must be truncated.
    has_log: bool,
    /// Whether the database must be rewritten.
    has_remains: bool,
    tried: Option<Instant>,
    rewritten: Option<Instant>,
}

impl Eraser {
    /// Starts with what an earlier server has left.
    pub(super) fn at_start(connection: &Connection) -> Result<Self> {
        Ok(Self { has_log: true, has_remains: number(connection, MARK)? != 0, ..Self::default() })
    }

    /// Notes that a deletion was committed.
    pub(super) fn deleted(&mut self) {
        *self = Self { has_log: true, has_remains: true, tried: None, ..*self };
    }

    /// Does what is due. Failures are retried later.
    pub(super) fn erase(&mut self, connection: &Connection) {
        let has_passed = |since: Option<Instant>, rest| since.is_none_or(|since| since.elapsed() >= rest);
        if !(self.has_log || self.has_remains) || !has_passed(self.tried, RETRY_DELAY) {
            return;
        }
        self.tried = Some(Instant::now());
        if let Err(error) = self.try_to_erase(connection, has_passed) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "what was deleted is still in the files of the database; trying again");
        }
    }

    fn try_to_erase(
        &mut self,
        connection: &Connection,
        has_passed: impl Fn(Option<Instant>, Duration) -> bool,
    ) -> Result<()> {
        let rewritten = self.rewrite_if_due(connection, has_passed);
        // On a full disk, truncating the log works without a rewrite, and makes room.
        if self.has_log {
            self.has_log = !empty_log(connection)?;
        }
        rewritten
    }

    fn rewrite_if_due(
        &mut self,
        connection: &Connection,
        has_passed: impl Fn(Option<Instant>, Duration) -> bool,
    ) -> Result<()> {
        if self.has_remains {
            let bytes = number(connection, "page_count")?.saturating_mul(number(connection, "page_size")?);
            let is_small = bytes <= SMALL_BYTES;
            if has_passed(
                self.rewritten,
                if is_small { SMALL_REWRITE_INTERVAL } else { LARGE_REWRITE_INTERVAL },
            ) {
                self.rewritten = Some(Instant::now());
                rewrite(connection, is_small)?;
                (self.has_remains, self.has_log) = (false, true);
            }
        }
        Ok(())
    }
}

fn rewrite(connection: &Connection, in_memory: bool) -> Result<()> {
    let store = if in_memory { "MEMORY" } else { "FILE" };
    let rewrite = format!("PRAGMA temp_store = {store}; VACUUM; PRAGMA {MARK} = 0");
    let rewritten = connection.execute_batch(&rewrite).map_err(failed("rewriting the database"));
    connection.execute_batch("PRAGMA temp_store = MEMORY").map_err(failed("rewriting the database"))?;
    rewritten
}

/// Moves the write-ahead log into the database and truncates it; `false` if a reader uses an older snapshot. Does not
/// wait for readers, because nothing could be written in the meantime.
fn empty_log(connection: &Connection) -> Result<bool> {
    let emptying = || failed("emptying the log of the database");
    connection.busy_timeout(Duration::ZERO).map_err(emptying())?;
    let is_busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    connection.busy_timeout(LOCK_TIMEOUT).map_err(emptying())?;
    is_busy.map(|is_busy| is_busy == 0).map_err(emptying())
}

fn number(connection: &Connection, pragma: &str) -> Result<i64> {
    connection
        .query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))
        .map_err(failed("looking at the database"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::SqliteStore;
    use super::super::heads_tests::{end, job, note};
    use super::*;
    use crate::Store;
    use job::{Actor, Fence, JobId};

    /// Whether any file of the database contains a text.
    fn is_in_files(folder: &Path, text: &str) -> bool {
        let files = fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
        files.into_iter().any(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    /// A finished job with a text in short and long events, interleaved with events of another job.
    async fn job_that_says(store: &SqliteStore, text: &str) -> JobId {
        let id = job(store, 0).await;
        let other = job(store, 0).await;
        for number in 0..100 {
            let long = "x".repeat(number * 70);
            store.append(id, Fence::Anybody, vec![note(&format!("{text} {long}"))]).await.unwrap();
            store.append(other, Fence::Anybody, vec![note(&long)]).await.unwrap();
        }
        end(store, id).await;
        id
    }

    #[tokio::test]
    async fn deleted_jobs_leave_no_traces_in_database_files() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
        let one = job_that_says(&store, "the-first-secret").await;
        let other = job_that_says(&store, "another-secret").await;
        assert!(is_in_files(folder.path(), "the-first-secret"));
        // A reader of an older snapshot, such as a backup, is not waited for; the next deletion tries again.
        let reader = Connection::open(folder.path().join("caisson.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
        store.delete(one, Actor::named("ada")).await.unwrap();
        assert!(is_in_files(folder.path(), "the-first-secret"), "the reader does not read an older state");
        reader.execute_batch("COMMIT").unwrap();
        store.delete(other, Actor::named("ada")).await.unwrap();
        assert!(!is_in_files(folder.path(), "the-first-secret"));
    }

    #[test]
    fn failed_rewrite_is_tried_again_later_and_the_log_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join("caisson.db")).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE filler (data BLOB)").unwrap();
        mark(&connection).unwrap();
        let log_bytes = || fs::metadata(folder.path().join("caisson.db-wal")).unwrap().len();
        assert!(log_bytes() > 0);
        // `VACUUM` fails, as it does on a full disk.
        connection.execute_batch("PRAGMA query_only = ON").unwrap();
        let mut eraser = Eraser::at_start(&connection).unwrap();
        eraser.erase(&connection);
        assert!(eraser.has_remains && !eraser.has_log);
        assert_eq!(log_bytes(), 0);
        connection.execute_batch("PRAGMA query_only = OFF").unwrap();
        let mut eraser = Eraser { tried: None, rewritten: None, ..eraser };
        eraser.erase(&connection);
        assert!(!eraser.has_remains && !eraser.has_log);
    }

    #[tokio::test]
    async fn next_server_erases_deleted_rows_of_a_killed_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        let store = SqliteStore::open(&path).unwrap();
        let id = job_that_says(&store, "the-first-secret").await;
        drop(store);
        // Deleted but not overwritten.
        let connection = Connection::open(&path).unwrap();
        connection.execute("DELETE FROM events WHERE job = ?1", [id.to_string()]).unwrap();
        mark(&connection).unwrap();
        drop(connection);
        assert!(is_in_files(folder.path(), "the-first-secret"));
        let _store = SqliteStore::open(&path).unwrap();
        assert!(!is_in_files(folder.path(), "the-first-secret"));
        let connection = Connection::open(&path).unwrap();
        assert_eq!(number(&connection, MARK).unwrap(), 0, "it would be written anew at each start");
    }

    #[tokio::test]
    async fn next_server_truncates_the_write_ahead_log_of_a_killed_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        let store = SqliteStore::open(&path).unwrap();
        let id = job_that_says(&store, "the-first-secret").await;
        // The files of a server that was killed while there was a reader.
        let killed = tempfile::tempdir().unwrap();
        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM events").unwrap();
        store.delete(id, Actor::named("ada")).await.unwrap();
        for name in ["caisson.db", "caisson.db-wal", "audit.key"] {
            fs::copy(folder.path().join(name), killed.path().join(name)).unwrap();
        }
        assert!(is_in_files(killed.path(), "the-first-secret"));
        let _store = SqliteStore::open(&killed.path().join("caisson.db")).unwrap();
        assert!(!is_in_files(killed.path(), "the-first-secret"));
    }
}
