//! Request and response types of the orchestrator's public functions.

use job::{JobView, NewJob, Submitter};

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
