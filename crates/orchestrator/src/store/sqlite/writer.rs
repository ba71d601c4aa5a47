//! The one thread that writes. Whatever waits when it is free goes into one transaction, so that a hundred callers
//! share one synchronisation of the disk. Each piece of work can be undone alone: its failure is its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::failed;
use super::heads::Signer;
use super::hub::Hub;
use crate::error::OrchestratorError;
use crate::ids::{JobId, Sequence};
use crate::metrics::Metrics;
use crate::view::JobView;

const BEGIN: &str = "BEGIN IMMEDIATE";
/// The most pieces of work in one transaction.
const MAX_GROUP: usize = 512;
/// Views kept in memory; all are dropped when there are more.
const MAX_VIEWS: usize = 4096;

/// What a piece of work may use.
pub(super) struct Context<'a> {
    pub(super) connection: &'a Connection,
    /// Views of jobs that were written to lately, as the open transaction sees them.
    pub(super) views: &'a mut HashMap<JobId, JobView>,
    /// Jobs with new events, to be told after the commit.
    pub(super) news: &'a mut Vec<(JobId, Sequence)>,
    /// Signs the ends of logs.
    pub(super) signer: &'a mut Signer,
    undo: Undo,
}

/// How the next piece of work is undone, should it fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undo {
    /// With the whole transaction: nothing else is in it. Most transactions have one piece of work.
    Transaction,
    /// To a savepoint.
    Savepoint,
}

/// Done inside the transaction, or not at all where none could be begun; gives back what to say when it has ended.
type Work = Box<dyn FnOnce(Option<&mut Context<'_>>) -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), OrchestratorError>) + Send>;

/// Sends work to the writing thread.
pub(super) struct Writer {
    work: mpsc::Sender<Work>,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        signer: Signer,
        hub: Arc<Hub>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, OrchestratorError> {
        let (work, queue) = mpsc::channel(4096);
        std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || write_loop(&connection, signer, queue, &hub, &metrics))
            .map_err(OrchestratorError::io("starting the thread that writes"))?;
        Ok(Self { work })
    }

    /// Does a piece of work; it is durable when this returns.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, OrchestratorError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Context<'_>) -> Result<T, OrchestratorError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let boxed: Work = Box::new(move |context| {
            let result = match context {
                Some(context) => undone_on_failure(context, work),
                None => Err(OrchestratorError::ShuttingDown),
            };
            Box::new(move |committed| drop(reply.send(committed.and(result))))
        });
        self.work.send(boxed).await.map_err(|_| OrchestratorError::ShuttingDown)?;
        answer.await.map_err(|_| OrchestratorError::ShuttingDown)?
    }
}

