//! Tracks when something was last used, and whether it is in use now.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use crate::clock::monotonic_ms;

/// Clones share the state.
#[derive(Clone)]
pub(crate) struct LastUse {
    state: Arc<UseState>,
}

struct UseState {
    /// In milliseconds of the monotonic clock.
    last_ms: AtomicI64,
    users: AtomicUsize,
}

impl LastUse {
    /// Counts as used now.
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::new(UseState { last_ms: AtomicI64::new(monotonic_ms()), users: AtomicUsize::new(0) }),
        }
    }

    /// Marks it as used now.
    pub(crate) fn now(&self) {
        self.state.last_ms.store(monotonic_ms(), Ordering::Relaxed);
    }

    /// Milliseconds since the last use; 0 while it is in use. The time that the machine is suspended does not count.
    pub(crate) fn idle_ms(&self) -> i64 {
        if self.is_in_use() {
            self.now();
        }
        monotonic_ms().saturating_sub(self.state.last_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.state.users.load(Ordering::Relaxed) > 0
    }

    /// Marks it as in use until the returned guard is dropped.
    pub(crate) fn begin(&self) -> InUse {
        self.now();
        self.state.users.fetch_add(1, Ordering::Relaxed);
        InUse { last_use: self.clone() }
    }
}

pub(crate) struct InUse {
    last_use: LastUse,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.last_use.state.users.fetch_sub(1, Ordering::Relaxed);
        self.last_use.now();
    }
}
