//! Signed heads in the database: when they are made, and what a check reads.

use std::collections::HashMap;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use super::read::{self, parse_id};
use super::writer::Context;
use super::{drops, failed, has_table, payloads, tombstones};
use crate::access::Actor;
use crate::audit::{
    Checker, DropStatement, JobAudit, Row, SignedHead, SigningKey, StoredFile, Tombstone, TrustedKeys,
};
use crate::error::OrchestratorError;
use crate::event::{Artifact, Event, EventBody};
use crate::folder::DATABASE;
use crate::ids::{JobId, Sequence};
use crate::store::{EventPage, Kinds, PAGE, WITHOUT_OUTPUT};

type Result<T> = std::result::Result<T, OrchestratorError>;

/// A table more than the first version had; a server that does not know it leaves it alone.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS heads (
    job       TEXT NOT NULL,
    sequence  INTEGER NOT NULL,
    hash      TEXT NOT NULL,
    time_ms   INTEGER NOT NULL,
    key       TEXT NOT NULL,
    signature TEXT NOT NULL,
    PRIMARY KEY (job, sequence)
) WITHOUT ROWID;";
/// So many events are signed even before their time has come.
const MOST_UNSIGNED: u64 = 1000;
/// Events of one read.
const BATCH: i64 = 1000;
/// The longest payload that is ever unpacked.
const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;

/// Signs in the writing thread; knows which jobs have events that no head covers.
pub(super) struct Signer {
    key: SigningKey,
    /// The newest event that a head covers.
    unsigned: HashMap<JobId, Sequence>,
}

impl Signer {
    /// Makes the table and the key where they are missing, and finds what was left unsigned.
    pub(super) fn open(connection: &Connection, path: &Path) -> Result<Self> {
        connection.execute_batch(SCHEMA).map_err(failed("making the table of heads"))?;
        drops::prepare(connection)?;
        let key = SigningKey::of(path.parent().unwrap_or(Path::new(".")))?;
        let unsigned: Vec<(String, u64)> = connection
            .prepare(
                "SELECT id, signed FROM (SELECT id, next_sequence,
                     COALESCE((SELECT MAX(sequence) FROM heads WHERE job = jobs.id), 0) AS signed FROM jobs)
                 WHERE next_sequence > signed + 1",
            )
            .and_then(|mut query| query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .map_err(failed("looking for logs without a head"))?;
        let unsigned = unsigned.into_iter().map(|(job, signed)| Ok((parse_id(&job)?, signed)));
        Ok(Self { key, unsigned: unsigned.collect::<Result<_>>()? })
    }

    /// Signs that the payloads of a job were dropped.
    pub(super) fn sign_drop(&self, job: JobId) -> DropStatement {
        self.key.sign_drop(job)
    }

    /// Signs that a job was deleted whose log ended so.
    pub(super) fn sign_deletion(&mut self, job: JobId, last: (Sequence, &[u8]), by: &Actor) -> Tombstone {
        self.unsigned.remove(&job);
        self.key.sign_deletion(job, last, by)
    }
}

/// Takes notice of new events; signs where the job is over or much has come since the last head.
pub(super) fn note(
    context: &mut Context<'_>,
    job: JobId,
    first: Sequence,
    last: Sequence,
    hash: &[u8],
    is_over: bool,
) -> Result<()> {
    let signed = *context.signer.unsigned.entry(job).or_insert(first.saturating_sub(1));
    if is_over || last.saturating_sub(signed) >= MOST_UNSIGNED {
        sign(context, job, last, hash)?;
    }
    Ok(())
}

fn sign(context: &mut Context<'_>, job: JobId, sequence: Sequence, hash: &[u8]) -> Result<()> {
    let head = context.signer.key.sign(job, sequence, hash);
    context
        .connection
        .prepare_cached(
            "INSERT OR REPLACE INTO heads (job, sequence, hash, time_ms, key, signature) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                job.to_string(),
                sequence,
                head.hash,
                head.time_ms,
                head.key,
                head.signature
            ])
        })
        .map_err(failed("storing a signed head"))?;
    context.signer.unsigned.remove(&job);
    Ok(())
}

/// Signs the end of every log that has grown since its last head; how many.
pub(super) fn sign_all(context: &mut Context<'_>) -> Result<usize> {
    let jobs: Vec<JobId> = context.signer.unsigned.keys().copied().collect();
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
                sign(context, job, next.saturating_sub(1), &hash)?;
                count += 1;
            }
            None => drop(context.signer.unsigned.remove(&job)),
        }
    }
    Ok(count)
}

/// The heads of a job, oldest first.
pub(super) fn of_job(connection: &Connection, job: JobId) -> Result<Vec<SignedHead>> {
    if !has_table(connection, "heads")? {
        return Ok(Vec::new());
    }
    connection
        .prepare_cached(
            "SELECT sequence, hash, time_ms, key, signature FROM heads WHERE job = ?1 ORDER BY sequence",
        )
        .and_then(|mut query| {
            let head = |row: &SqlRow<'_>| {
                Ok(SignedHead {
                    job,
                    sequence: row.get(0)?,
                    hash: row.get(1)?,
                    time_ms: row.get(2)?,
                    key: row.get(3)?,
                    signature: row.get(4)?,
                })
            };
            query.query_map([job.to_string()], head)?.collect()
        })
        .map_err(failed("reading signed heads"))
}

