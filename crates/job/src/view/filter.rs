//! Lists of jobs.

use super::{JobKind, JobView};
use crate::access::KeyId;
use crate::ids::JobId;
use crate::state::JobState;

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
