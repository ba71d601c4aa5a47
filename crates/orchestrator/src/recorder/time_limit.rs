//! The time limit of a job according to its log, for code that must not wait for the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use job::JobView;

/// Shared by the recorder, which updates it, and the driver, which obeys it.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimeLimit(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    changed_to: Option<Duration>,
    is_used_up: bool,
}

impl TimeLimit {
    pub(crate) fn of(view: &JobView) -> Self {
        let limit = Self::default();
        limit.update(view);
        limit
    }

    pub(crate) fn update(&self, view: &JobView) {
        self.lock().changed_to = view.changed_time_limit();
    }

    /// The limit after its last change; `None` if the spec's applies.
    pub(crate) fn changed_to(&self) -> Option<Duration> {
        self.lock().changed_to
    }

    /// The driver has found the time to be over and ends the job; from now on the limit cannot be changed.
    pub(crate) fn set_used_up(&self) {
        self.lock().is_used_up = true;
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.lock().is_used_up
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
