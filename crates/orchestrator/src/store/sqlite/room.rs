//! Disk space of the database. Deletions leave free pages; these are returned to the file system bit by bit, or all
//! at once if a database of an earlier version has many.

use rusqlite::Connection;

use super::failed;
use crate::error::OrchestratorError;

type Result<T> = std::result::Result<T, OrchestratorError>;

/// The value of `PRAGMA auto_vacuum` for a database that returns pages on request.
const INCREMENTAL: i64 = 2;
/// Pages returned per call: a few megabytes, so that other writers do not wait long.
const PAGES_AT_ONCE: i64 = 1024;
/// This many free pages are kept, because they are soon used again.
const PAGES_KEPT: i64 = 4096;
/// A database of an earlier version is rewritten if at least this much of it is free, and more than half.
const MUCH_BYTES: i64 = 64 << 20;

/// Configures a new database to return pages on request. Has no effect on an existing one.
pub(super) fn prepare(connection: &Connection) -> Result<()> {
    connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL").map_err(failed("opening the database"))
}

/// Rewrites a database of an earlier version if much of it is free; from then on it returns pages on request. This
/// takes a while, so it runs before the server accepts requests. If the disk has no room for the copy, the server
/// starts anyway.
pub(super) fn give_back_much(connection: &Connection) {
    let is_worth_it = || -> Result<bool> {
        let (pages, free) = (number(connection, "page_count")?, number(connection, "freelist_count")?);
        let bytes = free.saturating_mul(number(connection, "page_size")?);
        let is_old = number(connection, "auto_vacuum")? != INCREMENTAL;
        Ok(is_old && bytes >= MUCH_BYTES && free > pages / 2)
    };
    let done = is_worth_it().and_then(|is_worth_it| {
        if !is_worth_it {
            return Ok(());
        }
        tracing::info!("most of the database is free: writing it anew, which takes a while");
        connection
            .execute_batch("PRAGMA auto_vacuum = INCREMENTAL; VACUUM")
            .map_err(failed("writing the database anew"))
    });
    if let Err(error) = done {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "free room in the database is not given back"
        );
    }
}

/// Returns some free pages to the file system; `true` if there are more.
pub(super) fn give_back_some(connection: &Connection) -> Result<bool> {
    let free = number(connection, "freelist_count")?;
    if free <= PAGES_KEPT || number(connection, "auto_vacuum")? != INCREMENTAL {
        return Ok(false);
    }
    // The pragma frees one page per result row, so all rows must be read.
    connection
        .prepare(&format!("PRAGMA incremental_vacuum({PAGES_AT_ONCE})"))
        .and_then(|mut vacuum| {
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
            Ok(())
        })
        .map_err(failed("giving free room back"))?;
    Ok(number(connection, "freelist_count")? > PAGES_KEPT)
}

/// Size of the pages in use.
pub(super) fn used_bytes(connection: &Connection) -> Result<u64> {
    let pages = number(connection, "page_count")? - number(connection, "freelist_count")?;
    Ok(u64::try_from(pages.saturating_mul(number(connection, "page_size")?)).unwrap_or(0))
}

fn number(connection: &Connection, pragma: &str) -> Result<i64> {
    connection
        .query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))
        .map_err(failed("measuring the database"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::SqliteStore;
    use super::*;
    use crate::store::Store as _;

    /// Fills a database and then frees almost all of it.
    fn waste(path: &Path, mebibytes: usize) {
        let connection = Connection::open(path).unwrap();
        let filler = vec![7_u8; 1 << 20];
        connection.execute_batch("CREATE TABLE filler (data BLOB); BEGIN").unwrap();
        for _ in 0..mebibytes {
            connection.execute("INSERT INTO filler VALUES (?1)", [&filler]).unwrap();
        }
        connection.execute_batch("COMMIT; DROP TABLE filler; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    }

    fn size(path: &Path) -> u64 {
        fs::metadata(path).unwrap().len()
    }

    #[tokio::test]
    async fn room_that_was_freed_is_given_back_bit_by_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        drop(SqliteStore::open(&path).unwrap());
        waste(&path, 40);
        assert!(size(&path) > 40 << 20);
        let store = SqliteStore::open(&path).unwrap();
        assert!(store.used_bytes().await.unwrap() < 4 << 20);
        let mut pieces = 0;
        while store.shrink().await.unwrap() {
            pieces += 1;
        }
        assert!(pieces > 2, "all at once");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        assert!(size(&path) < 20 << 20, "{}", size(&path));
    }

    #[tokio::test]
    async fn a_database_of_an_earlier_version_is_written_anew_where_most_of_it_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("caisson.db");
        drop(SqliteStore::open(&path).unwrap());
        Connection::open(&path).unwrap().execute_batch("PRAGMA auto_vacuum = NONE; VACUUM").unwrap();
        waste(&path, 70);
        assert!(size(&path) > 70 << 20);
        drop(SqliteStore::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        assert_eq!(number(&connection, "auto_vacuum").unwrap(), INCREMENTAL);
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        assert!(size(&path) < 4 << 20, "{}", size(&path));
    }
}
