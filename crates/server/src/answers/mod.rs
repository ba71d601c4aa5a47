//! API answers that describe jobs. Pure: computed from a view, a base URL and a clock.
//!
//! `download_url` is absolute, because people copy it. All other addresses are paths on this server.

mod artifact;
mod download;
mod list;

use std::collections::BTreeMap;

use job::{AgentView, ControlRequest, JobId, JobState, JobView, StepView};
use orchestrator::Accepted;
use serde::Serialize;
use utoipa::ToSchema;

use self::artifact::artifact_path;
pub(crate) use self::artifact::{ArtifactAnswer, ArtifactListAnswer};
pub(crate) use self::download::DownloadAnswer;
pub(crate) use self::list::{JobListAnswer, JobSummary};
use crate::clock::timestamp;
use crate::extract::BaseUrl;

/// The status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// The job waits in the queue, for its sandbox or for a model.
    Pending,
    /// The job runs, or waits for something; see `detail`.
    Running,
    /// The job succeeded.
    Complete,
    /// The job failed; see `code` and `reason`.
    Failed,
    /// The job was cancelled.
    Cancelled,
}

impl Status {
    /// The status of a job. A pause because no model is available counts as waiting to start.
    pub(crate) fn of(view: &JobView) -> Self {
        match view.state {
            JobState::Paused if view.is_waiting_for_model() => Self::Pending,
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
    /// The id of the job.
    pub(crate) job_id: JobId,
    /// The same as `job_id`.
    pub(crate) task_id: JobId,
    /// The status.
    pub(crate) status: Status,
    /// The exact state with its reason: `queued`, `paused: no_model`.
    #[schema(example = "queued")]
    pub(crate) detail: String,
    /// URL of the status.
    #[schema(example = "/status/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f")]
    pub(crate) status_url: String,
    /// URL of the event stream.
    #[schema(example = "/v1/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/events")]
    pub(crate) events_url: String,
    /// A hint for the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl AcceptedAnswer {
    pub(crate) fn new(accepted: Accepted) -> Self {
        let id = accepted.view.job_id;
        Self {
            job_id: id,
            task_id: id,
            status: Status::of(&accepted.view),
            detail: detail_of(&accepted.view),
            status_url: format!("/status/{id}"),
            events_url: format!("/v1/jobs/{id}/events"),
            hint: accepted.hint,
        }
    }
}

/// The status of a job with its steps or agent.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusAnswer {
    /// The id of the job.
    job_id: JobId,
    /// The same as `job_id`.
    task_id: JobId,
    /// The name.
    name: Option<String>,
    /// The status.
    status: Status,
    /// The exact state with its reason: `queued`, `starting`, `paused: no_model`.
    #[schema(example = "running")]
    detail: String,
    /// Code of the reason why the job waits or ended.
    code: Option<String>,
    /// Why the job waits or ended.
    reason: Option<String>,
    /// The reason of a job that failed.
    error: Option<String>,
    /// What to do about a job that waits.
    hint: Option<String>,
    /// The steps of a step job.
    steps: Vec<StepView>,
    /// The agent of a task job: plan, spending, input requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<Box<AgentView>>,
    /// Path of the result, once it exists.
    #[schema(example = "/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/output.zip")]
    result: Option<String>,
    /// URL of the result.
    #[schema(example = "http://localhost:8000/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/output.zip")]
    download_url: Option<String>,
    /// URL of the text log.
    logs_url: String,
    /// URL of the event stream.
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
            status: Status::of(&view),
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

/// All data about a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobAnswer {
    #[serde(flatten)]
    status: StatusAnswer,
    /// The exact state.
    state: JobState,
    /// The task of a task job.
    task: Option<String>,
    /// Name of the API key that submitted the job; null on a server without keys.
    owner: Option<String>,
    /// Jobs with a higher priority run first.
    priority: i32,
    /// The labels.
    labels: BTreeMap<String, String>,
    /// Number of lost sandboxes.
    losses: u32,
    /// Whether the job is being cancelled.
    is_cancel_requested: bool,
    /// The files that the job has left beside its result; empty until it has ended.
    downloads: Vec<DownloadAnswer>,
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
            downloads: Vec::new(),
            status: StatusAnswer::new(view, base, now_ms),
        }
    }

    /// Adds the files of a job that has ended.
    pub(crate) fn with_downloads(self, downloads: Vec<DownloadAnswer>) -> Self {
        Self { downloads, ..self }
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
    /// When it ended.
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
    use job::{Artifact, JobDefaults, NewJob};
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
        assert_eq!((&answer["status"], &answer["detail"]), (&json!("pending"), &json!("paused: no_model")));
        assert_eq!(answer["hint"], answer["reason"]);
        assert_eq!(answer["error"], Value::Null);
    }

    #[test]
    fn a_job_that_waits_for_a_model_is_pending_in_every_answer() {
        let waiting = || JobView { code: Some("no_model".into()), ..view(JobState::Paused) };
        let summary = serde_json::to_value(JobSummary::new(waiting(), 1_700_000_009_000)).unwrap();
        assert_eq!((&summary["status"], &summary["state"]), (&json!("pending"), &json!("paused")));
        let accepted = Accepted { view: waiting(), repeated: orchestrator::Repeated::No, hint: None };
        let accepted = serde_json::to_value(AcceptedAnswer::new(accepted)).unwrap();
        assert_eq!(
            (&accepted["status"], &accepted["detail"]),
            (&json!("pending"), &json!("paused: no_model"))
        );
        // A person who is asked by a running agent is another matter.
        let asked = status(JobView { code: Some("question".into()), ..view(JobState::Paused) });
        assert_eq!(asked["status"], "running");
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
