//! API answers that describe jobs. Pure: computed from a view, a base URL and a clock.
//!
//! `download_url` is absolute, because people copy it. All other addresses are paths on this server.

mod artifact;
mod list;

use std::collections::BTreeMap;

use orchestrator::{Accepted, AgentView, ControlRequest, JobId, JobState, JobView, StepView};
use serde::Serialize;
use utoipa::ToSchema;

use self::artifact::artifact_path;
pub(crate) use self::artifact::{ArtifactAnswer, ArtifactListAnswer};
pub(crate) use self::list::{JobListAnswer, JobSummary};
use crate::clock::timestamp;
use crate::extract::BaseUrl;

/// Where a job stands, in five words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It waits for its turn or for its sandbox.
    Pending,
    /// It works, or waits for something; `detail` says which.
    Running,
    /// Done.
    Complete,
    /// Ended without success; `code` and `reason` say why.
    Failed,
    /// Ended by control_request.
    Cancelled,
}

impl From<JobState> for Status {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Draft | JobState::Queued | JobState::Starting => Self::Pending,
            JobState::Running | JobState::Paused | JobState::Collecting => Self::Running,
            JobState::Complete => Self::Complete,
            JobState::Failed => Self::Failed,
            JobState::Cancelled => Self::Cancelled,
        }
    }
}

/// The job was accepted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedAnswer {
    /// Names the job from now on.
    pub(crate) job_id: JobId,
    /// The same as `job_id`.
    pub(crate) task_id: JobId,
    /// Where it stands.
    pub(crate) status: Status,
    /// Where to ask how it goes.
    #[schema(example = "/status/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f")]
    pub(crate) status_url: String,
    /// Where to watch it live.
    #[schema(example = "/v1/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/events")]
    pub(crate) events_url: String,
    /// What the caller should know or do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl AcceptedAnswer {
    pub(crate) fn new(accepted: Accepted) -> Self {
        let id = accepted.view.job_id;
        Self {
            job_id: id,
            task_id: id,
            status: accepted.view.state.into(),
            status_url: format!("/status/{id}"),
            events_url: format!("/v1/jobs/{id}/events"),
            hint: accepted.hint,
        }
    }
}

/// How a job goes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusAnswer {
    /// Which job.
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    /// For people.
    name: Option<String>,
    /// Where it stands.
    status: Status,
    /// More exactly, for people: `queued`, `starting`, `paused: no_model`.
    #[schema(example = "running")]
    detail: String,
    /// Why it waits or ended, for programs.
    code: Option<String>,
    /// Why it waits or ended, for people.
    reason: Option<String>,
    /// The reason of a job that failed.
    error: Option<String>,
    /// What the caller can do about a job that waits.
    hint: Option<String>,
    /// The steps of a step job.
    steps: Vec<StepView>,
    /// The agent of a task job: plan, spending, what waits for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<Box<AgentView>>,
    /// Where the result is, once there is one.
    #[schema(example = "/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/output.zip")]
    result: Option<String>,
    /// The same, with scheme and host.
    #[schema(example = "http://localhost:8000/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/output.zip")]
    download_url: Option<String>,
    /// What it printed.
    logs_url: String,
    /// What happens, live.
    events_url: String,
    #[serde(flatten)]
    times: Times,
}

impl StatusAnswer {
    pub(crate) fn new(view: JobView, base: &BaseUrl, now_ms: i64) -> Self {
        let id = view.job_id;
        let times = Times::of(&view, now_ms);
        let result = view.artifact.as_ref().map(artifact_path(id));
        Self {
            job_id: id,
            task_id: id,
            status: view.state.into(),
            detail: detail_of(&view),
            error: view.reason.clone().filter(|_| view.state == JobState::Failed),
            hint: view.reason.clone().filter(|_| view.state == JobState::Paused),
            name: view.name,
            code: view.code,
            reason: view.reason,
            steps: view.steps,
            agent: view.agent,
            download_url: result.as_ref().map(|path| format!("{}{path}", base.0)),
            result,
            logs_url: format!("/v1/jobs/{id}/log"),
            events_url: format!("/v1/jobs/{id}/events"),
            times,
        }
    }
}

/// All that is known of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobAnswer {
    #[serde(flatten)]
    status: StatusAnswer,
    /// The exact state.
    state: JobState,
    /// The task of a task job.
    task: Option<String>,
    /// Whose it is; null while nobody has to log in.
    owner: Option<String>,
    /// Higher goes first.
    priority: i32,
    /// For finding it again.
    labels: BTreeMap<String, String>,
    /// How many sandboxes it has lost.
    losses: u32,
    /// Whether somebody wants it to end.
    is_cancel_requested: bool,
}

impl JobAnswer {
    pub(crate) fn new(mut view: JobView, base: &BaseUrl, now_ms: i64) -> Self {
        Self {
            state: view.state,
            task: view.task.take(),
            owner: view.owner.take().map(|owner| owner.name),
            priority: view.priority,
            labels: std::mem::take(&mut view.labels),
            losses: view.losses,
            is_cancel_requested: view.control_request == Some(ControlRequest::Cancel),
            status: StatusAnswer::new(view, base, now_ms),
        }
    }
}

/// The state with its reason: `paused: no_model`, `running: cancelling`, `running: backend_unavailable`.
pub(crate) fn detail_of(view: &JobView) -> String {
    let state = state_name(view.state);
    match (&view.code, view.control_request) {
        (_, Some(ControlRequest::Cancel)) if !view.state.is_over() => format!("{state}: cancelling"),
        (Some(code), _) if matches!(view.state, JobState::Paused | JobState::Running) => {
            format!("{state}: {code}")
        }
        _ => state.to_owned(),
    }
}

