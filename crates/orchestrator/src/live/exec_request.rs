//! Commands that API callers run in a sandbox.

use std::collections::BTreeMap;

use job::CallStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
