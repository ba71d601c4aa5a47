//! Request and response types of the orchestrator's public functions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::{KeyId, Submitter};
use crate::event::CallStatus;
use crate::ids::JobId;
use crate::request::NewJob;
use crate::state::JobState;
use crate::view::JobView;

/// A job to submit, with its idempotency key.
#[derive(Debug, Clone, Default)]
pub struct Submission {
    pub job: NewJob,
    /// A repeated submission with the same key and the same job returns the first response.
    pub idempotency_key: Option<String>,
    /// The API key that submits the job.
    pub submitter: Option<Submitter>,
    /// Whether files follow in the same request.
    pub bringing: Bringing,
}

/// Whether files follow the job in the same request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bringing {
    #[default]
    Nothing,
    /// Files follow; the job stays a draft until [`Orchestrator::finish_form_upload`](crate::Orchestrator::finish_form_upload).
    Files,
}

/// Whether the submission repeats an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeated {
    No,
    /// The submission returned the job of an earlier one.
    Yes,
}

#[derive(Debug, Clone)]
pub struct Accepted {
    pub view: JobView,
    pub repeated: Repeated,
    /// What the caller should know or do next.
    pub hint: Option<String>,
}

/// What a job is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Work with an end and a result.
    #[default]
    Job,
    /// A bare sandbox.
    Sandbox,
}

#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    pub kind: JobKind,
    /// All states if empty.
    pub states: Vec<JobState>,
    /// Only jobs with this label.
    pub label: Option<(String, String)>,
    /// Only jobs submitted with this key.
    pub submitter: Option<KeyId>,
    /// Only jobs older than this one.
    pub before: Option<JobId>,
    pub limit: usize,
}

/// A page of jobs, newest first.
#[derive(Debug, Clone)]
pub struct JobPage {
    pub jobs: Vec<JobView>,
    /// Pass as `before` to get the next page.
    pub next: Option<JobId>,
}

/// Runs something in the sandbox of a job that runs.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// A command line; either this or `argv`.
    pub command: Option<String>,
    /// A program and its arguments.
    pub argv: Option<Vec<String>>,
    /// Standard input.
    pub stdin: Option<String>,
    /// Working directory, `/workspace` when absent.
    pub cwd: Option<String>,
    /// Further variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Ends it after so many seconds, 60 when absent.
    pub timeout_s: Option<f64>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ExecReply {
    /// The call in the job's log.
    pub call: String,
    /// Whether it did what was expected.
    pub status: CallStatus,
    /// Exit code.
    pub exit_code: Option<i32>,
    /// Standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Whether output was left out; the job's log has more.
    pub truncated: bool,
    /// From start to end.
    pub duration_ms: u64,
    /// Why it did not succeed, for programs.
    pub code: Option<String>,
    /// Why it did not succeed, for people.
    pub reason: Option<String>,
    /// What should be known of how it ran, such as connections that were refused and that its programs could not show.
    pub note: Option<String>,
}

/// Whether the server can take jobs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ReadyState {
    /// It can.
    pub ready: bool,
    /// Why not.
    pub problems: Vec<String>,
    /// Jobs that work.
    pub running: usize,
    /// Jobs that wait.
    pub queued: usize,
}
