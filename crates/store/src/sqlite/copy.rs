//! Copies the database while a server writes to it, and reads such copies.

use std::path::Path;

use job::JobView;

use super::{failed, open_for_reading};
use crate::error::StoreError;

/// Copies a consistent snapshot of a database without blocking writers. `target` must not exist.
pub(super) fn copy_database(source: &Path, target: &Path) -> Result<(), StoreError> {
    let target = target.to_string_lossy();
    open_for_reading(source)?
        .execute("VACUUM INTO ?1", [target.as_ref()])
        .map(drop)
        .map_err(failed("copying the database"))
}

/// The jobs in a copy, without their steps.
pub(super) fn jobs_in_copy(copy: &Path) -> Result<Vec<JobView>, StoreError> {
    let connection = open_for_reading(copy)?;
    let headers: Vec<String> = connection
        .prepare("SELECT header FROM jobs ORDER BY id")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("listing jobs"))?;
    headers
        .iter()
        .map(|header| {
            serde_json::from_str(header)
                .map_err(|error| StoreError::Failed { what: "decoding a job".into(), source: error.into() })
        })
        .collect()
}

/// Checks that a copy is an intact database.
pub(super) fn check_copy(copy: &Path) -> Result<(), StoreError> {
    let found: String = open_for_reading(copy)?
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(failed("checking the database"))?;
    if found == "ok" {
        return Ok(());
    }
    Err(StoreError::DamagedCopy { found })
}
