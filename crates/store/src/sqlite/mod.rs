//! Jobs and events in one SQLite file: write-ahead log, `synchronous = FULL`, a single writer with group commit.

mod audit;
#[cfg(test)]
mod audit_tests;
mod copy;
mod derived;
mod disk_space;
mod drops;
mod erase;
mod heads;
#[cfg(test)]
mod heads_tests;
mod keys;
mod local;
mod logins;
mod notifier;
mod observed;
mod payloads;
mod read;
mod tombstones;
mod write;
mod writer;

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use job::{
    Actor, Event, Fence, Generation, JobFilter, JobId, JobSpec, JobState, JobView, Key, KeyId, KeyUse, Kinds,
    NewEvent, Role, Sequence, SessionId, ShareId, SharedLink,
};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::watch;

use self::notifier::EventNotifier;
use self::observed::Observed;
use self::writer::Writer;
use crate::error::StoreError;
use crate::evidence::check::JobAudit;
use crate::evidence::head::SignedHead;
use crate::evidence::trust::TrustedKeys;
use crate::observer::StoreObserver;
use crate::{Created, EventPage, NewRecord, Removable, Store};

pub use self::local::Sqlite;

/// The file in the data folder.
pub const DATABASE_FILE: &str = "caisson.db";
/// The schema of [`OLDEST_VERSION`], and the migration scripts; each upgrades the schema by one version.
const MIGRATIONS: [&str; 1] = [include_str!("schema.sql")];
/// Databases of earlier versions are refused: their events have other names.
const OLDEST_VERSION: i64 = 8;
/// The version that this program writes.
const VERSION: i64 = OLDEST_VERSION + MIGRATIONS.len() as i64 - 1;
/// How long to wait for a lock that another process holds on the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// For files that only the server may read.
const PRIVATE_MODE: u32 = 0o600;
/// Capacity of the prepared statement cache: more than there are statements.
const STATEMENT_CACHE_SIZE: usize = 64;

pub struct SqliteStore {
    writer: Writer,
    readers: Arc<Readers>,
    notifier: Arc<EventNotifier>,
    observed: Arc<Observed>,
}

struct Readers {
    path: std::path::PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl SqliteStore {
    /// Opens the file or creates it. The caller holds the lock on the folder, so leases of an earlier server process
    /// are void and are cleared.
    ///
    /// # Errors
    /// The file cannot be opened, or has a version that this program does not know.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        restrict_permissions(path).map_err(StoreError::io(format!("protecting {}", path.display())))?;
        let connection = Connection::open(path).map_err(failed("opening the database"))?;
        configure_connection(&connection)?;
        disk_space::prepare(&connection)?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;
                 PRAGMA cache_size = -8000; PRAGMA temp_store = MEMORY;",
            )
            .map_err(failed("opening the database"))?;
        erase::prepare(&connection)?;
        migrate(&connection)?;
        erase::Eraser::at_start(&connection)?.erase(&connection);
        connection
            .execute("UPDATE jobs SET owner = NULL, lease_until = 0 WHERE owner IS NOT NULL", [])
            .map_err(failed("clearing old leases"))?;
        let signer = heads::Signer::open(&connection, path)?;
        let notifier = Arc::new(EventNotifier::default());
        let observed = Arc::new(Observed::default());
        Ok(Self {
            writer: Writer::start(connection, signer, Arc::clone(&notifier), Arc::clone(&observed))?,
            readers: Arc::new(Readers { path: path.to_owned(), idle: Mutex::new(Vec::new()) }),
            notifier,
            observed,
        })
    }

    async fn read<T, F>(&self, what: &'static str, query: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let readers = Arc::clone(&self.readers);
        let answer = tokio::task::spawn_blocking(move || {
            let connection = readers.take()?;
            let result = query(&connection);
            readers.give_back(connection);
            result
        });
        answer.await.map_err(|error| StoreError::Failed { what: what.to_owned(), source: error.into() })?
    }
}

impl Readers {
    fn take(&self) -> Result<Connection, StoreError> {
        if let Some(connection) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(connection);
        }
        open_for_reading(&self.path)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < 8 {
            idle.push(connection);
        }
    }
}

