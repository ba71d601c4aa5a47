//! Waiting for the operator to act: a database that can be written, free disk space, a running container engine. A
//! waiting job stalls and keeps its sandbox for as long as it takes; `/readyz` and the job's view say what it waits
//! for.

use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::OrchestratorError;

/// The delay before the first retry; each further retry adds the same amount.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest delay.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What a job waits for now, and how long it has waited in total.
#[derive(Default)]
pub(crate) struct Waiting {
    now: watch::Sender<Now>,
}

#[derive(Default)]
struct Now {
    /// Number of the job's tasks that wait.
    tasks: usize,
    since: Option<Instant>,
    cause: Option<Arc<OrchestratorError>>,
    before: Duration,
}

impl Waiting {
    /// For a job that has waited before this server took it over.
    pub(crate) fn after(before: Duration) -> Self {
        Self { now: watch::Sender::new(Now { before, ..Now::default() }) }
    }

    /// For an operation that is retried until it succeeds.
    pub(crate) fn tries(&self) -> Retries<'_> {
        Retries { waiting: self, count: 0 }
    }

    /// For a condition that ends without a retry; the job waits until the returned guard is dropped.
    pub(crate) fn wait_for(&self, error: &OrchestratorError) -> WaitGuard<'_> {
        self.enter(error.passing().map(Arc::new));
        WaitGuard { waiting: self }
    }

    fn enter(&self, cause: Option<Arc<OrchestratorError>>) {
        self.now.send_modify(|now| {
            now.tasks += 1;
            now.since.get_or_insert_with(Instant::now);
            now.cause = cause.or_else(|| now.cause.take());
        });
    }

    fn leave(&self) {
        self.now.send_modify(|now| {
            now.tasks = now.tasks.saturating_sub(1);
            if now.tasks == 0 {
                now.before += now.since.take().map(|since| since.elapsed()).unwrap_or_default();
                now.cause = None;
            }
        });
    }

    /// The error that the job waits for; `None` if it does not wait.
    pub(crate) fn cause(&self) -> Option<OrchestratorError> {
        self.now.borrow().cause.as_ref().and_then(|cause| cause.passing())
    }

    /// Waits until the job waits for something that prevents writes to the log, and returns that error.
    pub(crate) async fn begun(&self) -> OrchestratorError {
        let is_about_the_log = |cause: &OrchestratorError| {
            !cause.is_backend_unavailable() && !matches!(cause, OrchestratorError::HostDiskFull { .. })
        };
        self.wait_started_for(is_about_the_log).await
    }

    /// Waits until the job waits for the backend, and returns that error.
    pub(crate) async fn backend_wait_started(&self) -> OrchestratorError {
        self.wait_started_for(OrchestratorError::is_backend_unavailable).await
    }

    async fn wait_started_for(&self, is_it: impl Fn(&OrchestratorError) -> bool) -> OrchestratorError {
        let mut now = self.now.subscribe();
        let cause = match now.wait_for(|now| now.cause.as_deref().is_some_and(&is_it)).await {
            Ok(now) => now.cause.as_ref().and_then(|cause| cause.passing()),
            Err(_) => None,
        };
        cause.unwrap_or(OrchestratorError::Store(StoreError::Busy))
    }

    /// How long the job has waited in total.
    pub(crate) fn total(&self) -> Duration {
        let now = self.now.borrow();
        now.before + now.since.map(|since| since.elapsed()).unwrap_or_default()
    }
}

/// Retries of one operation. From the first failure until this is dropped, the job waits.
pub(crate) struct Retries<'a> {
    waiting: &'a Waiting,
    count: u32,
}

impl Retries<'_> {
    /// Number of failures.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Records a failure and sleeps until the next try.
    pub(crate) async fn pause(&mut self, error: &OrchestratorError) {
        self.begin(error);
        tokio::time::sleep(FIRST_PAUSE.saturating_mul(self.count).min(LONGEST_PAUSE)).await;
    }

    /// Records a failure when the caller decides itself when to try again.
    pub(crate) fn begin(&mut self, error: &OrchestratorError) {
        let cause = error.passing().map(Arc::new);
        if self.count == 0 {
            self.waiting.enter(cause);
        } else {
            self.waiting.now.send_modify(|now| now.cause = cause.or_else(|| now.cause.take()));
        }
        self.count = self.count.saturating_add(1);
    }
}

impl Drop for Retries<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.waiting.leave();
        }
    }
}

/// The job waits until this is dropped.
pub(crate) struct WaitGuard<'a> {
    waiting: &'a Waiting,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.waiting.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_without_retries_counts_towards_the_total() {
        let waiting = Waiting::default();
        let waits = waiting.wait_for(&OrchestratorError::HostDiskFull { free_mib: 1, needed_mib: 2 });
        assert!(matches!(waiting.cause(), Some(OrchestratorError::HostDiskFull { free_mib: 1, .. })));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(waiting.total(), Duration::from_secs(60));
        drop(waits);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(waiting.cause().is_none());
        assert_eq!(waiting.total(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_under_an_earlier_server_count() {
        let waiting = Waiting::after(Duration::from_secs(30));
        assert!(waiting.cause().is_none());
        let waits = waiting.wait_for(&StoreError::DiskFull.into());
        tokio::time::advance(Duration::from_secs(60)).await;
        drop(waits);
        assert_eq!(waiting.total(), Duration::from_secs(90));
    }

    #[tokio::test(start_paused = true)]
    async fn job_waits_until_its_last_task_continues_and_time_counts_once() {
        let waiting = Waiting::default();
        let (mut one, mut other) = (waiting.tries(), waiting.tries());
        assert!(waiting.cause().is_none());
        let full = OrchestratorError::from(StoreError::DiskFull);
        tokio::join!(one.pause(&full), other.pause(&full));
        drop(one);
        assert!(matches!(waiting.cause(), Some(OrchestratorError::Store(StoreError::DiskFull))));
        assert!(matches!(waiting.begun().await, OrchestratorError::Store(StoreError::DiskFull)));
        tokio::time::advance(Duration::from_secs(60)).await;
        drop(other);
        assert!(waiting.cause().is_none());
        assert_eq!(waiting.total(), FIRST_PAUSE + Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_backend_does_not_block_the_log() {
        let waiting = Waiting::default();
        let away = sandbox::SandboxError::Unavailable { what: "gone".into(), remedy: "start it".into() };
        let mut tries = waiting.tries();
        tries.begin(&away.into());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(waiting.cause().unwrap().is_backend_unavailable());
        assert!(waiting.backend_wait_started().await.is_backend_unavailable());
        let begun = tokio::time::timeout(Duration::from_secs(60), waiting.begun()).await;
        assert!(begun.is_err(), "{begun:?}");
        drop(tries);
        assert_eq!(waiting.total(), Duration::from_secs(120));
    }
}
