//! Records the resource usage of all running sandboxes, in the same terms as the API reports it.
//!
//! Sampling does not count as use of a sandbox, and a frozen sandbox is observed only from outside. A failed sample is
//! left out: a gap in the history disturbs nobody.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use job::{JobId, JobState, JobView};
use protocol::{GuestClient, GuestStats};
use sandbox::{Phase, SandboxId};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::clock::now_ms;
use crate::core::Core;
use crate::core::live_jobs::LiveJob;
use crate::core::usage_history::UsageSample;

/// Number of sandboxes that are observed at the same time.
const CONCURRENT: usize = 16;
/// Maximum time for one sandbox.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a guest may take to answer; after that, its previous answer is used.
const GUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs until the server shuts down.
pub(crate) async fn run(core: Arc<Core>) {
    let mut ticks = interval(core.settings().usage_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let sampling =
            futures::stream::iter(core.live.all()).for_each_concurrent(CONCURRENT, |(job, live)| {
                let core = &core;
                async move {
                    let _ = timeout(TIMEOUT, sample(core, job, live)).await;
                }
            });
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = sampling => {}
        }
    }
}

async fn sample(core: &Core, job: JobId, live: LiveJob) {
    let sandbox = live.recorder.with_view(running_sandbox).await;
    if !live.usage.is_due(sandbox.is_some()) {
        return;
    }
    let Some(sandbox) = sandbox else { return };
    let Some(sample) = measure(core, &live, sandbox).await else { return };
    let file = core.folder.usage_log(job);
    let added = tokio::task::spawn_blocking(move || live.usage.add(&file, sample)).await;
    if let Ok(Err(error)) = added {
        tracing::warn!(%job, %error, "the resource usage cannot be stored, trying again");
    }
}

fn running_sandbox(view: &JobView) -> Option<SandboxId> {
    let is_running = matches!(view.state, JobState::Running | JobState::Paused | JobState::Collecting);
    view.sandbox.filter(|_| is_running)
}

/// `None` if the sandbox cannot be observed now.
async fn measure(core: &Core, live: &LiveJob, sandbox: SandboxId) -> Option<UsageSample> {
    let observed = core.backend.observe(sandbox).await.ok()?;
    if !matches!(observed.phase, Phase::Ready) {
        return None;
    }
    let usage = observed.usage;
    let newest = live.usage.newest();
    let (disk_bytes, disk_total_bytes, processes) = match (guest_stats(core, live).await, newest) {
        (Some(guest), _) => {
            let used = guest.disk_total_bytes.saturating_sub(guest.disk_free_bytes);
            (used, guest.disk_total_bytes, guest.processes)
        }
        (None, Some(newest)) => (newest.disk_bytes, newest.disk_total_bytes, newest.processes),
        (None, None) => return None,
    };
    Some(UsageSample {
        time_ms: now_ms(),
        cpu_micros: usage.cpu_micros,
        memory_bytes: usage.memory_bytes,
        memory_peak_bytes: usage.memory_peak_bytes,
        disk_bytes,
        disk_total_bytes,
        processes,
    })
}

/// What the guest reports; `None` if its sandbox is frozen, or it does not answer.
async fn guest_stats(core: &Core, live: &LiveJob) -> Option<GuestStats> {
    if core.host_disk.shortage().is_some() {
        return None;
    }
    let is_open = |client: &GuestClient| !client.link().is_closed();
    let client = live.guest.borrow().clone().filter(is_open)?;
    timeout(GUEST_TIMEOUT, client.stats()).await.ok()?.ok()
}
