//! The recorded resource usage of jobs. A short interval takes the place of the usual seconds.

use std::path::PathBuf;
use std::time::Duration;

use job::JobId;
use orchestrator::{Settings, StatsHistory, StatsLimits};

use crate::guest::{Misbehavior, STATS, USAGE};
use crate::trouble::begun;
use crate::{TIMEOUT, TestServer};

fn often() -> Settings {
    Settings { usage_interval: Duration::from_millis(10), ..Settings::default() }
}

impl TestServer {
    async fn history(&self, id: JobId) -> StatsHistory {
        self.orchestrator.stats_history(id).await.unwrap()
    }

    /// Waits until the history has this many samples, and returns it.
    async fn until_samples(&self, id: JobId, count: usize) -> StatsHistory {
        let reached = async {
            loop {
                let history = self.history(id).await;
                if history.samples.len() >= count {
                    return history;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, reached).await.expect("samples are taken")
    }

    fn usage_file(&self, id: JobId) -> PathBuf {
        self.folder.path().join(format!("jobs/{id}/usage.jsonl"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_history_outlives_a_restart_and_the_end_and_goes_with_the_job() {
    let world = TestServer::with(often(), None).await;
    let id = world.submit(Some(Misbehavior::Held)).await;
    let before = world.until_samples(id, 3).await;
    let sample = before.samples[0];
    assert_eq!((sample.memory_bytes, sample.processes), (USAGE.memory_bytes, STATS.processes));
    assert_eq!(sample.disk_bytes, STATS.disk_total_bytes - STATS.disk_free_bytes);
    assert_eq!(before.memory_peak_bytes, USAGE.memory_peak_bytes);
    let limits = StatsLimits { cpus: 2.0, memory_bytes: 4 << 30, disk_bytes: 8 << 30, processes: 1024 };
    assert_eq!((before.limits, before.disk_total_bytes), (limits, STATS.disk_total_bytes));

    let world = world.succeeded(often()).await;
    let taken = before.samples.len();
    let after = world.until_samples(id, taken + 3).await;
    assert_eq!(after.samples[..taken], before.samples);

    world.fake_backend.ends_with.send_replace(Some(0));
    world.until(id, |view| view.state.is_over()).await;
    let kept = world.history(id).await;
    assert_eq!(kept.samples[..taken + 3], after.samples[..taken + 3]);
    assert!(world.usage_file(id).is_file());

    world.orchestrator.delete(id).await.unwrap();
    assert_eq!(world.orchestrator.stats_history(id).await.unwrap_err().code(), "job_not_found");
    assert!(!world.usage_file(id).parent().unwrap().exists());
    world.orchestrator.shutdown().await;
}

/// Like a guest whose sandbox is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_of_a_silent_guest_is_recorded_from_outside() {
    let world = TestServer::with(often(), None).await;
    let id = world.submit(Some(Misbehavior::Held)).await;
    world.until_event(id, begun).await;
    world.until_samples(id, 1).await;
    world.fake_backend.is_stopped.send_replace(true);
    let taken = world.history(id).await.samples.len();
    // The guest may still have answered for the first one.
    let history = world.until_samples(id, taken + 2).await;
    let newest = history.samples[taken + 1];
    assert_eq!((newest.memory_bytes, newest.processes), (USAGE.memory_bytes, STATS.processes));
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_shorter_than_the_interval_has_no_usage_file() {
    let world = TestServer::with(Settings::default(), None).await;
    let (view, _) = world.run(None).await;
    assert!(world.history(view.job_id).await.samples.is_empty());
    assert!(!world.usage_file(view.job_id).exists());
    world.orchestrator.shutdown().await;
}
