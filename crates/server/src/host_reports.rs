//! Reports about the host that the binary produces and the server only relays, as JSON. Each report is cached
//! briefly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::Mutex;

/// How long a report is cached.
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
    /// The output of `caisson image list --json`.
    pub(crate) images: CachedReport,
    /// The demo job, whose model is a recording.
    pub(crate) demo: CachedReport,
}

impl HostReports {
    #[must_use]
    pub fn new(doctor: ReportFn, images: ReportFn, demo: ReportFn) -> Self {
        Self {
            doctor: CachedReport::new(doctor),
            images: CachedReport::new(images),
            demo: CachedReport::new(demo),
        }
    }
}

/// A cached report. Concurrent callers wait for the same result.
#[derive(Clone)]
pub(crate) struct CachedReport {
    make: ReportFn,
    cached: Arc<Mutex<Option<(Instant, Value)>>>,
}

impl CachedReport {
    fn new(make: ReportFn) -> Self {
        Self { make, cached: Arc::default() }
    }

    pub(crate) async fn get(&self) -> Result<Value, String> {
        let mut cached = self.cached.lock().await;
        if let Some((made, value)) = &*cached
            && made.elapsed() < CACHE_TTL
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

    fn counted(count: Arc<AtomicU32>) -> CachedReport {
        CachedReport::new(Arc::new(move || {
            let turn = count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move { if turn == 0 { Err("not now".to_owned()) } else { Ok(Value::from(turn)) } })
        }))
    }

    #[tokio::test]
    async fn report_is_cached_and_failure_is_not() {
        let count = Arc::new(AtomicU32::new(0));
        let report = counted(Arc::clone(&count));
        assert_eq!(report.get().await, Err("not now".to_owned()));
        assert_eq!(report.get().await, Ok(Value::from(1)));
        assert_eq!(report.get().await, Ok(Value::from(1)));
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn report_times_out() {
        let report = CachedReport::new(Arc::new(|| Box::pin(std::future::pending())));
        assert!(report.get().await.unwrap_err().contains("30 s"));
    }
}