/// All states with their API names.
pub(crate) const STATES: [(JobState, &str); 9] = [
    (JobState::Draft, "draft"),
    (JobState::Queued, "queued"),
    (JobState::Starting, "starting"),
    (JobState::Running, "running"),
    (JobState::Paused, "paused"),
    (JobState::Collecting, "collecting"),
    (JobState::Complete, "complete"),
    (JobState::Failed, "failed"),
    (JobState::Cancelled, "cancelled"),
];

fn state_name(state: JobState) -> &'static str {
    STATES.iter().find(|(known, _)| *known == state).map_or("unknown", |(_, name)| name)
}

/// When a job was accepted, began and was over.
#[derive(Debug, Serialize, ToSchema)]
struct Times {
    /// When it was accepted.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it first got a sandbox.
    #[schema(format = DateTime)]
    started_at: Option<String>,
    /// When it was over.
    #[schema(format = DateTime)]
    ended_at: Option<String>,
    /// From start to end, or until now.
    duration_ms: Option<u64>,
}

impl Times {
    fn of(view: &JobView, now_ms: i64) -> Self {
        let duration_ms =
            view.started_ms.map(|started| view.ended_ms.unwrap_or(now_ms).saturating_sub(started));
        Self {
            created_at: timestamp(view.created_ms),
            started_at: view.started_ms.map(timestamp),
            ended_at: view.ended_ms.map(timestamp),
            duration_ms: duration_ms.map(|duration| u64::try_from(duration).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestrator::{Artifact, JobDefaults, NewJob};
    use serde_json::{Value, json};

    use super::*;

    fn view(state: JobState) -> JobView {
        let new = json!({"name": "look", "steps": [{"tool": "shell", "command": "true"}]});
        let new: NewJob = serde_json::from_value(new).unwrap();
        let id = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f".parse().unwrap();
        let fresh = JobView::new(id, 1_700_000_000_000, &new.check(&JobDefaults::default()).unwrap());
        JobView { state, steps: Vec::new(), step_count: 0, ..fresh }
    }

    fn status(view: JobView) -> Value {
        let base = BaseUrl("http://localhost:8000".into());
        serde_json::to_value(StatusAnswer::new(view, &base, 1_700_000_009_000)).unwrap()
    }

    #[test]
    fn every_state_has_its_status_and_detail() {
        let table = [
            (JobState::Draft, "pending", "draft"),
            (JobState::Queued, "pending", "queued"),
            (JobState::Starting, "pending", "starting"),
            (JobState::Running, "running", "running"),
            (JobState::Paused, "running", "paused"),
            (JobState::Collecting, "running", "collecting"),
            (JobState::Complete, "complete", "complete"),
            (JobState::Failed, "failed", "failed"),
            (JobState::Cancelled, "cancelled", "cancelled"),
        ];
        for (state, word, detail) in table {
            let answer = status(view(state));
            assert_eq!((&answer["status"], &answer["detail"]), (&json!(word), &json!(detail)));
            // These names must match the serialized ones.
            assert_eq!(serde_json::to_value(state).unwrap(), json!(state_name(state)));
        }
    }

    #[test]
    fn a_job_without_a_model_says_what_to_do() {
        let reason = Some("no model is configured; add one to the configuration".to_owned());
        let answer = status(JobView { code: Some("no_model".into()), reason, ..view(JobState::Paused) });
        assert_eq!(answer["detail"], "paused: no_model");
        assert_eq!(answer["hint"], answer["reason"]);
        assert_eq!(answer["error"], Value::Null);
    }

    #[test]
    fn a_failed_job_has_its_reason_as_error() {
        let reason = Some("step 2 ended with exit code 1".to_owned());
        let answer = status(JobView { code: Some("step_failed".into()), reason, ..view(JobState::Failed) });
        assert_eq!(answer["error"], "step 2 ended with exit code 1");
        assert_eq!(answer["hint"], Value::Null);
    }

    #[test]
    fn a_finished_job_has_its_result_and_times() {
        let artifact = Artifact {
            name: "output.zip".into(),
            bytes: 10,
            files: 1,
            sha256: "ab".into(),
            source: "workspace".into(),
        };
        let answer = status(JobView {
            started_ms: Some(1_700_000_001_000),
            ended_ms: Some(1_700_000_003_500),
            artifact: Some(artifact),
            ..view(JobState::Complete)
        });
        let path = "/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/output.zip";
        assert_eq!(answer["result"], path);
        assert_eq!(answer["download_url"], format!("http://localhost:8000{path}"));
        assert_eq!(answer["created_at"], "2023-11-14T22:13:20Z");
        assert_eq!(answer["ended_at"], "2023-11-14T22:13:23.5Z");
        assert_eq!(answer["duration_ms"], 2500);
        assert_eq!(answer["job_id"], answer["task_id"]);
    }

    #[test]
    fn running_job_reports_duration_and_cancel_request() {
        let running = JobView {
            started_ms: Some(1_700_000_001_000),
            control_request: Some(ControlRequest::Cancel),
            ..view(JobState::Running)
        };
        let answer = status(running);
        assert_eq!(answer["duration_ms"], 8000);
        assert_eq!(answer["detail"], "running: cancelling");
        assert_eq!(answer["result"], Value::Null);
    }
}
