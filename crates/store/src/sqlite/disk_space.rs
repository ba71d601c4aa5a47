//! Disk space of the database. Deletions leave free pages; these are returned to the file system bit by bit.

use rusqlite::Connection;

use super::failed;
use crate::error::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

/// Pages returned per call: a few megabytes, so that other writers do not wait long.
const PAGES_PER_CALL: i64 = 1024;
/// This many free pages are kept, because they are soon used again.
const PAGES_KEPT: i64 = 4096;

/// Configures a new database to return pages on request. Has no effect on an existing one.
pub(super) fn prepare(connection: &Connection) -> Result<()> {
    connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL").map_err(failed("opening the database"))
}

/// Returns some free pages to the file system; `true` if there are more.
pub(super) fn release_free_pages(connection: &Connection) -> Result<bool> {
    let free = number(connection, "freelist_count")?;
    if free <= PAGES_KEPT {
        return Ok(false);
    }
    // The pragma frees one page per result row, so all rows must be read.
    connection
        .prepare(&format!("PRAGMA incremental_vacuum({PAGES_PER_CALL})"))
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
    use crate::Store as _;

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
    async fn freed_pages_are_returned_incrementally() {
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
}
