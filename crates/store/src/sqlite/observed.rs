//! Passes on what the store has made durable.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use job::Event;

use crate::observer::StoreObserver;

/// The observer of a store, once there is one.
#[derive(Default)]
pub(super) struct Observed {
    observer: OnceLock<Arc<dyn StoreObserver>>,
}

impl Observed {
    /// Sets the observer, unless there is one.
    pub(super) fn set(&self, observer: Arc<dyn StoreObserver>) {
        let _ = self.observer.set(observer);
    }

    pub(super) fn job_created(&self, events: usize) {
        if let Some(observer) = self.observer.get() {
            observer.job_created(events);
        }
    }

    pub(super) fn events_appended(&self, events: &[Event]) {
        if let Some(observer) = self.observer.get() {
            observer.events_appended(events);
        }
    }

    pub(super) fn committed(&self, took: Duration) {
        if let Some(observer) = self.observer.get() {
            observer.committed(took);
        }
    }
}
