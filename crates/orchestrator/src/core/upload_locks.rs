//! Locks that keep the uploads of a draft within its disk.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::PoisonError;

use job::JobId;
use tokio::sync::{Mutex, MutexGuard};

use crate::core::upload_limits::Used;

const UPLOAD_LOCKS: usize = 64;

/// Maximum number of drafts whose usage is cached; beyond that the cache is cleared and drafts are counted again.
const MAX_CACHED_DRAFTS: usize = 1024;

/// A lock for each draft, chosen by hash, so that drafts may share one; and the cached usage of drafts.
pub(crate) struct UploadLocks {
    locks: Vec<Mutex<()>>,
    /// An entry is removed while its draft changes, and put back on success, so that the draft is counted again after
    /// a failure.
    usage_cache: std::sync::Mutex<HashMap<JobId, Used>>,
}

impl Default for UploadLocks {
    fn default() -> Self {
        let locks = (0..UPLOAD_LOCKS).map(|_| Mutex::new(())).collect();
        Self { locks, usage_cache: std::sync::Mutex::default() }
    }
}

impl UploadLocks {
    pub(crate) async fn of(&self, id: JobId) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % UPLOAD_LOCKS as u64).unwrap_or(0);
        self.locks[index].lock().await
    }

    pub(crate) fn usage_cache(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Used>> {
        self.usage_cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, id: JobId, used: Used) {
        let mut usage_cache = self.usage_cache();
        if usage_cache.len() >= MAX_CACHED_DRAFTS {
            usage_cache.clear();
        }
        usage_cache.insert(id, used);
    }
}
