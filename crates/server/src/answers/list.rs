//! API answers that list jobs.

use std::collections::BTreeMap;

use job::{JobId, JobState, JobView};
use orchestrator::Plan;
use serde::Serialize;
use utoipa::ToSchema;

use super::artifact::artifact_path;
use super::{Status, Times, detail_of};

/// A job in a list: without its steps.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobSummary {
    /// The id of the job.
    job_id: JobId,
    /// The name.
    name: Option<String>,
    /// The status.
    status: Status,
    /// The exact state.
    state: JobState,
    /// The state with its reason.
    detail: String,
    /// Code of the reason why the job waits or ended.
    code: Option<String>,
    /// Why the job waits or ended.
    reason: Option<String>,
    /// The first 200 characters of the task of a task job.
    task: Option<String>,
    /// Number of steps.
    steps_total: usize,
    /// Number of steps that succeeded.
    steps_succeeded: usize,
    /// Number of items in the agent's plan.
    plan_total: usize,
    /// Number of plan items that are done or skipped.
    plan_done: usize,
    /// Number of open input requests.
    requests: usize,
    /// Cost of the agent in US dollars; null for a step job.
    cost_usd: Option<f64>,
    /// Input and output tokens of the agent; null for a step job.
    tokens: Option<u64>,
    /// Name of the API key that submitted the job; null on a server without keys.
    owner: Option<String>,
    /// Jobs with a higher priority run first.
    priority: i32,
    /// The labels.
    labels: BTreeMap<String, String>,
    /// Path of the result, once it exists.
    result: Option<String>,
    /// URL of the job.
    url: String,
    #[serde(flatten)]
    times: Times,
}

impl JobSummary {
    pub(crate) fn new(view: JobView, now_ms: i64) -> Self {
        let times = Times::of(&view, now_ms);
        let agent = view.agent.as_deref();
        let plan = agent.and_then(|agent| agent.plan.as_ref());
        Self {
            job_id: view.job_id,
            status: Status::of(&view),
            state: view.state,
            detail: detail_of(&view),
            task: view.task.map(|task| task.chars().take(200).collect()),
            steps_total: view.step_count,
            steps_succeeded: view.steps_succeeded,
            plan_total: plan.map_or(0, |plan| plan.items.len()),
            plan_done: plan.map_or(0, Plan::done),
            requests: agent.map_or(0, |agent| agent.requests.len()) + view.egress.requests.len(),
            cost_usd: agent.map(|agent| agent.spent.money_usd()),
            tokens: agent.map(|agent| agent.spent.tokens()),
            owner: view.owner.map(|owner| owner.name),
            result: view.artifact.as_ref().map(artifact_path(view.job_id)),
            url: format!("/v1/jobs/{}", view.job_id),
            name: view.name,
            code: view.code,
            reason: view.reason,
            priority: view.priority,
            labels: view.labels,
            times,
        }
    }
}

/// A page of jobs, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobListAnswer {
    /// The jobs.
    pub(crate) jobs: Vec<JobSummary>,
    /// `before` of the next page; null on the last one.
    pub(crate) next: Option<JobId>,
}
