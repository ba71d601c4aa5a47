//! Calls for one sandbox come one after another, also where one of them was dropped.

use std::io;
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::SandboxError;
use crate::spec::SandboxId;

/// Sandboxes share locks only by chance.
const LOCKS: usize = 256;

/// The locks of all sandboxes of a backend. Clones are the same locks.
#[derive(Clone)]
pub(crate) struct Locks(Arc<[Arc<Mutex<()>>]>);

/// One call's turn at a sandbox.
pub(crate) struct Turn {
    held: OwnedMutexGuard<()>,
}

impl Locks {
    pub(crate) fn new() -> Self {
        Self((0..LOCKS).map(|_| Arc::default()).collect())
    }

    /// Waits until no other call is at work on the sandbox.
    pub(crate) async fn turn(&self, id: SandboxId) -> Turn {
        let index = usize::try_from(id.as_u128() % LOCKS as u128).unwrap_or(0);
        Turn { held: Arc::clone(&self.0[index]).lock_owned().await }
    }
}

impl Turn {
    /// Does work that cannot be stopped in the middle: where nobody waits for it any more it goes on, and the next call
    /// for the sandbox waits for it.
    pub(crate) async fn see_through(
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
