//! The SQLite database of a data folder.

use std::path::Path;
use std::sync::Arc;

use job::JobView;

use super::audit::SqliteAuditReader;
use super::{DATABASE_FILE, SqliteStore, copy, heads, keys};
use crate::Store;
use crate::database::{AuditReader, LocalDatabase};
use crate::error::StoreError;

/// SQLite, in the file [`DATABASE_FILE`] of the data folder.
#[derive(Debug, Clone, Copy)]
pub struct Sqlite;

impl LocalDatabase for Sqlite {
    fn open(&self, data: &Path) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(SqliteStore::open(&data.join(DATABASE_FILE))?))
    }

    fn audit_reader(&self, data: &Path) -> Result<Box<dyn AuditReader>, StoreError> {
        Ok(Box::new(SqliteAuditReader::open(data)?))
    }

    fn has_keys(&self, data: &Path) -> bool {
        keys::has_keys(&data.join(DATABASE_FILE))
    }

    fn signing_keys(&self, data: &Path) -> Result<Vec<String>, StoreError> {
        heads::keys_of_heads(&data.join(DATABASE_FILE))
    }

    fn copy(&self, data: &Path, target: &Path) -> Result<(), StoreError> {
        copy::copy_database(&data.join(DATABASE_FILE), target)
    }

    fn check_copy(&self, copy: &Path) -> Result<(), StoreError> {
        copy::check_copy(copy)
    }

    fn jobs_in_copy(&self, copy: &Path) -> Result<Vec<JobView>, StoreError> {
        copy::jobs_in_copy(copy)
    }
}
