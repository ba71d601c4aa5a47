//! The signed statements about dropped payloads in the database.

use job::JobId;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::failed;
use crate::error::StoreError;
use crate::evidence::dropped::{DerivedDigests, DropStatement};
use crate::evidence::trust::TrustedKeys;

type Result<T> = std::result::Result<T, StoreError>;

/// Stores a statement. An existing one is kept: the digests in it cannot be computed a second time.
pub(super) fn store(connection: &Connection, statement: &DropStatement) -> Result<()> {
    let DropStatement { job, time_ms, derived, key, signature } = statement;
    let DerivedDigests { sequence, view, network_bytes, network_sha256 } = derived;
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO drops (job, time_ms, key, signature, sequence, view, network_bytes, network_sha256)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                job.to_string(),
                time_ms,
                key,
                signature,
                sequence,
                view,
                network_bytes,
                network_sha256
            ])
        })
        .map(drop)
        .map_err(failed("storing that payloads were dropped"))
}

/// The statement that a job's payloads were dropped, if a trusted key signed it.
pub(super) fn of_job(
    connection: &Connection,
    job: JobId,
    trusted: &TrustedKeys,
) -> Result<Option<DropStatement>> {
    let statement = |row: &Row<'_>| {
        let derived = DerivedDigests {
            sequence: row.get(3)?,
            view: row.get(4)?,
            network_bytes: row.get(5)?,
            network_sha256: row.get(6)?,
        };
        Ok(DropStatement { job, time_ms: row.get(0)?, derived, key: row.get(1)?, signature: row.get(2)? })
    };
    let found = connection
        .prepare_cached(
            "SELECT time_ms, key, signature, sequence, view, network_bytes, network_sha256 FROM drops WHERE job = ?1",
        )
        .and_then(|mut query| query.query_row([job.to_string()], statement).optional())
        .map_err(failed("reading that payloads were dropped"))?;
    Ok(found.filter(|statement| trusted.has(&statement.key) && statement.is_signed()))
}

/// The keys named in the statements.
pub(super) fn keys(connection: &Connection) -> Result<Vec<String>> {
    connection
        .prepare("SELECT DISTINCT key FROM drops")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("reading that payloads were dropped"))
}
