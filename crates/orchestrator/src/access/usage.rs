//! Statistics for operators: the defaults that apply to jobs, and the usage per day.

use std::collections::BTreeMap;

use job::{Ceilings, JobFilter, JobKind, JobState, JobView, KeyId, at_most};
use serde::Serialize;
use utoipa::ToSchema;

use crate::core::Orchestrator;
use crate::error::OrchestratorError;

const DAY_MS: i64 = 86_400_000;
/// Number of jobs read per page, and the maximum number of pages.
const PAGE: usize = 1000;
const MAX_PAGES: usize = 50;

/// What holds for a job that says nothing.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct DefaultsView {
    /// The image; without one, `default` where it is built, else `host`.
    pub image: Option<String>,
    /// The least isolation that is acceptable.
    pub isolation: String,
    /// Outgoing connections, as a job writes them.
    #[schema(value_type = job::EgressSchema)]
    pub egress: serde_json::Value,
    /// Mebibytes of memory.
    pub memory_mib: u64,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u64,
    /// Mebibytes of disk.
    pub disk_mib: u64,
    /// Seconds from start to end of the work.
    pub wall_clock_s: u64,
    /// Seconds of a step.
    pub step_timeout_s: u64,
    /// What a task job may spend.
    pub budget: agent::Budget,
    /// How many jobs work at once.
    pub max_running: usize,
    /// How many may wait.
    pub max_queued: usize,
    /// How many sandboxes are kept ready.
    pub pool_size: usize,
    /// Days after which a job that is over is removed.
    pub retention_days: u64,
    /// The most that the caller may ask for.
    pub max: Ceilings,
}

/// What was used on one day, by the time at which jobs were accepted, in UTC.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct DayUsage {
    /// Such as `2026-11-15`.
    pub day: String,
    /// Jobs that were accepted.
    pub jobs: u64,
    /// How many of them are done.
    pub complete: u64,
    /// How many have failed.
    pub failed: u64,
    /// Milliseconds with a sandbox.
    pub sandbox_ms: u64,
    /// Tokens read and written.
    pub tokens: u64,
    /// US dollars for model calls.
    pub cost_usd: f64,
    /// The same by the name of the key that submitted the jobs.
    pub by_key: BTreeMap<String, KeyUsage>,
}

/// What the jobs of one key used on one day.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct KeyUsage {
    /// Jobs that were accepted.
    pub jobs: u64,
    /// Milliseconds with a sandbox.
    pub sandbox_ms: u64,
    /// Tokens read and written.
    pub tokens: u64,
    /// US dollars for model calls.
    pub cost_usd: f64,
}

impl Orchestrator {
    /// The defaults for a job submitted with this key, and the most that such a job may request.
    #[must_use]
    pub fn defaults(&self, key: Option<&KeyId>) -> DefaultsView {
        let settings = self.core.settings();
        let defaults = self.rules_for(key);
        let limits = defaults.ceilings.bound(defaults.limits).unwrap_or(defaults.limits);
        let max = defaults.ceilings.effective();
        DefaultsView {
            image: settings.default_image.clone(),
            isolation: serde_json::to_value(defaults.isolation)
                .ok()
                .and_then(|value| value.as_str().map(ToOwned::to_owned))
                .unwrap_or_default(),
            egress: serde_json::to_value(&defaults.egress).unwrap_or_default(),
            memory_mib: limits.memory_mib.value(),
            cpus: limits.cpu_millis.value() as f64 / 1000.0,
            pids: limits.pids.value(),
            disk_mib: limits.disk_mib.value(),
            wall_clock_s: at_most(defaults.wall_clock, max.wall_clock_s).as_secs(),
            step_timeout_s: at_most(defaults.step_timeout, max.step_timeout_s).as_secs(),
            budget: defaults.budget,
            max_running: settings.max_running,
            max_queued: settings.max_queued,
            pool_size: settings.pool_size,
            retention_days: settings.retention_age.as_secs() / 86_400,
            max,
        }
    }

    /// Usage per day for the last `days` days, oldest first, without days that had no jobs; by all keys or by
    /// `submitter` alone. The flag is `true` if there were more jobs than this function reads.
    pub async fn usage(
        &self,
        submitter: Option<KeyId>,
        days: u32,
        now_ms: i64,
    ) -> Result<(Vec<DayUsage>, bool), OrchestratorError> {
        let since = now_ms - now_ms.rem_euclid(DAY_MS) - i64::from(days.saturating_sub(1)) * DAY_MS;
        let mut found = BTreeMap::new();
        let mut before = None;
        for _ in 0..MAX_PAGES {
            let submitter = submitter.clone();
            let filter =
                JobFilter { kind: JobKind::Job, submitter, before, limit: PAGE, ..JobFilter::default() };
            let page = self.jobs(filter).await?;
            for view in &page.jobs {
                if view.created_ms < since {
                    return Ok((in_order(found), false));
                }
                add(&mut found, view, now_ms);
            }
            before = page.next;
            if before.is_none() {
                return Ok((in_order(found), false));
            }
        }
        Ok((in_order(found), true))
    }
}

fn in_order(found: BTreeMap<i64, DayUsage>) -> Vec<DayUsage> {
    found.into_values().collect()
}

fn add(found: &mut BTreeMap<i64, DayUsage>, view: &JobView, now_ms: i64) {
    let day = view.created_ms.div_euclid(DAY_MS);
    let usage = found.entry(day).or_insert_with(|| {
        let text = job::format_time(day * DAY_MS);
        DayUsage { day: text.chars().take(10).collect(), ..DayUsage::default() }
    });
    usage.jobs += 1;
    usage.complete += u64::from(view.state == JobState::Complete);
    usage.failed += u64::from(view.state == JobState::Failed);
    let worked = view.started_ms.map_or(0, |started| view.ended_ms.unwrap_or(now_ms) - started);
    let spent = view.agent.as_ref().map(|agent| &agent.spent);
    let job_usage = KeyUsage {
        jobs: 1,
        sandbox_ms: u64::try_from(worked).unwrap_or(0),
        tokens: spent.map_or(0, |spent| spent.tokens()),
        cost_usd: spent.map_or(0.0, |spent| spent.money_usd()),
    };
    usage.sandbox_ms += job_usage.sandbox_ms;
    usage.tokens += job_usage.tokens;
    usage.cost_usd += job_usage.cost_usd;
    if let Some(owner) = &view.owner {
        let sum = usage.by_key.entry(owner.name.clone()).or_default();
        sum.jobs += job_usage.jobs;
        sum.sandbox_ms += job_usage.sandbox_ms;
        sum.tokens += job_usage.tokens;
        sum.cost_usd += job_usage.cost_usd;
    }
}
