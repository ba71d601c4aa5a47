//! The one thread that writes. Whatever waits when it is free goes into one transaction, so that a hundred callers
//! share one synchronisation of the disk. Each piece of work has a savepoint of its own: its failure is its own.

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
                Some(context) => in_savepoint(context, work),
                None => Err(OrchestratorError::ShuttingDown),
            };
            Box::new(move |committed| drop(reply.send(committed.and(result))))
        });
        self.work.send(boxed).await.map_err(|_| OrchestratorError::ShuttingDown)?;
        answer.await.map_err(|_| OrchestratorError::ShuttingDown)?
    }
}

fn in_savepoint<T>(
    context: &mut Context<'_>,
    work: impl FnOnce(&mut Context<'_>) -> Result<T, OrchestratorError>,
) -> Result<T, OrchestratorError> {
    let told = context.news.len();
    execute(context.connection, "SAVEPOINT work")?;
    let result = work(context);
    match result {
        Ok(_) => execute(context.connection, "RELEASE work")?,
        Err(_) => {
            context.news.truncate(told);
            context.views.clear();
            // A full disk may have ended the transaction already; then there is nothing to roll back.
            if !context.connection.is_autocommit() {
                execute(context.connection, "ROLLBACK TO work")?;
                execute(context.connection, "RELEASE work")?;
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
        let begun = execute(connection, "BEGIN IMMEDIATE");
        if begun.is_ok() {
            let mut context = Context { connection, views: &mut views, news: &mut news, signer: &mut signer };
            answers.push(first(Some(&mut context)));
            while answers.len() < MAX_GROUP
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
