//! File requests. Threads with the agent's permissions do all the work below one directory, through file descriptors.
//! The event loop only passes on requests, data and replies.

pub(crate) mod edit;
pub(crate) mod errors;
pub(crate) mod operations;
pub(crate) mod pack;
pub(crate) mod remove;
pub(crate) mod resolve;
pub(crate) mod stream;
pub(crate) mod unpack;
pub(crate) mod unpack_entry;
pub(crate) mod walk;
pub(crate) mod watch;
pub(crate) mod worker;
pub(crate) mod write;

use std::sync::Arc;

use protocol::{FileOperation, FileResult};

use crate::files::resolve::Workspace;
use crate::files::worker::Workers;

/// The workspace, and the threads that work with the agent's permissions.
pub(crate) struct Files {
    /// The directory that all file requests are confined to.
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) workers: Workers,
}

/// Performs a file operation on the thread for short work.
pub(crate) async fn operate(files: &Files, operation: FileOperation) -> FileResult {
    let workspace = Arc::clone(&files.workspace);
    let result = files.workers.short(move || operations::operate(&workspace, operation)).await;
    result.and_then(|result| result).into()
}