/// Makes the database readable by the server only, whatever the permissions of the folder. SQLite gives the files
/// beside it the same mode, but those of an earlier version may have another one.
fn restrict_permissions(path: &Path) -> io::Result<()> {
    match OpenOptions::new().create_new(true).write(true).mode(PRIVATE_MODE).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other.map(drop),
    }
    for ending in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        match fs::set_permissions(name, Permissions::from_mode(PRIVATE_MODE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

fn open_for_reading(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed("opening the database"))?;
    configure_connection(&connection)?;
    Ok(connection)
}

/// Configures the statement cache and the lock timeout. Without the query planner stability guarantee (QPSG), SQLite
/// would look at the value bound to each `LIMIT ?` to choose a plan, and so parse the statement again at every use.
fn configure_connection(connection: &Connection) -> Result<(), StoreError> {
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE_SIZE);
    connection
        .busy_timeout(LOCK_TIMEOUT)
        .and_then(|()| connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true))
        .map(drop)
        .map_err(failed("opening the database"))
}

/// The version of the schema of a database; 0 if it has none yet.
fn version(connection: &Connection) -> Result<i64, StoreError> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed("reading the version"))
}

fn migrate(connection: &Connection) -> Result<(), StoreError> {
    let version = version(connection)?;
    let what_to_do = match version {
        0 | OLDEST_VERSION..=VERSION => None,
        1..OLDEST_VERSION => Some("start with an empty data folder, or use the caisson that wrote this one"),
        _ => Some("use a newer caisson"),
    };
    if let Some(what_to_do) = what_to_do {
        return Err(StoreError::Failed {
            what: format!(
                "the database has version {version}, and this caisson reads {OLDEST_VERSION} to {VERSION}; {what_to_do}"
            ),
            source: "unknown version".into(),
        });
    }
    for (next, script) in (OLDEST_VERSION..).zip(MIGRATIONS) {
        if next > version {
            connection
                .execute_batch(&format!("BEGIN; {script} PRAGMA user_version = {next}; COMMIT;"))
                .map_err(failed("creating the tables"))?;
        }
    }
    Ok(())
}

