//! The single writer thread. It combines all queued work into one transaction, so that a hundred callers share one
//! fsync. Each piece of work can be rolled back separately: its failure does not affect the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use job::{JobId, JobView, Sequence};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::erase::{self, Eraser};
use super::failed;
use super::heads::Signer;
use super::notifier::EventNotifier;
use super::observed::Observed;
use crate::error::StoreError;

const BEGIN: &str = "BEGIN IMMEDIATE";
/// Maximum number of pieces of work per transaction.
const MAX_GROUP: usize = 512;
/// Maximum number of cached views; beyond that, all are dropped.
const MAX_VIEWS: usize = 4096;

/// What a piece of work may use.
pub(super) struct Context<'a> {
    pub(super) connection: &'a Connection,
    /// Views of recently written jobs, as of the open transaction.
    pub(super) views: &'a mut HashMap<JobId, JobView>,
    /// Jobs with new events, to be announced after the commit.
    pub(super) new_events: &'a mut Vec<(JobId, Sequence)>,
    pub(super) signer: &'a mut Signer,
    /// Whether a piece of work deleted content that must be erased from the database files.
    has_deleted: bool,
    undo: RollbackScope,
    /// The error that made SQLite end the transaction, if any.
    ended_by: Option<StoreError>,
}

impl Context<'_> {
    /// Must be called by every deletion whose content must be erased from the database files.
    pub(super) fn mark_deletion(&mut self) -> Result<(), StoreError> {
        self.has_deleted = true;
        erase::mark(self.connection)
    }
}

/// How to roll back the next piece of work if it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RollbackScope {
    /// Roll back the whole transaction, because it contains nothing else yet. Most transactions have only one piece
    /// of work.
    Transaction,
    /// Roll back to a savepoint.
    Savepoint,
}

/// Runs inside the transaction; gets `None` if the transaction could not be started. Returns a function that answers
/// the caller after the commit.
type Work = Box<dyn FnOnce(Option<&mut Context<'_>>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Sends work to the writer thread.
pub(super) struct Writer {
    work: mpsc::Sender<Work>,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        signer: Signer,
        notifier: Arc<EventNotifier>,
        observed: Arc<Observed>,
    ) -> Result<Self, StoreError> {
        let (work, queue) = mpsc::channel(4096);
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || write_loop(&connection, signer, queue, &notifier, &observed))
            .map_err(StoreError::io("starting the thread that writes"))?;
        Ok(Self { work })
    }

    /// Runs a piece of work; it is durable when this returns.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Context<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let boxed: Work = Box::new(move |context| {
            let result = match context {
                Some(context) => run_with_rollback(context, work),
                None => Err(StoreError::Closed),
            };
            Box::new(move |committed| drop(reply.send(committed.and(result))))
        });
        self.work.send(boxed).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

fn run_with_rollback<T>(
    context: &mut Context<'_>,
    work: impl FnOnce(&mut Context<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let told = context.new_events.len();
    let mark = context.signer.mark();
    let (begin, finish, undo): (&[_], &[_], &[_]) = match context.undo {
        RollbackScope::Transaction => (&[], &[], &["ROLLBACK", BEGIN]),
        RollbackScope::Savepoint => {
            (&["SAVEPOINT work"], &["RELEASE work"], &["ROLLBACK TO work", "RELEASE work"])
        }
    };
    let execute_all =
        |connection, all: &[&str]| all.iter().try_for_each(|statement| execute(connection, statement));
    execute_all(context.connection, begin)?;
    let result = work(context);
    match &result {
        Ok(_) => {
            context.undo = RollbackScope::Savepoint;
            execute_all(context.connection, finish)?;
        }
        Err(error) => {
            context.new_events.truncate(told);
            context.views.clear();
            context.signer.undo_to(mark);
            // A full disk may have ended the transaction already, so that there is nothing to roll back.
            let undone = match context.connection.is_autocommit() {
                true => Err(same(error)),
                false => execute_all(context.connection, undo),
            };
            context.ended_by = undone.err();
        }
    }
    result
}

fn execute(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute([]))
        .map(drop)
        .map_err(failed("writing to the database"))
}

