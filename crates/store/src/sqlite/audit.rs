//! Reads from the database what the verification of a log needs, while a server may be using it.

use std::path::Path;

use job::{Artifact, Event, EventBody, EventKind, JobId, Kinds, Sequence, StoredFile, WITHOUT_OUTPUT};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use super::derived::ViewBuilder;
use super::read::{self, parse_id};
use super::{DATABASE_FILE, VERSION, drops, failed, heads, payloads, tombstones};
use crate::database::AuditReader;
use crate::error::StoreError;
use crate::evidence::check::{Checker, JobAudit, LogEnd, Row};
use crate::evidence::file_digests::{FileAudit, NETWORK_LIST, NetworkCheck, NetworkFile};
use crate::evidence::head::{MAX_UNSIGNED_MS, SignedHead};
use crate::evidence::tombstone::Tombstone;
use crate::evidence::trust::TrustedKeys;
use crate::{EventPage, PAGE};

type Result<T> = std::result::Result<T, StoreError>;

/// Events per query.
const BATCH: i64 = 1000;
/// Maximum size of a decompressed payload.
const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;

/// Verifies the log of a job, what the database derived from it, and the list of connections if given, in one
/// consistent snapshot of the database.
pub(super) fn check(
    connection: &Connection,
    job: JobId,
    kept: &[SignedHead],
    trusted: &TrustedKeys,
    network: Option<NetworkFile>,
) -> Result<JobAudit> {
    let transaction = connection.unchecked_transaction().map_err(failed("reading the log"))?;
    let (next_sequence, head_hash): (u64, Vec<u8>) = transaction
        .query_row("SELECT next_sequence, head_hash FROM jobs WHERE id = ?1", [job.to_string()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
        .map_err(failed("reading the end of the log"))?
        .ok_or(StoreError::NoJob(job))?;
    let dropped = drops::of_job(&transaction, job, trusted)?;
    let is_droppable =
        if dropped.is_some() { |kind: &str| !payloads::keeps_payload(kind) } else { |_: &str| false };
    let stored = heads::of_job(&transaction, job)?;
    let mut checker = Checker::new(job, stored, kept.to_vec(), trusted, is_droppable);
    let mut network = network.map(NetworkCheck::new);
    let mut view_builder = ViewBuilder::new(job);
    each_row(&transaction, job, Kinds::All, |row| {
        checker.take(row);
        view_builder.take(row);
        if let (Some(network), "egress", Ok(Some(line))) = (&mut network, row.kind.as_str(), &row.payload) {
            network.take(line, row.time_ms);
        }
    })?;
    let newest_head_ms = heads::newest_ms(&transaction)?;
    let is_over = view_builder.is_over();
    let audit = checker.finish(&LogEnd { next_sequence, head_hash, is_over, newest_head_ms });
    let derived = dropped.as_ref().map(|statement| &statement.derived);
    let missing_after_ms = newest_head_ms.saturating_sub(MAX_UNSIGNED_MS);
    let state = network.filter(|_| is_over).and_then(|network| match derived {
        Some(derived) => network.against(derived.network_bytes, &derived.network_sha256),
        None if audit.dropped_payloads > 0 => network.unknown(),
        None => network.finish(missing_after_ms),
    });
    let faults = view_builder.compare(&transaction, dropped.as_ref(), audit.events)?;
    let files = state.map(|state| FileAudit { name: NETWORK_LIST.to_owned(), state });
    Ok(audit.with_faults(faults).with_files(files.into_iter().collect()))
}

/// Reads the stored rows of some kinds of events.
pub(super) fn each_row(
    connection: &Connection,
    job: JobId,
    kinds: Kinds,
    mut take: impl FnMut(&Row),
) -> Result<()> {
    let sql = format!(
        "SELECT e.sequence, e.time_ms, e.kind, e.call, e.attempt, e.generation, e.tokens, e.payload, b.data, e.digest, e.hash
         FROM events e LEFT JOIN blobs b ON e.payload IS NULL AND b.job = e.job AND b.digest = e.digest
         WHERE e.job = ?1 AND e.sequence > ?2 {} ORDER BY e.sequence LIMIT ?3",
        read::condition(kinds)
    );
    let mut after: Sequence = 0;
    loop {
        let rows: Vec<Row> = connection
            .prepare_cached(&sql)
            .and_then(|mut query| query.query_map(params![job.to_string(), after, BATCH], row)?.collect())
            .map_err(failed("reading the log"))?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.sequence;
        rows.iter().for_each(&mut take);
    }
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

/// Reads the logs of a data folder that a server may be using.
pub(super) struct SqliteAuditReader {
    connection: Connection,
}

impl SqliteAuditReader {
    pub(super) fn open(data: &Path) -> Result<Self> {
        let path = data.join(DATABASE_FILE);
        if !path.exists() {
            return Err(StoreError::Audit(format!("there is no database of caisson in {}", data.display())));
        }
        let connection = super::open_for_reading(&path)?;
        let version = super::version(&connection)?;
        if version != VERSION {
            return Err(StoreError::Audit(format!(
                "the database in {} has version {version}, and this caisson checks version {VERSION}; check it with the caisson that \
                 wrote it",
                data.display()
            )));
        }
        Ok(Self { connection })
    }
}

impl AuditReader for SqliteAuditReader {
    fn jobs(&self) -> Result<Vec<JobId>> {
        let ids: Vec<String> = self
            .connection
            .prepare("SELECT id FROM jobs ORDER BY id")
            .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
            .map_err(failed("listing jobs"))?;
        ids.iter().map(|id| parse_id(id)).collect()
    }

    fn has(&self, job: JobId) -> Result<bool> {
        self.connection
            .query_row("SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ?1)", [job.to_string()], |row| {
                row.get(0)
            })
            .map_err(failed("reading a job"))
    }

    fn tombstone(&self, job: JobId) -> Result<Option<Tombstone>> {
        tombstones::of_job(&self.connection, job)
    }

    fn tombstones(&self) -> Result<Vec<Tombstone>> {
        tombstones::all(&self.connection)
    }

    fn stored_files(&self, job: JobId) -> Result<Option<Vec<StoredFile>>> {
        if !read::view(&self.connection, job)?.state.is_over() {
            return Ok(None);
        }
        let kinds = Kinds::Only(&[EventKind::ArtifactStored, EventKind::AuditFileStored]);
        let EventPage { events, .. } = read::events(&self.connection, job, kinds, (0, usize::MAX))?;
        let stored = events.into_iter().filter_map(|event| match event.body {
            EventBody::ArtifactStored(Artifact { name, bytes, sha256, .. }) => {
                Some(StoredFile { name, bytes, sha256 })
            }
            EventBody::AuditFileStored(stored) => Some(stored),
            _ => None,
        });
        Ok(Some(stored.collect()))
    }

    fn user_actions(&self, job: JobId) -> Result<Vec<Event>> {
        let mut user_actions = Vec::new();
        let mut after = 0;
        loop {
            let EventPage { events, is_last } =
                read::events(&self.connection, job, WITHOUT_OUTPUT, (after, PAGE))?;
            after = events.last().map_or(after, |last| last.sequence);
            user_actions.extend(events.into_iter().filter(|event| event.actor.is_some()));
            if is_last {
                return Ok(user_actions);
            }
        }
    }

    fn heads(&self, job: JobId) -> Result<Vec<SignedHead>> {
        heads::of_job(&self.connection, job)
    }

    fn check(
        &self,
        job: JobId,
        kept: &[SignedHead],
        trusted: &TrustedKeys,
        network: NetworkFile,
    ) -> Result<JobAudit> {
        check(&self.connection, job, kept, trusted, Some(network))
    }
}
