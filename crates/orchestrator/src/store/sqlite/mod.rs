//! Jobs and events in one SQLite file: write-ahead log, full synchronisation, one writer with group commit.

mod copy;
mod hub;
mod read;
mod write;
mod writer;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::watch;

pub(crate) use self::copy::{check_copy, copy_database, jobs_in_copy};
use self::hub::Hub;
use self::writer::Writer;
use super::{Created, NewRecord, Store};
use crate::answers::JobFilter;
use crate::error::OrchestratorError;
use crate::event::{Event, Fence, NewEvent};
use crate::ids::{Generation, JobId, Sequence};
use crate::metrics::Metrics;
use crate::request::JobSpec;
use crate::state::JobState;
use crate::view::JobView;

const SCHEMA: &str = include_str!("schema.sql");
const SCHEMA_VERSION: i64 = 1;
/// How long to wait for a lock that another program holds on the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Keeps jobs in an SQLite file.
pub struct SqliteStore {
    writer: Writer,
    readers: Arc<Readers>,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
}

struct Readers {
    path: std::path::PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl SqliteStore {
    /// Opens the file, or makes it. The caller holds the lock on the folder, so leases of an earlier life of this
    /// server are void and are cleared.
    ///
    /// # Errors
    /// The file cannot be opened or is of a newer version.
    pub fn open(path: &Path) -> Result<Self, OrchestratorError> {
        Self::open_measured(path, Arc::default())
    }

    /// The same, and counts what is written.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub(crate) fn open_measured(path: &Path, metrics: Arc<Metrics>) -> Result<Self, OrchestratorError> {
        let connection = Connection::open(path).map_err(failed("opening the database"))?;
        connection.busy_timeout(LOCK_PATIENCE).map_err(failed("opening the database"))?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;
                 PRAGMA cache_size = -8000; PRAGMA temp_store = MEMORY;",
            )
            .map_err(failed("opening the database"))?;
        migrate(&connection)?;
        connection
            .execute("UPDATE jobs SET owner = NULL, lease_until = 0 WHERE owner IS NOT NULL", [])
            .map_err(failed("clearing old leases"))?;
        let hub = Arc::new(Hub::default());
        Ok(Self {
            writer: Writer::start(connection, Arc::clone(&hub), Arc::clone(&metrics))?,
            readers: Arc::new(Readers { path: path.to_owned(), idle: Mutex::new(Vec::new()) }),
            hub,
            metrics,
        })
    }

    async fn read<T, F>(&self, what: &'static str, query: F) -> Result<T, OrchestratorError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, OrchestratorError> + Send + 'static,
    {
        let readers = Arc::clone(&self.readers);
        let answer = tokio::task::spawn_blocking(move || {
            let connection = readers.take()?;
            let result = query(&connection);
            readers.give_back(connection);
            result
        });
        answer
            .await
            .map_err(|error| OrchestratorError::Store { what: what.to_owned(), source: error.into() })?
    }
}

impl Readers {
    fn take(&self) -> Result<Connection, OrchestratorError> {
        if let Some(connection) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(connection);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(&self.path, flags).map_err(failed("opening the database"))?;
        connection.busy_timeout(LOCK_PATIENCE).map_err(failed("opening the database"))?;
        Ok(connection)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < 8 {
            idle.push(connection);
        }
    }
}

fn migrate(connection: &Connection) -> Result<(), OrchestratorError> {
    let version: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(failed("reading the version"))?;
    match version {
        0 => connection
            .execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"))
            .map_err(failed("making the tables")),
        SCHEMA_VERSION => Ok(()),
        newer => Err(OrchestratorError::Store {
            what: format!(
                "the database has version {newer}, this caisson knows {SCHEMA_VERSION}; use a newer caisson"
            ),
            source: "unknown version".into(),
        }),
    }
}

/// Turns an error of SQLite into ours.
fn failed(what: &str) -> impl FnOnce(rusqlite::Error) -> OrchestratorError {
    let what = what.to_owned();
    move |error| match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => OrchestratorError::DiskFull,
        _ => OrchestratorError::Store { what, source: error.into() },
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn create(&self, record: NewRecord) -> Result<Created, OrchestratorError> {
        let events = record.events.len() + 1;
        let created = self.writer.run(move |context| write::create(context, record)).await;
        if matches!(created, Ok(Created::New(_))) {
            self.metrics.submitted(events);
        }
        created
    }

    async fn append(
        &self,
        job: JobId,
        fence: Fence,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Event>, OrchestratorError> {
        let placed = self.writer.run(move |context| write::append(context, job, fence, events)).await?;
        self.metrics.stored(&placed);
        Ok(placed)
    }

    async fn claim(&self, job: JobId, lease_ms: i64) -> Result<Option<Generation>, OrchestratorError> {
        self.writer.run(move |context| write::claim(context, job, lease_ms)).await
    }

    async fn renew_leases(&self, lease_ms: i64) -> Result<(), OrchestratorError> {
        self.writer.run(move |context| write::renew_leases(context, lease_ms)).await
    }

    async fn release(&self, job: JobId, generation: Generation) -> Result<(), OrchestratorError> {
        self.writer.run(move |context| write::release(context, job, generation)).await
    }

    async fn job(&self, job: JobId) -> Result<JobView, OrchestratorError> {
        self.read("reading a job", move |connection| read::view(connection, job)).await
    }

    async fn spec(&self, job: JobId) -> Result<JobSpec, OrchestratorError> {
        self.read("reading a job", move |connection| read::spec(connection, job)).await
    }

    async fn jobs(&self, filter: JobFilter) -> Result<Vec<JobView>, OrchestratorError> {
        self.read("listing jobs", move |connection| read::jobs(connection, &filter)).await
    }

    async fn next_queued(&self, limit: usize) -> Result<Vec<JobId>, OrchestratorError> {
        self.read("reading the queue", move |connection| read::next_queued(connection, limit)).await
    }

    async fn count_queued(&self) -> Result<usize, OrchestratorError> {
        self.read("counting the queue", read::count_queued).await
    }

    async fn count_by_state(&self) -> Result<Vec<(JobState, u64)>, OrchestratorError> {
        self.read("counting jobs", read::count_by_state).await
    }

    async fn unfinished(&self) -> Result<Vec<JobId>, OrchestratorError> {
        self.read("listing unfinished jobs", read::unfinished).await
    }

    async fn events(
        &self,
        job: JobId,
        after: Sequence,
        limit: usize,
    ) -> Result<Vec<Event>, OrchestratorError> {
        self.read("reading events", move |connection| read::events(connection, job, after, limit)).await
    }

    fn watch(&self, job: JobId) -> watch::Receiver<Sequence> {
        self.hub.watch(job)
    }

    async fn delete(&self, job: JobId) -> Result<(), OrchestratorError> {
        self.writer.run(move |context| write::delete(context, job)).await
    }

    async fn over(&self, limit: usize) -> Result<Vec<JobView>, OrchestratorError> {
        self.read("listing finished jobs", move |connection| read::over(connection, limit)).await
    }

    async fn check(&self) -> Result<(), OrchestratorError> {
        self.writer.run(write::check).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sqlite_passes_the_conformance_suite() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        super::super::conformance::run(|| SqliteStore::open(&path).unwrap()).await;
    }

    #[tokio::test]
    async fn a_database_of_a_newer_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
        let error = SqliteStore::open(&path).err().unwrap().to_string();
        assert!(error.contains("version 99"), "{error}");
    }
}
