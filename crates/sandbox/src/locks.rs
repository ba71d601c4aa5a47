//! Serializes calls per sandbox, including calls whose future was dropped.

use std::io;
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::SandboxError;
use crate::spec::SandboxId;

/// Sandboxes share a lock only if their ids hash to the same one.
const LOCKS: usize = 256;

/// The locks of all sandboxes of a backend. Clones share the same locks.
#[derive(Clone)]
pub(crate) struct Locks(Arc<[Arc<Mutex<()>>]>);

/// The lock on a sandbox, held for one call.
pub(crate) struct Turn {
    held: OwnedMutexGuard<()>,
}

impl Locks {
    pub(crate) fn new() -> Self {
        Self((0..LOCKS).map(|_| Arc::default()).collect())
    }

    /// Waits until no other call works on the sandbox.
    pub(crate) async fn turn(&self, id: SandboxId) -> Turn {
        let index = usize::try_from(id.as_u128() % LOCKS as u128).unwrap_or(0);
        Turn { held: Arc::clone(&self.0[index]).lock_owned().await }
    }
}

impl Turn {
    /// Runs work that must not be interrupted. If the caller is dropped, the work goes on, and the next call for the
    /// sandbox waits for it.
    pub(crate) async fn run_to_completion(
        self,
        work: impl Future<Output = Result<(), SandboxError>> + Send + 'static,
    ) -> Result<(), SandboxError> {
        let whole = async move {
            let result = work.await;
            drop(self.held);
            result
        };
        tokio::spawn(whole).await.unwrap_or_else(|error| {
            Err(SandboxError::Io { doing: "working on a sandbox".into(), source: io::Error::other(error) })
        })
    }
}
