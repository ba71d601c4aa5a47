//! Copies the database while a server writes to it, and reads such copies.

use std::path::Path;

use job::JobView;

use super::{failed, open_for_reading};
use crate::error::OrchestratorError;

/// Copies a consistent snapshot of a database without blocking writers. `target` must not exist.
pub(crate) fn copy_database(source: &Path, target: &Path) -> Result<(), OrchestratorError> {
    let target = target.to_string_lossy();
    open_for_reading(source)?
        .execute("VACUUM INTO ?1", [target.as_ref()])
        .map(drop)
        .map_err(failed("copying the database"))
}

/// The jobs in a copy, without their steps.
pub(crate) fn jobs_in_copy(copy: &Path) -> Result<Vec<JobView>, OrchestratorError> {
    let connection = open_for_reading(copy)?;
    let headers: Vec<String> = connection
        .prepare("SELECT header FROM jobs ORDER BY id")
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("listing jobs"))?;
    headers
        .iter()
        .map(|header| {
            serde_json::from_str(header).map_err(|error| OrchestratorError::Store {
                what: "decoding a job".into(),
                source: error.into(),
            })
        })
        .collect()
}

/// Checks that a copy is an intact database.
pub(crate) fn check_copy(copy: &Path) -> Result<(), OrchestratorError> {
    let found: String = open_for_reading(copy)?
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(failed("checking the database"))?;
    if found == "ok" {
        return Ok(());
    }
    Err(OrchestratorError::Backup(format!("the database in it is damaged: {found}")))
}
