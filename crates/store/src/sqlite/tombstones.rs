//! The signed statements about deleted jobs in the database. They remain when everything else of a job is deleted.

use job::JobId;
use rusqlite::{Connection, OptionalExtension, params};

use super::failed;
use super::read::{decode, encode};
use crate::error::StoreError;
use crate::evidence::tombstone::Tombstone;

type Result<T> = std::result::Result<T, StoreError>;

pub(super) fn store(connection: &Connection, tombstone: &Tombstone) -> Result<()> {
    let statement = encode(tombstone)?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO tombstones (job, time_ms, statement) VALUES (?1, ?2, ?3)")
        .and_then(|mut insert| {
            insert.execute(params![tombstone.deleted_job.to_string(), tombstone.time_ms, statement])
        })
        .map(drop)
        .map_err(failed("storing that a job was deleted"))
}

pub(super) fn of_job(connection: &Connection, job: JobId) -> Result<Option<Tombstone>> {
    let text: Option<String> = connection
        .prepare_cached("SELECT statement FROM tombstones WHERE job = ?1")
        .and_then(|mut query| query.query_row([job.to_string()], |row| row.get(0)).optional())
        .map_err(failed("reading that a job was deleted"))?;
    text.map(|text| decode("a deletion", &text)).transpose()
}

/// All deletion statements, oldest first.
pub(super) fn all(connection: &Connection) -> Result<Vec<Tombstone>> {
    let texts: Vec<String> = connection
        .prepare("SELECT statement FROM tombstones ORDER BY time_ms, job")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("reading which jobs were deleted"))?;
    texts.iter().map(|text| decode("a deletion", text)).collect()
}