fn write_loop(
    connection: &Connection,
    mut signer: Signer,
    mut queue: mpsc::Receiver<Work>,
    notifier: &EventNotifier,
    observed: &Observed,
) {
    let mut views = HashMap::new();
    let mut eraser = Eraser::default();
    while let Some(first) = queue.blocking_recv() {
        let mut new_events = Vec::new();
        let mut answers: Vec<Answer> = Vec::new();
        let mut begun = execute(connection, BEGIN);
        let mut has_deleted = false;
        if begun.is_ok() {
            let mut context = Context {
                connection,
                views: &mut views,
                new_events: &mut new_events,
                signer: &mut signer,
                has_deleted: false,
                undo: RollbackScope::Transaction,
                ended_by: None,
            };
            answers.push(first(Some(&mut context)));
            // Once a full disk has ended the transaction, further work would be committed on its own but reported as
            // failed.
            while answers.len() < MAX_GROUP
                && !connection.is_autocommit()
                && let Ok(next) = queue.try_recv()
            {
                answers.push(next(Some(&mut context)));
            }
            has_deleted = context.has_deleted;
            begun = context.ended_by.map_or(Ok(()), Err);
        } else {
            answers.push(first(None));
            // The queued work would fail in the same way, each after waiting for as long.
            while let Ok(next) = queue.try_recv() {
                answers.push(next(None));
            }
        }
        let commit_started = Instant::now();
        let committed = begun.and_then(|()| commit(connection));
        if committed.is_err() {
            views.clear();
            signer.undo_to(0);
        } else {
            signer.committed();
            observed.committed(commit_started.elapsed());
            for (job, sequence) in new_events {
                notifier.tell(job, sequence);
            }
            if has_deleted {
                eraser.deleted();
            }
            eraser.erase(connection);
        }
        answer_all(answers, &committed);
        if views.len() > MAX_VIEWS {
            views.clear();
        }
    }
    eraser.erase(connection);
}

fn commit(connection: &Connection) -> Result<(), StoreError> {
    if connection.is_autocommit() {
        return Err(StoreError::DiskFull);
    }
    execute(connection, "COMMIT").inspect_err(|_| {
        if !connection.is_autocommit() {
            let _ = connection.execute_batch("ROLLBACK");
        }
    })
}

fn answer_all(answers: Vec<Answer>, committed: &Result<(), StoreError>) {
    for answer in answers {
        answer(match committed {
            Ok(()) => Ok(()),
            Err(error) => Err(same(error)),
        });
    }
}

