//! The database that servers use.

use store::Sqlite;

/// The database in every data folder.
pub(crate) const DATABASE: Sqlite = Sqlite;
