//! Signed statements, in the database, of which jobs retention has dropped the payloads.

use rusqlite::{Connection, OptionalExtension, params};

use super::{failed, has_table};
use crate::audit::{DropStatement, TrustedKeys};
use crate::error::OrchestratorError;
use crate::ids::JobId;

type Result<T> = std::result::Result<T, OrchestratorError>;

const TABLE: &str = "drops";
/// A table more than the first version had; a server that does not know it leaves it alone. Jobs whose payloads such a server has
/// dropped get no statement afterwards: whoever can write to the database could have one made so for any job.
const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS drops (
    job       TEXT PRIMARY KEY,
    time_ms   INTEGER NOT NULL,
    key       TEXT NOT NULL,
    signature TEXT NOT NULL
) WITHOUT ROWID;";

/// Makes the table where it is missing.
pub(super) fn prepare(connection: &Connection) -> Result<()> {
    connection.execute_batch(SCHEMA).map_err(failed("making the table of dropped payloads"))
}

/// Keeps a statement.
pub(super) fn store(connection: &Connection, statement: &DropStatement) -> Result<()> {
    let DropStatement { job, time_ms, key, signature } = statement;
    connection
        .prepare_cached("INSERT OR REPLACE INTO drops (job, time_ms, key, signature) VALUES (?1, ?2, ?3, ?4)")
        .and_then(|mut insert| insert.execute(params![job.to_string(), time_ms, key, signature]))
        .map(drop)
        .map_err(failed("storing that payloads were dropped"))
}

/// Whether a key that counts has signed that the payloads of a job were dropped.
pub(super) fn are_stated(connection: &Connection, job: JobId, trusted: &TrustedKeys) -> Result<bool> {
    if !has_table(connection, TABLE)? {
        return Ok(false);
    }
    let statement = connection
        .prepare_cached("SELECT time_ms, key, signature FROM drops WHERE job = ?1")
        .and_then(|mut query| {
            let statement = |row: &rusqlite::Row<'_>| {
                Ok(DropStatement { job, time_ms: row.get(0)?, key: row.get(1)?, signature: row.get(2)? })
            };
            query.query_row([job.to_string()], statement).optional()
        })
        .map_err(failed("reading that payloads were dropped"))?;
    Ok(statement.is_some_and(|statement| trusted.has(&statement.key) && statement.is_signed()))
}

/// The keys that statements name.
pub(super) fn keys(connection: &Connection) -> Result<Vec<String>> {
    if !has_table(connection, TABLE)? {
        return Ok(Vec::new());
    }
    connection
        .prepare("SELECT DISTINCT key FROM drops")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("reading that payloads were dropped"))
}