/// Copies the error for every caller in a transaction.
fn same(error: &StoreError) -> StoreError {
    error.passing().unwrap_or_else(|| StoreError::Failed {
        what: error.to_string(),
        source: "the transaction failed".into(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{LazyLock, Mutex, OnceLock, mpsc as sync_channel};

    use super::super::SqliteStore;
    use super::*;

    type Done = Result<(), StoreError>;

    fn insert(context: &mut Context<'_>, number: i64) -> Done {
        let inserted = context.connection.execute("INSERT INTO numbers VALUES (?1)", [number]);
        inserted.map(drop).map_err(failed("inserting"))
    }

    /// Runs the first piece of work and then, in the same transaction if possible, the others. Returns whether each
    /// succeeded, and the resulting content of the table.
    async fn together(
        first: impl FnOnce(&mut Context<'_>) -> Done + Send + 'static,
        others: Vec<fn(&mut Context<'_>) -> Done>,
    ) -> (Vec<bool>, Vec<i64>) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
        let writer = &store.writer;
        let make = |context: &mut Context<'_>| {
            context.connection.execute_batch("CREATE TABLE numbers (number)").map_err(failed("making"))
        };
        writer.run(make).await.unwrap();
        let (go, wait) = sync_channel::channel();
        let first = writer.run(move |context| {
            wait.recv().unwrap();
            first(context)
        });
        let others = async {
            let others = others.into_iter().map(|work| writer.run(work));
            let (told, ()) = tokio::join!(futures::future::join_all(others), async {
                // All of them have been sent when this future is polled.
                go.send(()).unwrap();
            });
            told
        };
        let (first, others) = tokio::join!(first, others);
        let told = std::iter::once(first).chain(others).map(|told| told.is_ok()).collect();
        let read = |context: &mut Context<'_>| {
            let mut query = context.connection.prepare("SELECT number FROM numbers").unwrap();
            let numbers = query.query_map([], |row| row.get(0)).unwrap();
            Ok(numbers.collect::<Result<Vec<i64>, _>>().unwrap())
        };
        (told, writer.run(read).await.unwrap())
    }

    /// SQLite's busy handler: returns once all work is queued, and then refuses to wait for the lock.
    fn refuse_to_wait(_: i32) -> bool {
        let (asked, go) = &*LOCKED;
        *asked.lock().unwrap() += 1;
        go.lock().unwrap().recv().is_err()
    }

    type Locked = (Mutex<u32>, Mutex<sync_channel::Receiver<()>>);
    static GO: OnceLock<sync_channel::Sender<()>> = OnceLock::new();
    static LOCKED: LazyLock<Locked> = LazyLock::new(|| {
        let (sender, receiver) = sync_channel::channel();
        GO.set(sender).unwrap();
        (Mutex::default(), Mutex::new(receiver))
    });

    #[tokio::test]
    async fn queued_writes_fail_together_if_the_database_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        drop(SqliteStore::open(&path).unwrap());
        LazyLock::force(&LOCKED);
        let mut connection = Connection::open(&path).unwrap();
        let signer = Signer::open(&connection, &path).unwrap();
        connection.busy_handler(Some(refuse_to_wait)).unwrap();
        let writer = Writer::start(connection, signer, Arc::default(), Arc::default()).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch(BEGIN).unwrap();
        let writes = (0..20).map(|_| writer.run(|_| Ok(())));
        let (told, ()) = tokio::join!(futures::future::join_all(writes), async {
            // All of them have been sent when this future is polled.
            GO.get().unwrap().send(()).unwrap();
        });
        assert!(told.iter().all(|told| matches!(told, Err(StoreError::Busy))), "{told:?}");
        assert_eq!(*LOCKED.0.lock().unwrap(), 1, "each of them was waited for");
    }

    #[tokio::test]
    async fn failed_work_is_rolled_back_separately_within_a_transaction() {
        let fails = |context: &mut Context<'_>| {
            insert(context, 13)?;
            Err(StoreError::DiskFull)
        };
        let others: Vec<fn(&mut Context<'_>) -> Done> =
            vec![|context| insert(context, 2), fails, |context| insert(context, 3)];
        let (told, numbers) = together(|context| insert(context, 1), others.clone()).await;
        assert_eq!((told, numbers), (vec![true, true, false, true], vec![1, 2, 3]));
        let (told, numbers) = together(fails, others).await;
        assert_eq!((told, numbers), (vec![false, true, false, true], vec![2, 3]));
    }

    #[tokio::test]
    async fn nothing_is_committed_yet_reported_failed_after_a_transaction_ends() {
        let ends = |context: &mut Context<'_>| {
            insert(context, 13)?;
            // SQLite does this by itself when the disk is full.
            execute(context.connection, "ROLLBACK")?;
            Err(StoreError::DiskFull)
        };
        let others: Vec<fn(&mut Context<'_>) -> Done> = vec![|context| insert(context, 2)];
        assert_eq!(together(ends, others).await, (vec![false, true], vec![2]));
        let others: Vec<fn(&mut Context<'_>) -> Done> =
            vec![|context| insert(context, 2), ends, |context| insert(context, 3)];
        let (told, numbers) = together(|context| insert(context, 1), others).await;
        assert_eq!((told, numbers), (vec![false, false, false, true], vec![3]));
    }
}
