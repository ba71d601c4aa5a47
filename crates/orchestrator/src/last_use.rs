//! When something was last used, and whether it is in use now.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use crate::clock::awake_ms;

/// When something was last used. Clones share it.
#[derive(Clone)]
pub(crate) struct LastUse {
    state: Arc<UseState>,
}

struct UseState {
    /// By the clock that only counts.
    last_ms: AtomicI64,
    users: AtomicUsize,
}

impl LastUse {
    /// Used just now.
    pub(crate) fn new() -> Self {
        Self { state: Arc::new(UseState { last_ms: AtomicI64::new(awake_ms()), users: AtomicUsize::new(0) }) }
    }

    /// It is used right now.
    pub(crate) fn now(&self) {
        self.state.last_ms.store(awake_ms(), Ordering::Relaxed);
    }

    /// How many milliseconds nobody has used it; none, while somebody does. The time that the machine sleeps does not count.
    pub(crate) fn idle_ms(&self) -> i64 {
        if self.state.users.load(Ordering::Relaxed) > 0 {
            self.now();
        }
        awake_ms().saturating_sub(self.state.last_ms.load(Ordering::Relaxed))
    }

    /// It is in use until the answer is dropped.
    pub(crate) fn begin(&self) -> InUse {
        self.now();
        self.state.users.fetch_add(1, Ordering::Relaxed);
        InUse { last_use: self.clone() }
    }
}

/// Somebody uses it.
pub(crate) struct InUse {
    last_use: LastUse,
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.last_use.state.users.fetch_sub(1, Ordering::Relaxed);
        self.last_use.now();
    }
}
