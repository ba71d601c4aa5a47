//! API errors: `application/problem+json` with a stable code.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orchestrator::{OrchestratorError, StoreError};
use protocol::FileErrorCode;
use serde::Serialize;
use utoipa::ToSchema;

/// An API error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    field: Option<String>,
    position: Option<Position>,
    retry_after_s: Option<u64>,
}

/// A position in a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A problem as it is written into an answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemAnswer<'a> {
    /// Always `about:blank`: the `code` tells problems apart.
    #[serde(rename = "type")]
    #[schema(example = "about:blank")]
    kind: &'a str,
    /// The name of the HTTP status.
    #[schema(example = "Unprocessable Entity")]
    title: &'a str,
    /// The HTTP status.
    #[schema(example = 422)]
    status: u16,
    /// The error message for this request.
    #[schema(example = "`steps[0].tool` must be one of `shell`, `python`, not `fly`")]
    detail: &'a str,
    /// A stable error code for programs, such as `job_not_found`.
    #[schema(example = "invalid_field")]
    code: &'a str,
    /// The invalid field of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "steps[0].tool")]
    field: Option<&'a str>,
    /// The line of a malformed body, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// The column of a malformed body, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), field: None, position: None, retry_after_s: None }
    }

    pub(crate) fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub(crate) fn invalid_field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", detail).with_field(field)
    }

    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", detail)
    }

    pub(crate) fn with_field(self, field: impl Into<String>) -> Self {
        let field = Some(field.into()).filter(|field| !field.is_empty());
        Self { field, ..self }
    }

    /// Sets the `Retry-After` header.
    pub(crate) fn after(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    pub(crate) fn at(self, position: Position) -> Self {
        Self { position: Some(position), ..self }
    }

    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The message for people.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// The response body.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let answer = ProblemAnswer {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            code: self.code,
            field: self.field.as_deref(),
            line: self.position.map(|position| position.line),
            column: self.position.map(|position| position.column),
        };
        serde_json::to_vec(&answer).unwrap_or_default()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let media_type = HeaderValue::from_static("application/problem+json");
        let mut response =
            (self.status, [(header::CONTENT_TYPE, media_type)], self.to_json()).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<OrchestratorError> for Problem {
    fn from(error: OrchestratorError) -> Self {
        let status = status_of(&error);
        if status.is_server_error() {
            // The response contains only the message. The sources may reveal details of the host.
            tracing::error!(code = error.code(), error = &error as &dyn std::error::Error, "request failed");
        }
        let mut problem = Self::new(status, error.code(), error.to_string());
        match error {
            OrchestratorError::Invalid(invalid) => {
                problem.detail = invalid.problem;
                problem.field = Some(invalid.field);
            }
            OrchestratorError::KeyQuotaExceeded { retry_after_s, .. }
            | OrchestratorError::QueueFull { retry_after_s, .. }
            | OrchestratorError::TooManySandboxes { retry_after_s, .. } => {
                problem.retry_after_s = Some(retry_after_s.max(1));
            }
            OrchestratorError::Store(
                StoreError::Closed | StoreError::DiskFull | StoreError::Busy | StoreError::Unavailable { .. },
            )
            | OrchestratorError::HostDiskFull { .. }
            | OrchestratorError::IdempotencyPending => problem.retry_after_s = Some(5),
            OrchestratorError::Sandbox(error) if error.is_unavailable() => problem.retry_after_s = Some(5),
            _ => {}
        }
        problem
    }
}

