//! Signed heads in the database: when they are created, and for how long a log may go without one.
//!
//! The end of a job and the head over it are written in one transaction, so that a finished job always has a head, no
//! matter when a server is killed. Growing logs are signed at intervals. Whenever a head is written, all logs that
//! have waited for longer than [`MAX_UNSIGNED_MS`] are signed, too. The verification relies on both. A log that
//! violates these rules is never signed afterwards: heads were removed there, and signing it would hide that.

use std::collections::HashMap;
use std::path::Path;

use job::{Actor, JobId, Sequence};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::read::parse_id;
use super::writer::Context;
use super::{drops, failed, tombstones};
use crate::clock::now_ms;
use crate::error::StoreError;
use crate::evidence::dropped::{DerivedDigests, DropStatement};
use crate::evidence::head::{MAX_UNSIGNED_MS, SignedHead};
use crate::evidence::key::SigningKey;
use crate::evidence::tombstone::Tombstone;

type Result<T> = std::result::Result<T, StoreError>;

/// A log is signed early after this many events.
const MAX_UNSIGNED_EVENTS: u64 = 1000;
const COLUMNS: &str = "sequence, hash, number, previous, time_ms, key, signature";

/// Signs in the writer thread; knows which jobs have events that no head covers.
pub(super) struct Signer {
    key: SigningKey,
    unsigned: HashMap<JobId, Unsigned>,
    /// Previous values in `unsigned` for each change of the open transaction.
    changes: Vec<(JobId, Option<Unsigned>)>,
}

/// A log whose end no head covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unsigned {
    /// The newest event that a head covers.
    signed: Sequence,
    /// When the event after it was written.
    since_ms: i64,
}

impl Signer {
    /// Reads the key or creates it, and finds the logs that were left unsigned.
    pub(super) fn open(connection: &Connection, path: &Path) -> Result<Self> {
        let key = SigningKey::of(path.parent().unwrap_or(Path::new(".")))?;
        Ok(Self { key, unsigned: left_unsigned(connection)?, changes: Vec::new() })
    }

    fn set(&mut self, job: JobId, unsigned: Option<Unsigned>) {
        let before = match unsigned {
            Some(unsigned) => self.unsigned.insert(job, unsigned),
            None => self.unsigned.remove(&job),
        };
        self.changes.push((job, before));
    }

    /// A savepoint within the open transaction.
    pub(super) fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Reverts the changes after a savepoint, because the transaction or a part of it was rolled back.
    pub(super) fn undo_to(&mut self, mark: usize) {
        while self.changes.len() > mark
            && let Some((job, before)) = self.changes.pop()
        {
            match before {
                Some(before) => drop(self.unsigned.insert(job, before)),
                None => drop(self.unsigned.remove(&job)),
            }
        }
    }

    /// Notes that the transaction was committed.
    pub(super) fn committed(&mut self) {
        self.changes.clear();
    }

    /// Signs that the payloads of a job were dropped.
    pub(super) fn sign_drop(&self, job: JobId, derived: DerivedDigests) -> DropStatement {
        self.key.sign_drop(job, derived)
    }

    /// Signs that a job was deleted whose log ended with `last`.
    pub(super) fn sign_deletion(&mut self, job: JobId, last: (Sequence, &[u8]), by: &Actor) -> Tombstone {
        self.set(job, None);
        self.key.sign_deletion(job, last, by)
    }
}

/// The logs that a killed server may have left unsigned. Any other unsigned log is reported and not signed again.
fn left_unsigned(connection: &Connection) -> Result<HashMap<JobId, Unsigned>> {
    let unsigned: Vec<(String, bool, u64, Option<i64>)> = connection
        .prepare(
            "SELECT id, state IN ('complete', 'failed', 'cancelled'), signed,
                    (SELECT time_ms FROM events WHERE job = id AND sequence = signed + 1)
             FROM (SELECT id, state, next_sequence,
                          COALESCE((SELECT MAX(sequence) FROM heads WHERE job = jobs.id), 0) AS signed FROM jobs)
             WHERE next_sequence > signed + 1",
        )
        .and_then(|mut query| {
            query
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
                .collect()
        })
        .map_err(failed("looking for logs without a head"))?;
    let oldest_ms = newest_ms(connection)?.saturating_sub(MAX_UNSIGNED_MS);
    let mut found = HashMap::new();
    for (job, is_over, signed, since_ms) in unsigned {
        match since_ms {
            Some(since_ms) if !is_over && since_ms >= oldest_ms => {
                found.insert(parse_id(&job)?, Unsigned { signed, since_ms });
            }
            _ => tracing::error!(
                job,
                "signed heads of the job are missing; its log is not signed again; see \"caisson audit verify\""
            ),
        }
    }
    Ok(found)
}

/// When the newest head of all jobs was signed. Times in the future, from a wrong clock, are ignored.
pub(super) fn newest_ms(connection: &Connection) -> Result<i64> {
    connection
        .prepare_cached("SELECT COALESCE(MAX(time_ms), 0) FROM heads WHERE time_ms <= ?1")
        .and_then(|mut query| query.query_row([now_ms()], |row| row.get(0)))
        .map_err(failed("reading signed heads"))
}