fn undone_on_failure<T>(
    context: &mut Context<'_>,
    work: impl FnOnce(&mut Context<'_>) -> Result<T, OrchestratorError>,
) -> Result<T, OrchestratorError> {
    let told = context.news.len();
    let (begin, finish, undo): (&[_], &[_], &[_]) = match context.undo {
        Undo::Transaction => (&[], &[], &["ROLLBACK", BEGIN]),
        Undo::Savepoint => (&["SAVEPOINT work"], &["RELEASE work"], &["ROLLBACK TO work", "RELEASE work"]),
    };
    let execute_all =
        |connection, all: &[&str]| all.iter().try_for_each(|statement| execute(connection, statement));
    execute_all(context.connection, begin)?;
    let result = work(context);
    match result {
        Ok(_) => {
            context.undo = Undo::Savepoint;
            execute_all(context.connection, finish)?;
        }
        Err(_) => {
            context.news.truncate(told);
            context.views.clear();
            // A full disk may have ended the transaction already; then there is nothing to roll back.
            if !context.connection.is_autocommit() {
                execute_all(context.connection, undo)?;
            }
        }
    }
    result
}

fn execute(connection: &Connection, sql: &str) -> Result<(), OrchestratorError> {
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
    hub: &Hub,
    metrics: &Metrics,
) {
    let mut views = HashMap::new();
    while let Some(first) = queue.blocking_recv() {
        let mut news = Vec::new();
        let mut answers: Vec<Answer> = Vec::new();
        let begun = execute(connection, BEGIN);
        if begun.is_ok() {
            let mut context = Context {
                connection,
                views: &mut views,
                news: &mut news,
                signer: &mut signer,
                undo: Undo::Transaction,
            };
            answers.push(first(Some(&mut context)));
            // Once the transaction has ended, by a full disk, whatever came next would be written by itself and be told to have failed.
            while answers.len() < MAX_GROUP
                && !connection.is_autocommit()
                && let Ok(next) = queue.try_recv()
            {
                answers.push(next(Some(&mut context)));
            }
        } else {
            answers.push(first(None));
        }
        let commit_started = Instant::now();
        let committed = begun.and_then(|()| commit(connection));
        if committed.is_err() {
            views.clear();
        } else {
            metrics.committed(commit_started.elapsed());
            for (job, sequence) in news {
                hub.tell(job, sequence);
            }
        }
        answer_all(answers, &committed);
        if views.len() > MAX_VIEWS {
            views.clear();
        }
    }
}

fn commit(connection: &Connection) -> Result<(), OrchestratorError> {
    if connection.is_autocommit() {
        return Err(OrchestratorError::DiskFull);
    }
    execute(connection, "COMMIT").inspect_err(|_| {
        if !connection.is_autocommit() {
            let _ = connection.execute_batch("ROLLBACK");
        }
    })
}

fn answer_all(answers: Vec<Answer>, committed: &Result<(), OrchestratorError>) {
    for answer in answers {
        answer(match committed {
            Ok(()) => Ok(()),
            Err(OrchestratorError::DiskFull) => Err(OrchestratorError::DiskFull),
            Err(OrchestratorError::StoreBusy) => Err(OrchestratorError::StoreBusy),
            Err(error) => Err(OrchestratorError::Store {
                what: error.to_string(),
                source: "the transaction failed".into(),
            }),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as sync_channel;

    use super::super::SqliteStore;
    use super::*;

    type Done = Result<(), OrchestratorError>;

    fn insert(context: &mut Context<'_>, number: i64) -> Done {
        let inserted = context.connection.execute("INSERT INTO numbers VALUES (?1)", [number]);
        inserted.map(drop).map_err(failed("inserting"))
    }

    /// Does the first piece of work and then, in the same transaction as far as that is possible, the others; gives what
    /// each was told, and what is in the table afterwards.
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
                // All of them have been sent when this comes to its turn.
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

    #[tokio::test]
    async fn what_fails_is_undone_alone_wherever_it_stands_in_a_transaction() {
        let fails = |context: &mut Context<'_>| {
            insert(context, 13)?;
            Err(OrchestratorError::DiskFull)
        };
        let others: Vec<fn(&mut Context<'_>) -> Done> =
            vec![|context| insert(context, 2), fails, |context| insert(context, 3)];
        let (told, numbers) = together(|context| insert(context, 1), others.clone()).await;
        assert_eq!((told, numbers), (vec![true, true, false, true], vec![1, 2, 3]));
        let (told, numbers) = together(fails, others).await;
        assert_eq!((told, numbers), (vec![false, true, false, true], vec![2, 3]));
    }

    #[tokio::test]
    async fn after_the_end_of_a_transaction_nothing_is_written_and_told_to_have_failed() {
        let ends = |context: &mut Context<'_>| {
            insert(context, 13)?;
            // What SQLite does itself where the disk is full.
            execute(context.connection, "ROLLBACK")?;
            Err(OrchestratorError::DiskFull)
        };
        let others: Vec<fn(&mut Context<'_>) -> Done> = vec![|context| insert(context, 2)];
        assert_eq!(together(ends, others).await, (vec![false, true], vec![2]));
        let others: Vec<fn(&mut Context<'_>) -> Done> =
            vec![|context| insert(context, 2), ends, |context| insert(context, 3)];
        let (told, numbers) = together(|context| insert(context, 1), others).await;
        assert_eq!((told, numbers), (vec![false, false, false, true], vec![3]));
    }
}
