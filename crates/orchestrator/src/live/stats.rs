//! The resource usage of a sandbox: now, and over the life of its job.

use job::JobId;
use sandbox::{Limits, Usage};
use serde::Serialize;
use utoipa::ToSchema;

use crate::clock::now_ms;
use crate::core::Orchestrator;
use crate::core::usage_history::{UsageSample, read_samples};
use crate::error::OrchestratorError;

const MIB: u64 = 1 << 20;

/// What a sandbox uses.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SandboxStats {
    /// Bytes of memory now.
    pub memory_bytes: u64,
    /// The most bytes of memory so far.
    pub memory_peak_bytes: u64,
    /// Processor time so far.
    pub cpu_micros: u64,
    /// Processes and threads now.
    pub pids: u64,
    /// How often a process was ended because the memory was used up.
    pub oom_kills: u64,
    /// Free bytes on its disk.
    pub disk_free_bytes: u64,
    /// Size of its disk.
    pub disk_total_bytes: u64,
    /// Processes that the guest sees.
    pub processes: u32,
    /// Calls that run.
    pub running_calls: u32,
}

/// What a sandbox has used over time.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct StatsHistory {
    /// The server's clock now; milliseconds since 1970.
    pub now_ms: i64,
    /// What the sandbox may use.
    pub limits: StatsLimits,
    /// Size of its disk; 0 without samples.
    pub disk_total_bytes: u64,
    /// The most bytes of memory so far; 0 without samples.
    pub memory_peak_bytes: u64,
    /// Oldest first, at most 1,000: one every five seconds for the last hour of the sandbox, and merged ones before. A
    /// job that ran for less than five seconds has none.
    pub samples: Vec<StatsSample>,
}

/// The limits of a sandbox, in the units of its samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct StatsLimits {
    /// CPUs.
    pub cpus: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes on its disk.
    pub disk_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
}

/// What a sandbox used at one time; a merged sample has the most since the previous sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct StatsSample {
    /// Milliseconds since 1970.
    pub time_ms: i64,
    /// CPUs used on average since the previous sample; 1.5 is one and a half.
    pub cpus: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes on its disk.
    pub disk_bytes: u64,
    /// Processes that the guest saw.
    pub processes: u32,
}

impl Orchestrator {
    /// The resource usage of the sandbox of a job.
    ///
    /// # Errors
    /// The job has no sandbox now.
    pub async fn stats(&self, id: JobId) -> Result<SandboxStats, OrchestratorError> {
        let (_, client) = self.reach(id).await?;
        let guest = client.stats().await?;
        let usage = match self.core.store.job(id).await?.sandbox {
            Some(sandbox) => self.core.backend.observe(sandbox).await?.usage,
            None => Usage::default(),
        };
        Ok(SandboxStats {
            memory_bytes: usage.memory_bytes,
            memory_peak_bytes: usage.memory_peak_bytes,
            cpu_micros: usage.cpu_micros,
            pids: usage.pids,
            oom_kills: usage.oom_kills,
            disk_free_bytes: guest.disk_free_bytes,
            disk_total_bytes: guest.disk_total_bytes,
            processes: guest.processes,
            running_calls: guest.running_calls,
        })
    }

    /// The resource usage of the sandboxes of a job over time, also after its end.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn stats_history(&self, id: JobId) -> Result<StatsHistory, OrchestratorError> {
        let started_ms = self.core.store.job(id).await?.started_ms;
        let limits = limits_of(&self.core.store.spec(id).await?.limits);
        let (live, file) = (self.core.live.get(id), self.core.folder.usage_log(id));
        let reading = tokio::task::spawn_blocking(move || match live {
            Some(live) => live.usage.samples(&file),
            None => read_samples(&file),
        });
        let recorded = reading.await.unwrap_or_default();
        Ok(StatsHistory {
            now_ms: now_ms(),
            limits,
            disk_total_bytes: recorded.last().map_or(0, |sample| sample.disk_total_bytes),
            memory_peak_bytes: recorded.iter().map(|sample| sample.memory_peak_bytes).max().unwrap_or(0),
            samples: with_rates(&recorded, started_ms),
        })
    }
}

fn limits_of(limits: &Limits) -> StatsLimits {
    StatsLimits {
        cpus: limits.cpu_millis.value() as f64 / 1000.0,
        memory_bytes: limits.memory_mib.value().saturating_mul(MIB),
        disk_bytes: limits.disk_mib.value().saturating_mul(MIB),
        processes: limits.pids.value(),
    }
}

/// Computes the CPU usage between samples; the first one covers the time since the job started.
fn with_rates(recorded: &[UsageSample], started_ms: Option<i64>) -> Vec<StatsSample> {
    let mut previous = (started_ms, 0);
    let rate = |sample: &UsageSample| {
        let (since_ms, cpu_micros) =
            std::mem::replace(&mut previous, (Some(sample.time_ms), sample.cpu_micros));
        // If the job got another sandbox in between, the counter started over.
        let used = sample.cpu_micros.checked_sub(cpu_micros).unwrap_or(sample.cpu_micros);
        let elapsed_ms = since_ms.map_or(0, |since_ms| sample.time_ms.saturating_sub(since_ms));
        let cpus = if elapsed_ms > 0 { used as f64 / 1000.0 / elapsed_ms as f64 } else { 0.0 };
        StatsSample {
            time_ms: sample.time_ms,
            cpus: (cpus * 1000.0).round() / 1000.0,
            memory_bytes: sample.memory_bytes,
            disk_bytes: sample.disk_bytes,
            processes: sample.processes,
        }
    };
    recorded.iter().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_usage_is_the_average_since_the_previous_sample() {
        let sample = |time_ms, cpu_micros| UsageSample {
            time_ms,
            cpu_micros,
            memory_bytes: 1,
            memory_peak_bytes: 1,
            disk_bytes: 1,
            disk_total_bytes: 1,
            processes: 1,
        };
        // The fourth sample is of another sandbox.
        let recorded = [
            sample(5000, 2_500_000),
            sample(10_000, 12_500_000),
            sample(30_000, 12_500_000),
            sample(40_000, 5_000_000),
        ];
        let cpus = |started_ms| -> Vec<f64> {
            with_rates(&recorded, started_ms).iter().map(|sample| sample.cpus).collect()
        };
        assert_eq!(cpus(Some(0)), [0.5, 2.0, 0.0, 0.5]);
        assert_eq!(cpus(None), [0.0, 2.0, 0.0, 0.5]);
        assert_eq!(cpus(Some(5000))[0], 0.0, "the clock was set back");
    }
}
