//! Logins that were ended early, and shared links.

use job::{SessionId, ShareId, SharedLink};
use rusqlite::{Connection, params};

use super::failed;
use super::writer::Context;
use crate::clock::now_ms;
use crate::error::StoreError;
use crate::sqlite::read;

type Result<T> = std::result::Result<T, StoreError>;

/// How long entries are kept after their expiry: a clock that was ahead for a while must not make a login valid
/// again.
const KEPT_MS: i64 = 30 * 86_400_000;

pub(super) fn end(context: &mut Context<'_>, id: &SessionId, until_ms: i64) -> Result<()> {
    let connection = &context.connection;
    connection
        .execute(
            "INSERT OR IGNORE INTO ended_sessions (id, until_ms) VALUES (?1, ?2)",
            params![id.as_str(), until_ms],
        )
        .and_then(|_| {
            connection.execute("DELETE FROM ended_sessions WHERE until_ms < ?1", [now_ms() - KEPT_MS])
        })
        .map(drop)
        .map_err(failed("ending a login"))
}

pub(super) fn ended(connection: &Connection) -> Result<Vec<(SessionId, i64)>> {
    connection
        .prepare("SELECT id, until_ms FROM ended_sessions")
        .and_then(|mut query| {
            query.query_map([], |row| Ok((SessionId::from(row.get::<_, String>(0)?), row.get(1)?)))?.collect()
        })
        .map_err(failed("reading the logins that are over"))
}

pub(super) fn put_share(context: &mut Context<'_>, link: &SharedLink) -> Result<()> {
    let connection = &context.connection;
    connection
        .execute(
            "INSERT INTO shares (id, job, until_ms, link) VALUES (?1, ?2, ?3, ?4)",
            params![link.id.as_str(), link.job.to_string(), link.until_ms, read::encode(link)?],
        )
        .and_then(|_| connection.execute("DELETE FROM shares WHERE until_ms < ?1", [now_ms() - KEPT_MS]))
        .map(drop)
        .map_err(failed("storing a shared link"))
}

pub(super) fn remove_share(context: &mut Context<'_>, id: &ShareId) -> Result<()> {
    context
        .connection
        .execute("DELETE FROM shares WHERE id = ?1", [id.as_str()])
        .map(drop)
        .map_err(failed("revoking a shared link"))
}

pub(super) fn shares(connection: &Connection) -> Result<Vec<SharedLink>> {
    let rows: Vec<String> = connection
        .prepare("SELECT link FROM shares ORDER BY id")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("reading the shared links"))?;
    rows.into_iter().map(|link| read::decode("a shared link", &link)).collect()
}