/// Converts an error of SQLite.
fn failed(what: &str) -> impl FnOnce(rusqlite::Error) -> StoreError {
    let what = what.to_owned();
    move |error| match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::DiskFull,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::PermissionDenied
            | ErrorCode::OutOfMemory
            | ErrorCode::FileLockingProtocolFailed,
        ) => StoreError::Unavailable { why: error.to_string() },
        _ => StoreError::Failed { what, source: error.into() },
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn create(&self, record: NewRecord) -> Result<Created, StoreError> {
        let events = record.events.len() + 1;
        let created = self.writer.run(move |context| write::create(context, record)).await;
        if matches!(created, Ok(Created::New(_))) {
            self.observed.job_created(events);
        }
        created
    }

    async fn append(
        &self,
        job: JobId,
        fence: Fence,
        events: Vec<NewEvent>,
    ) -> Result<Vec<Event>, StoreError> {
        let placed = self.writer.run(move |context| write::append(context, job, fence, events)).await?;
        self.observed.events_appended(&placed);
        Ok(placed)
    }

    async fn claim(&self, job: JobId, lease_ms: i64) -> Result<Option<Generation>, StoreError> {
        self.writer.run(move |context| write::claim(context, job, lease_ms)).await
    }

    async fn renew_leases(&self, lease_ms: i64) -> Result<(), StoreError> {
        self.writer.run(move |context| write::renew_leases(context, lease_ms)).await
    }

    async fn release(&self, job: JobId, generation: Generation) -> Result<(), StoreError> {
        self.writer.run(move |context| write::release(context, job, generation)).await
    }

    async fn job(&self, job: JobId) -> Result<JobView, StoreError> {
        self.read("reading a job", move |connection| read::view(connection, job)).await
    }

    async fn spec(&self, job: JobId) -> Result<JobSpec, StoreError> {
        self.read("reading a job", move |connection| read::spec(connection, job)).await
    }

    async fn jobs(&self, filter: JobFilter) -> Result<Vec<JobView>, StoreError> {
        self.read("listing jobs", move |connection| read::jobs(connection, &filter)).await
    }

    async fn next_queued(&self, limit: usize, except: Vec<KeyId>) -> Result<Vec<JobId>, StoreError> {
        self.read("reading the queue", move |connection| read::next_queued(connection, limit, &except)).await
    }

    async fn count_queued(&self) -> Result<usize, StoreError> {
        self.read("counting the queue", read::count_queued).await
    }

    async fn count_waiting(&self) -> Result<usize, StoreError> {
        self.read("counting the queue", read::count_waiting).await
    }

    async fn count_by_state(&self) -> Result<Vec<(JobState, u64)>, StoreError> {
        self.read("counting jobs", read::count_by_state).await
    }

    async fn jobs_with_code(&self, state: JobState, code: &str) -> Result<Vec<JobId>, StoreError> {
        let code = code.to_owned();
        self.read("listing jobs that wait", move |connection| read::jobs_with_code(connection, state, &code))
            .await
    }

    async fn unfinished(&self) -> Result<Vec<JobId>, StoreError> {
        self.read("listing unfinished jobs", read::unfinished).await
    }

    async fn page(
        &self,
        job: JobId,
        kinds: Kinds,
        after: Sequence,
        limit: usize,
    ) -> Result<EventPage, StoreError> {
        let read = move |connection: &Connection| read::events(connection, job, kinds, (after, limit));
        self.read("reading events", read).await
    }

    async fn put_blob(&self, job: JobId, bytes: Vec<u8>) -> Result<String, StoreError> {
        self.writer.run(move |context| write::put_blob(context, job, &bytes)).await
    }

    async fn blob(&self, job: JobId, digest: String) -> Result<Option<Vec<u8>>, StoreError> {
        self.read("reading a payload", move |connection| read::blob(connection, job, &digest)).await
    }

    fn watch(&self, job: JobId) -> watch::Receiver<Sequence> {
        self.notifier.watch(job)
    }

    async fn delete(&self, job: JobId, by: Actor) -> Result<(), StoreError> {
        self.writer.run(move |context| write::delete(context, job, &by)).await
    }

    async fn with_old_payloads(
        &self,
        ended_before_ms: i64,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<JobId>, StoreError> {
        self.read("listing jobs with old payloads", move |connection| {
            payloads::jobs_to_drop(connection, ended_before_ms, after, limit)
        })
        .await
    }

    async fn drop_payloads(&self, job: JobId) -> Result<(), StoreError> {
        // This is the last chance to compare the derived data with the payloads.
        let is_sound = self.verify(job).await?.faults.is_empty();
        if !is_sound {
            tracing::warn!(%job, "the check of the job finds faults; its payloads are dropped nevertheless");
        }
        self.writer.run(move |context| payloads::drop_job_payloads(context, job, is_sound)).await
    }

    async fn removable(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Removable>, StoreError> {
        self.read("listing jobs that may be removed", move |connection| {
            read::removable(connection, after, limit)
        })
        .await
    }

    async fn put_key(&self, digest: [u8; 32], key: Key) -> Result<(), StoreError> {
        self.writer.run(move |context| keys::put(context, digest, &key)).await
    }

    async fn remove_key(&self, id: KeyId) -> Result<(), StoreError> {
        self.writer.run(move |context| keys::remove(context, &id)).await
    }

    async fn keys(&self) -> Result<Vec<([u8; 32], Key)>, StoreError> {
        self.read("reading the keys", keys::all).await
    }

    async fn put_oidc_user(&self, id: KeyId, role: Role) -> Result<(), StoreError> {
        self.writer.run(move |context| keys::put_oidc_user(context, &id, role)).await
    }

    async fn people(&self) -> Result<Vec<(KeyId, Role)>, StoreError> {
        self.read("reading the people", keys::people).await
    }

    async fn end_session(&self, id: SessionId, until_ms: i64) -> Result<(), StoreError> {
        self.writer.run(move |context| logins::end(context, &id, until_ms)).await
    }

    async fn ended_sessions(&self) -> Result<Vec<(SessionId, i64)>, StoreError> {
        self.read("reading the logins that are over", logins::ended).await
    }

    async fn put_share(&self, link: SharedLink) -> Result<(), StoreError> {
        self.writer.run(move |context| logins::put_share(context, &link)).await
    }

    async fn remove_share(&self, id: ShareId) -> Result<(), StoreError> {
        self.writer.run(move |context| logins::remove_share(context, &id)).await
    }

    async fn shares(&self) -> Result<Vec<SharedLink>, StoreError> {
        self.read("reading the shared links", logins::shares).await
    }

    async fn submitter(&self, job: JobId) -> Result<Option<KeyId>, StoreError> {
        self.read("reading a job", move |connection| keys::submitter(connection, job)).await
    }

    async fn key_use(&self, id: KeyId, since_ms: i64) -> Result<KeyUse, StoreError> {
        self.read("counting the jobs of a key", move |connection| keys::usage(connection, &id, since_ms))
            .await
    }

    async fn sign_heads(&self) -> Result<usize, StoreError> {
        self.writer.run(heads::sign_all).await
    }

    async fn heads(&self, job: JobId) -> Result<Vec<SignedHead>, StoreError> {
        self.read("reading signed heads", move |connection| heads::of_job(connection, job)).await
    }

    async fn verify(&self, job: JobId) -> Result<JobAudit, StoreError> {
        let folder = self.readers.path.parent().unwrap_or(Path::new(".")).to_owned();
        self.read("checking the log", move |connection| {
            audit::check(connection, job, &[], &TrustedKeys::of_folder(&folder), None)
        })
        .await
    }

    async fn recently_ended(&self) -> Result<Vec<JobId>, StoreError> {
        self.read("listing jobs that ended lately", heads::recently_ended).await
    }

    async fn used_bytes(&self) -> Result<u64, StoreError> {
        self.read("measuring the database", disk_space::used_bytes).await
    }

    async fn shrink(&self) -> Result<bool, StoreError> {
        self.writer.run(|context| disk_space::release_free_pages(context.connection)).await
    }

    fn observe(&self, observer: Arc<dyn StoreObserver>) {
        self.observed.set(observer);
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.writer.run(write::check).await
    }
}

#[cfg(any(test, feature = "testing"))]
impl SqliteStore {
    /// Simulates a full disk: the database cannot grow.
    ///
    /// # Errors
    /// The limit cannot be set.
    pub async fn set_full(&self, is_full: bool) -> Result<(), StoreError> {
        let pages = if is_full { 1 } else { 1_000_000 };
        let set = move |context: &mut writer::Context<'_>| {
            let set = format!("PRAGMA max_page_count = {pages}");
            context.connection.query_row(&set, [], |_| Ok(())).map_err(failed("limiting the database"))
        };
        self.writer.run(set).await
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn unwritable_database_is_distinguished_from_a_faulty_statement() {
        let told = |code: i32| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            failed("storing an event")(error)
        };
        for code in
            [ffi::SQLITE_READONLY, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_CANTOPEN]
        {
            assert!(matches!(told(code), StoreError::Unavailable { .. }), "{:?}", told(code));
        }
        assert!(matches!(told(ffi::SQLITE_FULL), StoreError::DiskFull));
        assert!(matches!(told(ffi::SQLITE_BUSY), StoreError::Busy));
        assert!(matches!(told(ffi::SQLITE_CONSTRAINT), StoreError::Failed { .. }));
    }

    /// A disk that cannot be written is only noticed by an actual write, not by a statement that changes nothing.
    #[tokio::test]
    async fn checking_the_database_writes_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
        let log = folder.path().join("caisson.db-wal");
        let before = fs::metadata(&log).unwrap().len();
        store.check().await.unwrap();
        assert!(fs::metadata(&log).unwrap().len() > before);
    }

    #[tokio::test]
    async fn sqlite_passes_the_conformance_suite() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        crate::conformance::run(|| SqliteStore::open(&path).unwrap()).await;
    }

    #[tokio::test]
    async fn databases_of_older_and_newer_versions_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        for (version, what_to_do) in [(7, "start with an empty data folder"), (99, "use a newer caisson")] {
            let sql = format!("PRAGMA user_version = {version}");
            Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
            let error = SqliteStore::open(&path).err().unwrap().to_string();
            assert!(error.contains(&format!("version {version},")) && error.contains(what_to_do), "{error}");
        }
    }

    #[tokio::test]
    async fn database_files_are_private_even_if_created_by_an_earlier_version() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("caisson.db");
        for _ in 0..2 {
            let store = SqliteStore::open(&path).unwrap();
            store.check().await.unwrap();
            let files: Vec<_> =
                fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(files.iter().any(|file| file.to_string_lossy().ends_with("-wal")), "{files:?}");
            for file in files.iter().filter(|file| file.extension().is_none_or(|ending| ending != "pub")) {
                assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o077, 0, "{}", file.display());
            }
            drop(store);
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        }
    }

    #[test]
    fn statement_with_a_bound_limit_is_prepared_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        drop(SqliteStore::open(&path).unwrap());
        let connection = open_for_reading(&path).unwrap();
        let mut query = connection.prepare_cached("SELECT id FROM jobs ORDER BY id LIMIT ?1").unwrap();
        for limit in 1..5 {
            assert_eq!(query.query_map([limit], |_| Ok(())).unwrap().count(), 0);
        }
        assert_eq!(query.get_status(rusqlite::StatementStatus::RePrepare), 0);
    }
}
