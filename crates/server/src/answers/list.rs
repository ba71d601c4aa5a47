//! API answers that list jobs.

use std::collections::BTreeMap;

use orchestrator::{JobId, JobState, JobView, Plan};
use serde::Serialize;
use utoipa::ToSchema;

use super::artifact::artifact_path;
use super::{Status, Times, detail_of};

/// A job in a list: without its steps.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobSummary {
    /// Which job.
    job_id: JobId,
    /// For people.
    name: Option<String>,
    /// Where it stands, in five words.
    status: Status,
    /// The exact state.
    state: JobState,
    /// The state for people.
    detail: String,
    /// Why it waits or ended, for programs.
    code: Option<String>,
    /// Why it waits or ended, for people.
    reason: Option<String>,
    /// The first 200 characters of the task of a task job.
    task: Option<String>,
    /// How many steps it has.
    steps_total: usize,
    /// How many of them succeeded.
    steps_succeeded: usize,
    /// How many points the plan of its agent has.
    plan_total: usize,
    /// How many of them are done or not needed any more.
    plan_done: usize,
    /// How many things wait for a person: questions, plans, commands, connections.
    requests: usize,
    /// US dollars that its agent has spent; null for a step job.
    cost_usd: Option<f64>,
    /// Tokens that its agent has read and written; null for a step job.
    tokens: Option<u64>,
    /// Whose it is; null while nobody has to log in.
    owner: Option<String>,
    /// Higher goes first.
    priority: i32,
    /// For finding it again.
    labels: BTreeMap<String, String>,
    /// Where the result is, once there is one.
    result: Option<String>,
    /// All about it.
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
            status: view.state.into(),
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