/// Notes new events. Signs the log if the job is over or many events have been added since the last head.
pub(super) fn note(
    context: &mut Context<'_>,
    job: JobId,
    (first, last): (Sequence, Sequence),
    time_ms: i64,
    hash: &[u8],
    is_over: bool,
) -> Result<()> {
    let unsigned = match context.signer.unsigned.get(&job) {
        Some(unsigned) => *unsigned,
        None => {
            let unsigned = Unsigned { signed: first.saturating_sub(1), since_ms: time_ms };
            context.signer.set(job, Some(unsigned));
            unsigned
        }
    };
    if is_over || last.saturating_sub(unsigned.signed) >= MAX_UNSIGNED_EVENTS {
        sign(context, job, (last, hash))?;
        let oldest_ms = now_ms().saturating_sub(MAX_UNSIGNED_MS);
        sign_where(context, |unsigned| unsigned.since_ms < oldest_ms)?;
    }
    Ok(())
}

/// Signs the end of a log. Returns `false` if the previous head is not the one that this server expects.
fn sign(context: &mut Context<'_>, job: JobId, end: (Sequence, &[u8])) -> Result<bool> {
    let Some(Unsigned { signed, .. }) = context.signer.unsigned.get(&job).copied() else { return Ok(false) };
    context.signer.set(job, None);
    let before = newest(context.connection, job)?;
    if before.as_ref().map_or(0, |head| head.sequence) != signed {
        tracing::error!(
            %job,
            "signed heads of the job are missing; its log is not signed any more; see \"caisson audit verify\""
        );
        return Ok(false);
    }
    let head = context.signer.key.sign(job, end, before.as_ref());
    context
        .connection
        .prepare_cached(
            "INSERT INTO heads (job, sequence, hash, number, previous, time_ms, key, signature)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                job.to_string(),
                head.sequence,
                head.hash,
                head.number,
                head.previous,
                head.time_ms,
                head.key,
                head.signature
            ])
        })
        .map_err(failed("storing a signed head"))?;
    Ok(true)
}

/// Signs the end of every log that has grown since its last head; returns their number.
pub(super) fn sign_all(context: &mut Context<'_>) -> Result<usize> {
    sign_where(context, |_| true)
}

fn sign_where(context: &mut Context<'_>, is_due: impl Fn(&Unsigned) -> bool) -> Result<usize> {
    let unsigned = context.signer.unsigned.iter();
    let jobs: Vec<JobId> = unsigned.filter(|(_, unsigned)| is_due(unsigned)).map(|(job, _)| *job).collect();
    let mut count = 0;
    for job in jobs {
        let end: Option<(u64, Vec<u8>)> = context
            .connection
            .prepare_cached("SELECT next_sequence, head_hash FROM jobs WHERE id = ?1")
            .and_then(|mut query| {
                query.query_row([job.to_string()], |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(failed("reading the end of the log"))?;
        match end {
            Some((next, hash)) => {
                count += usize::from(sign(context, job, (next.saturating_sub(1), &hash))?);
            }
            None => context.signer.set(job, None),
        }
    }
    Ok(count)
}

/// The heads of a job, oldest first.
pub(super) fn of_job(connection: &Connection, job: JobId) -> Result<Vec<SignedHead>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM heads WHERE job = ?1 ORDER BY sequence"))
        .and_then(|mut query| query.query_map([job.to_string()], |row| head(job, row))?.collect())
        .map_err(failed("reading signed heads"))
}

fn newest(connection: &Connection, job: JobId) -> Result<Option<SignedHead>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM heads WHERE job = ?1 ORDER BY sequence DESC LIMIT 1"))
        .and_then(|mut query| query.query_row([job.to_string()], |row| head(job, row)).optional())
        .map_err(failed("reading signed heads"))
}

fn head(job: JobId, row: &Row<'_>) -> rusqlite::Result<SignedHead> {
    Ok(SignedHead {
        job,
        sequence: row.get(0)?,
        hash: row.get(1)?,
        number: row.get(2)?,
        previous: row.get(3)?,
        time_ms: row.get(4)?,
        key: row.get(5)?,
        signature: row.get(6)?,
    })
}

/// Finished jobs with a head signed shortly before the newest of all, whose files a killed server may not have
/// finished.
pub(super) fn recently_ended(connection: &Connection) -> Result<Vec<JobId>> {
    let since_ms = newest_ms(connection)?.saturating_sub(MAX_UNSIGNED_MS);
    let ids: Vec<String> = connection
        .prepare(
            "SELECT DISTINCT jobs.id FROM heads JOIN jobs ON jobs.id = heads.job
             WHERE heads.time_ms >= ?1 AND jobs.state IN ('complete', 'failed', 'cancelled')",
        )
        .and_then(|mut query| query.query_map([since_ms], |row| row.get(0))?.collect())
        .map_err(failed("listing jobs that ended lately"))?;
    ids.iter().map(|id| parse_id(id)).collect()
}

/// All keys named in the heads of a database, and in its statements about dropped payloads and deleted jobs.
pub(super) fn keys_of_heads(database: &Path) -> Result<Vec<String>> {
    let connection = super::open_for_reading(database)?;
    let mut keys: Vec<String> = connection
        .prepare("SELECT DISTINCT key FROM heads")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("reading signed heads"))?;
    keys.extend(drops::keys(&connection)?);
    keys.extend(tombstones::all(&connection)?.into_iter().map(|tombstone| tombstone.key));
    keys.sort();
    keys.dedup();
    Ok(keys)
}
