//! Reports about the host that the binary produces and the server only relays, as JSON. Each report is cached
//! briefly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::Mutex;

/// How long a report is cached that takes effort.
const CACHE_TTL: Duration = Duration::from_secs(20);
/// The time limit for producing a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Produces a report. The error is a message for people.
pub type ReportFn = Arc<dyn Fn() -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;

/// The reports about the host.
#[derive(Clone)]
pub struct HostReports {
    /// The output of `caisson doctor --json`.
    pub(crate) doctor: CachedReport,
    /// The server itself: its version, data folder and configuration.
    pub(crate) server: CachedReport,
    /// The output of `caisson image list --json`.
    pub(crate) images: CachedReport,
    /// The demo job, whose model is a recording.
    pub(crate) demo: CachedReport,
}

impl HostReports {
    #[must_use]
    pub fn new(doctor: ReportFn, server: ReportFn, images: ReportFn, demo: ReportFn) -> Self {
        Self {
            doctor: CachedReport::new(doctor, CACHE_TTL),
            // Commands show these after something has changed.
            server: CachedReport::new(server, Duration::ZERO),
            images: CachedReport::new(images, Duration::ZERO),
            demo: CachedReport::new(demo, CACHE_TTL),
        }
    }
}

/// A cached report. Concurrent callers wait for the same result.
#[derive(Clone)]
pub(crate) struct CachedReport {
    make: ReportFn,
    ttl: Duration,
    cached: Arc<Mutex<Option<(Instant, Value)>>>,
}

impl CachedReport {
    fn new(make: ReportFn, ttl: Duration) -> Self {
        Self { make, ttl, cached: Arc::default() }
    }

    pub(crate) async fn get(&self) -> Result<Value, String> {
        let mut cached = self.cached.lock().await;
        if let Some((made, value)) = &*cached
            && made.elapsed() < self.ttl
        {
            return Ok(value.clone());
        }
        let value = tokio::time::timeout(REPORT_TIMEOUT, (self.make)())
            .await
            .map_err(|_| format!("looking at the host took longer than {} s", REPORT_TIMEOUT.as_secs()))??;
        *cached = Some((Instant::now(), value.clone()));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn counted(count: Arc<AtomicU32>, ttl: Duration) -> CachedReport {
        let make: ReportFn = Arc::new(move || {
            let turn = count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move { if turn == 0 { Err("not now".to_owned()) } else { Ok(Value::from(turn)) } })
        });
        CachedReport::new(make, ttl)
    }

    #[tokio::test]
    async fn report_is_cached_and_failure_is_not() {
        let count = Arc::new(AtomicU32::new(0));
        let report = counted(Arc::clone(&count), CACHE_TTL);
        assert_eq!(report.get().await, Err("not now".to_owned()));
        assert_eq!(report.get().await, Ok(Value::from(1)));
        assert_eq!(report.get().await, Ok(Value::from(1)));
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn report_without_a_cache_is_always_new() {
        let report = counted(Arc::new(AtomicU32::new(1)), Duration::ZERO);
        assert_eq!(report.get().await, Ok(Value::from(1)));
        assert_eq!(report.get().await, Ok(Value::from(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn report_times_out() {
        let report = CachedReport::new(Arc::new(|| Box::pin(std::future::pending())), CACHE_TTL);
        assert!(report.get().await.unwrap_err().contains("30 s"));
    }
}