/// Checks the log of a job, in one view of the database.
pub(super) fn check(
    connection: &Connection,
    job: JobId,
    kept: &[SignedHead],
    trusted: &TrustedKeys,
) -> Result<JobAudit> {
    let transaction = connection.unchecked_transaction().map_err(failed("reading the log"))?;
    let (next, head): (u64, Vec<u8>) = transaction
        .query_row("SELECT next_sequence, head_hash FROM jobs WHERE id = ?1", [job.to_string()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
        .map_err(failed("reading the end of the log"))?
        .ok_or(OrchestratorError::NoJob(job))?;
    let may_lack = if drops::are_stated(&transaction, job, trusted)? {
        |kind: &str| !payloads::is_kept(kind)
    } else {
        |_: &str| false
    };
    let mut checker = Checker::new(job, of_job(&transaction, job)?, kept.to_vec(), trusted, may_lack);
    let mut after: Sequence = 0;
    loop {
        let rows: Vec<Row> = transaction
            .prepare_cached(
                "SELECT e.sequence, e.time_ms, e.kind, e.call, e.attempt, e.generation, e.tokens, e.payload, b.data, e.digest, e.hash
                 FROM events e LEFT JOIN blobs b ON e.payload IS NULL AND b.job = e.job AND b.digest = e.digest
                 WHERE e.job = ?1 AND e.sequence > ?2 ORDER BY e.sequence LIMIT ?3",
            )
            .and_then(|mut query| query.query_map(params![job.to_string(), after, BATCH], row)?.collect())
            .map_err(failed("reading the log"))?;
        let Some(last) = rows.last() else { break };
        after = last.sequence;
        rows.iter().for_each(|row| checker.take(row));
    }
    Ok(checker.finish(next, &head))
}

fn row(row: &SqlRow<'_>) -> rusqlite::Result<Row> {
    let payload: Option<String> = row.get(7)?;
    let packed: Option<Vec<u8>> = row.get(8)?;
    let payload = match (payload, packed) {
        (Some(payload), _) => Ok(Some(payload.into_bytes())),
        (None, Some(packed)) => {
            zstd::bulk::decompress(&packed, MAX_PAYLOAD_BYTES).map(Some).map_err(|error| error.to_string())
        }
        (None, None) => Ok(None),
    };
    Ok(Row {
        sequence: row.get(0)?,
        time_ms: row.get(1)?,
        kind: row.get(2)?,
        call: row.get(3)?,
        attempt: row.get(4)?,
        generation: row.get(5)?,
        tokens: row.get(6)?,
        payload,
        digest: row.get(9)?,
        hash: row.get(10)?,
    })
}

/// The keys that the heads of a database name, and its statements about dropped payloads and deleted jobs.
pub(crate) fn keys_of_heads(database: &Path) -> Result<Vec<String>> {
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

/// Reads the logs of a data folder that a server may be using.
pub(crate) struct AuditReader {
    connection: Connection,
}

impl AuditReader {
    pub(crate) fn open(data: &Path) -> Result<Self> {
        let path = data.join(DATABASE);
        if !path.exists() {
            return Err(OrchestratorError::Audit(format!(
                "there is no database of caisson in {}",
                data.display()
            )));
        }
        Ok(Self { connection: super::open_for_reading(&path)? })
    }

    pub(crate) fn jobs(&self) -> Result<Vec<JobId>> {
        let ids: Vec<String> = self
            .connection
            .prepare("SELECT id FROM jobs ORDER BY id")
            .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
            .map_err(failed("listing jobs"))?;
        ids.iter().map(|id| parse_id(id)).collect()
    }

    pub(crate) fn has(&self, job: JobId) -> Result<bool> {
        self.connection
            .query_row("SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ?1)", [job.to_string()], |row| {
                row.get(0)
            })
            .map_err(failed("reading a job"))
    }

    pub(crate) fn tombstone(&self, job: JobId) -> Result<Option<Tombstone>> {
        tombstones::of_job(&self.connection, job)
    }

    pub(crate) fn tombstones(&self) -> Result<Vec<Tombstone>> {
        tombstones::all(&self.connection)
    }

    /// The files beside the log whose digests the log of a job has; nothing while the job may still change them.
    pub(crate) fn stored_files(&self, job: JobId) -> Result<Option<Vec<StoredFile>>> {
        if !read::view(&self.connection, job)?.state.is_over() {
            return Ok(None);
        }
        let kinds = Kinds::Only(&["artifact_stored", "audit_stored"]);
        let EventPage { events, .. } = read::events(&self.connection, job, kinds, (0, usize::MAX))?;
        let stored = events.into_iter().filter_map(|event| match event.body {
            EventBody::ArtifactStored(Artifact { name, bytes, sha256, .. }) => {
                Some(StoredFile { name, bytes, sha256 })
            }
            EventBody::AuditStored(stored) => Some(stored),
            _ => None,
        });
        Ok(Some(stored.collect()))
    }

    /// What people did to a job over the API, oldest first: the events that say who did it.
    pub(crate) fn deeds(&self, job: JobId) -> Result<Vec<Event>> {
        let mut deeds = Vec::new();
        let mut after = 0;
        loop {
            let EventPage { events, is_last } =
                read::events(&self.connection, job, WITHOUT_OUTPUT, (after, PAGE))?;
            after = events.last().map_or(after, |last| last.sequence);
            deeds.extend(events.into_iter().filter(|event| event.done_by.is_some()));
            if is_last {
                return Ok(deeds);
            }
        }
    }

    pub(crate) fn heads(&self, job: JobId) -> Result<Vec<SignedHead>> {
        of_job(&self.connection, job)
    }

    pub(crate) fn check(&self, job: JobId, kept: &[SignedHead], trusted: &TrustedKeys) -> Result<JobAudit> {
        check(&self.connection, job, kept, trusted)
    }
}
