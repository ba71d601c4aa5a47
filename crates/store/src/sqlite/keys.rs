//! API keys, the usage of a key, and the roles of OIDC users.

use std::path::Path;

use job::{JobId, Key, KeyId, KeyUse, Role};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::failed;
use super::writer::Context;
use crate::error::StoreError;
use crate::sqlite::read;

type Result<T> = std::result::Result<T, StoreError>;

const MINUTE_MS: i64 = 60_000;
/// Spending older than this no longer matters.
const SPENDING_KEPT_MINUTES: i64 = 2 * 24 * 60;

pub(super) fn put(context: &mut Context<'_>, digest: [u8; 32], key: &Key) -> Result<()> {
    context
        .connection
        .execute(
            "INSERT INTO keys (id, digest, key) VALUES (?1, ?2, ?3)",
            params![key.id.as_str(), digest, read::encode(key)?],
        )
        .map(drop)
        .map_err(failed("storing a key"))
}

pub(super) fn remove(context: &mut Context<'_>, id: &KeyId) -> Result<()> {
    context
        .connection
        .execute("DELETE FROM keys WHERE id = ?1", [id.as_str()])
        .map(drop)
        .map_err(failed("removing a key"))
}

pub(super) fn all(connection: &Connection) -> Result<Vec<([u8; 32], Key)>> {
    let rows: Vec<([u8; 32], String)> = connection
        .prepare("SELECT digest, key FROM keys ORDER BY id")
        .and_then(|mut query| query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .map_err(failed("reading the keys"))?;
    rows.into_iter().map(|(digest, key)| Ok((digest, read::decode("a key", &key)?))).collect()
}

/// Whether a database has any keys; `false` if there is no database or it predates keys.
pub(super) fn has_keys(database: &Path) -> bool {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(connection) = Connection::open_with_flags(database, flags) else { return false };
    connection.query_row("SELECT EXISTS (SELECT 1 FROM keys)", [], |row| row.get(0)).unwrap_or(false)
}

pub(super) fn submitter(connection: &Connection, job: JobId) -> Result<Option<KeyId>> {
    connection
        .prepare_cached("SELECT submitter FROM jobs WHERE id = ?1")
        .and_then(|mut query| query.query_row([job.to_string()], |row| row.get(0)).optional())
        .map_err(failed("reading a job"))?
        .map(|key: Option<String>| key.map(KeyId))
        .ok_or(StoreError::NoJob(job))
}

/// Adds to the spending of a key. It is kept when the job is deleted.
pub(super) fn spend(context: &Context<'_>, id: &KeyId, time_ms: i64, nanodollars: u64) -> Result<()> {
    let minute = time_ms / MINUTE_MS;
    let amount = i64::try_from(nanodollars).unwrap_or(i64::MAX);
    let added = context.connection.prepare_cached(
        "INSERT INTO spending (submitter, minute, nanodollars) VALUES (?1, ?2, ?3)
         ON CONFLICT (submitter, minute) DO UPDATE SET nanodollars = nanodollars + excluded.nanodollars",
    );
    added
        .and_then(|mut insert| insert.execute(params![id.as_str(), minute, amount]))
        .and_then(|_| {
            let old = "DELETE FROM spending WHERE submitter = ?1 AND minute < ?2";
            let mut delete = context.connection.prepare_cached(old)?;
            delete.execute(params![id.as_str(), minute - SPENDING_KEPT_MINUTES])
        })
        .map(drop)
        .map_err(failed("adding to what a key has spent"))
}

pub(super) fn put_oidc_user(context: &mut Context<'_>, id: &KeyId, role: Role) -> Result<()> {
    context
        .connection
        .execute("INSERT OR REPLACE INTO oidc_users (id, role) VALUES (?1, ?2)", [id.as_str(), role.name()])
        .map(drop)
        .map_err(failed("storing a person"))
}

pub(super) fn people(connection: &Connection) -> Result<Vec<(KeyId, Role)>> {
    let rows: Vec<(String, String)> = connection
        .prepare("SELECT id, role FROM oidc_users")
        .and_then(|mut query| query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .map_err(failed("reading the people"))?;
    Ok(rows.into_iter().filter_map(|(id, role)| Some((KeyId(id), role.parse().ok()?))).collect())
}

pub(super) fn usage(connection: &Connection, id: &KeyId, since_ms: i64) -> Result<KeyUse> {
    let counted = connection
        .prepare_cached(
            "SELECT COUNT(*) FILTER (WHERE state = 'queued' AND owner IS NULL),
                    COUNT(*) FILTER (WHERE state <> 'queued' OR owner IS NOT NULL),
                    COUNT(*) FILTER (WHERE kind = 'sandbox')
             FROM jobs WHERE submitter = ?1
               AND state IN ('queued', 'starting', 'running', 'paused', 'collecting')",
        )
        .and_then(|mut query| {
            query.query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        })
        .map_err(failed("counting the jobs of a key"))?;
    let nanodollars: i64 = connection
        .prepare_cached(
            "SELECT COALESCE(SUM(nanodollars), 0) FROM spending WHERE submitter = ?1 AND minute >= ?2",
        )
        .and_then(|mut query| query.query_row(params![id.as_str(), since_ms / MINUTE_MS], |row| row.get(0)))
        .map_err(failed("adding up what a key has spent"))?;
    let (queued, running, sandboxes) = counted;
    Ok(KeyUse { queued, running, sandboxes, nanodollars: u64::try_from(nanodollars).unwrap_or_default() })
}