fn status_of(error: &OrchestratorError) -> StatusCode {
    match error {
        OrchestratorError::Invalid(_) | OrchestratorError::IdempotencyMismatch => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        OrchestratorError::NoSandbox(_)
        | OrchestratorError::NoScreenshot(_)
        | OrchestratorError::NoKey(_)
        | OrchestratorError::NoShare(_)
        | OrchestratorError::NoRequest { .. }
        | OrchestratorError::NoArtifact { .. }
        | OrchestratorError::NoResultFile { .. }
        | OrchestratorError::NoContext(_)
        | OrchestratorError::NoEvent { .. } => StatusCode::NOT_FOUND,
        OrchestratorError::WrongState { .. }
        | OrchestratorError::NoFileList(_)
        | OrchestratorError::TakenOver { .. }
        | OrchestratorError::NoDesktop(_)
        | OrchestratorError::TooManyShares { .. }
        | OrchestratorError::ModelConfigured { .. }
        | OrchestratorError::IdempotencyPending => StatusCode::CONFLICT,
        OrchestratorError::QueueFull { .. }
        | OrchestratorError::TooManySandboxes { .. }
        | OrchestratorError::KeyQuotaExceeded { .. } => StatusCode::TOO_MANY_REQUESTS,
        OrchestratorError::ViewOnly(_) => StatusCode::FORBIDDEN,
        OrchestratorError::Store(error) => status_of_store(error),
        OrchestratorError::HostDiskFull { .. } => StatusCode::SERVICE_UNAVAILABLE,
        OrchestratorError::File(error) => status_of_file(error.code),
        OrchestratorError::Link(_) => StatusCode::BAD_GATEWAY,
        OrchestratorError::Sandbox(_) => match error.code() {
            "sandbox_not_running" => StatusCode::CONFLICT,
            "host_unsupported" | "backend_unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "sandbox_failed" => StatusCode::BAD_GATEWAY,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        },
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn status_of_store(error: &StoreError) -> StatusCode {
    match error {
        StoreError::NoJob(_) => StatusCode::NOT_FOUND,
        StoreError::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        StoreError::Closed | StoreError::Busy | StoreError::Unavailable { .. } => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn status_of_file(code: FileErrorCode) -> StatusCode {
    match code {
        FileErrorCode::InvalidPath => StatusCode::BAD_REQUEST,
        FileErrorCode::OutsideWorkspace | FileErrorCode::Denied => StatusCode::FORBIDDEN,
        FileErrorCode::NotFound => StatusCode::NOT_FOUND,
        FileErrorCode::Exists
        | FileErrorCode::IsDirectory
        | FileErrorCode::NotDirectory
        | FileErrorCode::NotFile
        | FileErrorCode::LinkLoop
        | FileErrorCode::NotEmpty
        | FileErrorCode::NoMatch
        | FileErrorCode::ManyMatches => StatusCode::CONFLICT,
        FileErrorCode::NotText => StatusCode::UNPROCESSABLE_ENTITY,
        FileErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        FileErrorCode::DiskFull => StatusCode::INSUFFICIENT_STORAGE,
        FileErrorCode::Other => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use job::{InvalidField, JobId, JobState};
    use protocol::FileError;

    use super::*;

    fn file(code: FileErrorCode) -> OrchestratorError {
        OrchestratorError::File(FileError { code, message: "no".into() })
    }

    #[test]
    fn every_failure_has_its_status_and_code() {
        let job = JobId::generate();
        let table = [
            (StoreError::NoJob(job).into(), 404, "job_not_found"),
            (OrchestratorError::NoSandbox(job), 404, "sandbox_not_found"),
            (OrchestratorError::NoArtifact { job, why: "it runs".into() }, 404, "no_artifact"),
            (
                OrchestratorError::NoResultFile { job, name: "x".into(), why: "it runs".into() },
                404,
                "download_not_found",
            ),
            (
                OrchestratorError::WrongState { job, state: JobState::Running, problem: "x".into() },
                409,
                "wrong_state",
            ),
            (OrchestratorError::QueueFull { queued: 9, retry_after_s: 3 }, 429, "queue_full"),
            (OrchestratorError::TooManySandboxes { count: 9, retry_after_s: 3 }, 429, "too_many_sandboxes"),
            (OrchestratorError::IdempotencyMismatch, 422, "idempotency_mismatch"),
            (OrchestratorError::IdempotencyPending, 409, "idempotency_pending"),
            (OrchestratorError::ModelConfigured { by: "the file".into() }, 409, "model_configured"),
            (StoreError::DiskFull.into(), 507, "server_disk_full"),
            (OrchestratorError::HostDiskFull { free_mib: 1, needed_mib: 2 }, 503, "host_disk_full"),
            (StoreError::Closed.into(), 503, "shutting_down"),
            (StoreError::Busy.into(), 503, "store_busy"),
            (StoreError::Fenced(job).into(), 500, "fenced"),
            (StoreError::Failed { what: "x".into(), source: "y".into() }.into(), 500, "store_failed"),
            (StoreError::Unreadable { what: "x".into(), source: "y".into() }.into(), 500, "store_unreadable"),
            (StoreError::Unavailable { why: "read-only".into() }.into(), 503, "store_unavailable"),
            (file(FileErrorCode::OutsideWorkspace), 403, "path_outside_workspace"),
            (file(FileErrorCode::InvalidPath), 400, "invalid_path"),
            (file(FileErrorCode::NotFound), 404, "file_not_found"),
            (file(FileErrorCode::Exists), 409, "file_exists"),
            (file(FileErrorCode::NotFile), 409, "not_a_file"),
            (file(FileErrorCode::LinkLoop), 409, "link_loop"),
            (file(FileErrorCode::DiskFull), 507, "disk_full"),
            (file(FileErrorCode::TooLarge), 413, "file_too_large"),
        ];
        for (error, status, code) in table {
            let problem = Problem::from(error);
            assert_eq!((problem.status().as_u16(), problem.code()), (status, code));
        }
    }

    #[test]
    fn invalid_field_is_reported_separately() {
        let invalid = InvalidField { field: "steps[2].timeout_s".into(), problem: "is not a time".into() };
        let problem = Problem::from(OrchestratorError::Invalid(invalid));
        let json: serde_json::Value = serde_json::from_slice(&problem.to_json()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "about:blank", "title": "Unprocessable Entity", "status": 422,
                "detail": "is not a time", "code": "invalid_field", "field": "steps[2].timeout_s"
            })
        );
    }

    #[test]
    fn unavailable_store_sets_retry_after() {
        for error in [StoreError::Busy, StoreError::Unavailable { why: "no".into() }] {
            let response = Problem::from(OrchestratorError::from(error)).into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(response.headers()[header::RETRY_AFTER], "5");
        }
    }

    #[test]
    fn full_queue_sets_retry_after() {
        let response =
            Problem::from(OrchestratorError::QueueFull { queued: 9, retry_after_s: 3 }).into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    }

    #[test]
    fn source_of_an_internal_error_is_not_exposed() {
        let source = std::io::Error::other("secret path");
        let error = OrchestratorError::Io { doing: "reading the log".into(), source };
        let problem = Problem::from(error);
        assert_eq!(problem.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!String::from_utf8(problem.to_json()).unwrap().contains("secret"));
    }
}
