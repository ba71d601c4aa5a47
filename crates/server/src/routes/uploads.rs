//! Submits a job together with its files, as a multipart form.
//!
//! The job is stored as a draft, the files stream to disk one after another, then the job starts. If anything fails,
//! the draft is removed and the error names the part. A form that is sent again under the same idempotency key is
//! read and compared with the first one, but not stored.

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use job::{JobId, NewJob, Submitter};
use orchestrator::{
    Accepted, Afterwards, ArchiveKind, Bringing, Orchestrator, OrchestratorError, Repeated, Submission,
};
use protocol::FileErrorCode;
use serde_json::Value;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::extract::{AppState, WorkspacePath, parse_json, parse_list, parse_task};
use crate::problem::Problem;

/// The part whose content is unpacked into the workspace.
const ARCHIVE: &str = "archive";

/// A plain-text task.
#[derive(ToSchema)]
#[schema(value_type = String, example = "Write a poem about caissons into poem.txt")]
#[expect(dead_code, reason = "for the document alone")]
pub(crate) struct TaskText(String);

/// A job with files.
#[derive(ToSchema)]
#[expect(dead_code, reason = "for the document alone")]
pub(crate) struct JobForm {
    /// The job as JSON. It, `task` or `steps` must come before the files.
    #[schema(required = false)]
    job: String,
    /// The task of the job.
    #[schema(required = false)]
    task: String,
    /// The steps of the job as JSON.
    #[schema(required = false)]
    steps: String,
    /// A .zip, .tar or .tar.gz to unpack into the workspace; repeatable.
    #[schema(required = false, value_type = String, format = Binary)]
    archive: Vec<u8>,
    /// Any other part is a file. Its file name, or else the part's name, is its path in the workspace. Put other fields of a job
    /// into `job`.
    #[schema(required = false, value_type = String, format = Binary)]
    file: Vec<u8>,
}

pub(crate) fn is_multipart(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("multipart/form-data")
}

/// Receives a job and its files.
pub(crate) async fn submit_form(
    state: &AppState,
    request: Request,
    idempotency_key: Option<String>,
    submitter: Option<Submitter>,
) -> Result<Accepted, Problem> {
    let form = Multipart::from_request(request, state)
        .await
        .map_err(|error| Problem::bad_request("malformed_form", error.body_text()))?;
    let upload = FormUpload {
        orchestrator: state.orchestrator.clone(),
        text_bytes_left: state.limits.max_bytes(),
        idempotency_key,
        submitter,
        job: None,
        accepted: None,
        afterwards: Afterwards::Start,
        content: Content::default(),
    };
    // Run in a separate task: if the caller disconnects in the middle, the draft must still be removed.
    tokio::spawn(upload.run(form))
        .await
        .unwrap_or_else(|_| Err(Problem::internal("taking the files in was broken off")))
}

struct FormUpload {
    orchestrator: Orchestrator,
    /// How many bytes the parts that describe the job may still take.
    text_bytes_left: usize,
    idempotency_key: Option<String>,
    submitter: Option<Submitter>,
    /// The job as described so far.
    job: Option<NewJob>,
    /// The stored draft; set when the first file begins.
    accepted: Option<Accepted>,
    afterwards: Afterwards,
    content: Content,
}

impl FormUpload {
    async fn run(mut self, form: Multipart) -> Result<Accepted, Problem> {
        let outcome = Box::pin(self.read(form)).await;
        match (outcome, self.accepted) {
            (Ok(()), Some(accepted)) => Ok(accepted),
            (Ok(()), None) => Err(Problem::internal("the job was not stored")),
            (Err(problem), Some(accepted)) if accepted.repeated == Repeated::No => {
                let draft = accepted.view.job_id;
                if let Err(error) = self.orchestrator.discard_draft(draft).await {
                    tracing::warn!(job = %draft, %error, "the draft of a refused upload stays");
                }
                Err(problem)
            }
            (Err(problem), _) => Err(problem),
        }
    }

    async fn read(&mut self, mut form: Multipart) -> Result<(), Problem> {
        while let Some(field) = form.next_field().await.map_err(|error| malformed(&error))? {
            let name = field.name().unwrap_or_default().to_owned();
            let describes = name == "job" || (field.file_name().is_none() && is_job_field(&name));
            if describes {
                let text = self.read_text(field, &name).await?;
                self.describe(&name, &text).map_err(|problem| with_part_name(problem, &name))?;
                continue;
            }
            self.content.begin_part(&name, field.file_name());
            match self.draft().await? {
                Draft::New(draft) => self.store_file(draft, field, &name).await,
                Draft::Existing(_) => self.content.read(field).await,
            }
            .map_err(|problem| with_part_name(problem, &name))?;
        }
        let draft = self.draft().await?;
        let digest = std::mem::take(&mut self.content).digest();
        match draft {
            Draft::New(draft) => {
                let view = self.orchestrator.finish_form_upload(draft, &digest, self.afterwards).await?;
                self.accepted = Some(Accepted { hint: view.hint(), view, repeated: Repeated::No });
            }
            Draft::Existing(job) => self.orchestrator.check_repeated_form(job, &digest).await?,
        }
        Ok(())
    }

    async fn read_text(&mut self, mut field: Field<'_>, name: &str) -> Result<Bytes, Problem> {
        let mut text = BytesMut::new();
        while let Some(piece) = field.chunk().await.map_err(|error| malformed(&error))? {
            let Some(left) = self.text_bytes_left.checked_sub(piece.len()) else {
                let detail =
                    "the parts that describe the job are too large; large content belongs into files";
                let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail);
                return Err(with_part_name(problem, name));
            };
            self.text_bytes_left = left;
            text.extend_from_slice(&piece);
        }
        Ok(text.freeze())
    }

    fn describe(&mut self, name: &str, text: &[u8]) -> Result<(), Problem> {
        if self.accepted.is_some() {
            return Err(Problem::invalid_field(name, "must come before the files"));
        }
        let job = self.job.get_or_insert_default();
        match name {
            "task" if job.task.is_none() => job.task = parse_task(text)?.task,
            "steps" if job.steps.is_none() => job.steps = Some(parse_list(name, text)?),
            "job" if serde_json::to_value(&*job).is_ok_and(|job| job == serde_json::json!({})) => {
                *job = parse_json(text)?;
            }
            "task" | "steps" | "job" => return Err(Problem::invalid_field(name, "was already given")),
            _ => *job = with_field(job, name, text)?,
        }
        Ok(())
    }

    /// Returns the draft, and stores it on the first call.
    async fn draft(&mut self) -> Result<Draft, Problem> {
        if self.accepted.is_none() {
            let Some(mut job) = self.job.take() else {
                let detail = "the form must begin with the job: a part `job` (JSON), or its fields, such as `task` (text) or `steps` (JSON)";
                return Err(Problem::invalid_field("job", detail));
            };
            if job.start == Some(false) {
                self.afterwards = Afterwards::Keep;
            }
            job.start = Some(false);
            let submission = Submission {
                job,
                idempotency_key: self.idempotency_key.take(),
                submitter: self.submitter.take(),
                bringing: Bringing::Files,
            };
            self.accepted = Some(self.orchestrator.submit(submission).await?);
        }
        let accepted = self.accepted.as_ref().ok_or_else(|| Problem::internal("the job was not stored"))?;
        let job = accepted.view.job_id;
        Ok(if accepted.repeated == Repeated::No { Draft::New(job) } else { Draft::Existing(job) })
    }

    async fn store_file(&mut self, draft: JobId, field: Field<'_>, name: &str) -> Result<(), Problem> {
        let file_name = field.file_name().unwrap_or(name).to_owned();
        let content = &mut self.content;
        let read = field.map_err(std::io::Error::other).inspect_ok(|piece| content.add(piece));
        let body = Box::pin(read);
        if name == ARCHIVE {
            let Some(kind) = ArchiveKind::of_name(&file_name) else {
                let detail = format!(
                    "`{}` is not a supported archive; its name must end with .zip, .tar, .tar.gz or .tgz",
                    file_name.escape_debug()
                );
                return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_archive", detail));
            };
            return match self.orchestrator.upload_archive(draft, kind, body).await {
                Err(OrchestratorError::File(error)) if error.code == FileErrorCode::Other => {
                    Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "broken_archive", error.message))
                }
                other => Ok(other?),
            };
        }
        let path = WorkspacePath::parse(&file_name).and_then(WorkspacePath::into_file)?;
        self.orchestrator.upload_file(draft, &path, None, body).await?;
        Ok(())
    }
}

/// Whether a job has a field of this name. As a file it would be ignored for the job, so it is rejected.
fn is_job_field(name: &str) -> bool {
    serde_json::from_value::<NewJob>(serde_json::json!({ name: null })).is_ok()
}

/// The job with one more field, from a part such as `model`: JSON, or plain text where the field takes text.
fn with_field(job: &NewJob, name: &str, text: &[u8]) -> Result<NewJob, Problem> {
    let wrong = |detail: &str| Problem::invalid_field(name, detail);
    let text = std::str::from_utf8(text).map_err(|_| wrong("is not UTF-8 text"))?;
    let Ok(Value::Object(fields)) = serde_json::to_value(job) else {
        return Err(Problem::internal("the job cannot be read"));
    };
    if fields.contains_key(name) {
        return Err(wrong("was already given"));
    }
    let with = |value: Value| {
        let mut fields = fields.clone();
        fields.insert(name.to_owned(), value);
        job::read::<NewJob, _>(Value::Object(fields))
    };
    let json = serde_json::from_str::<Value>(text).ok();
    let (json, first) = match json {
        Some(json) if json.is_object() || json.is_array() => (None, json),
        json => (json, Value::from(text)),
    };
    let parsed = with(first).or_else(|error| json.map_or(Err(error), with));
    // The caller adds the name of the part to the path of a field within it.
    parsed.map_err(|error| Problem::invalid_field(error.field.as_str(), error.sentence("field", "the form")))
}

/// The job that a form refers to.
#[derive(Debug, Clone, Copy)]
enum Draft {
    /// A new draft that waits for its files.
    New(JobId),
    /// The job that an earlier submission of the same form created.
    Existing(JobId),
}

/// A digest over the files of a form, to recognise the same form.
#[derive(Default)]
struct Content {
    parts: Sha256,
    current: Option<Sha256>,
}

impl Content {
    fn begin_part(&mut self, name: &str, file_name: Option<&str>) {
        self.end_part();
        for text in [name, file_name.unwrap_or_default()] {
            self.parts.update(Sha256::digest(text));
        }
        self.current = Some(Sha256::new());
    }

    fn add(&mut self, piece: &Bytes) {
        if let Some(current) = &mut self.current {
            current.update(piece);
        }
    }

    fn end_part(&mut self) {
        if let Some(current) = self.current.take() {
            self.parts.update(current.finalize());
        }
    }

    /// Hashes a file without storing it.
    async fn read(&mut self, mut field: Field<'_>) -> Result<(), Problem> {
        while let Some(piece) = field.chunk().await.map_err(|error| malformed(&error))? {
            self.add(&piece);
        }
        Ok(())
    }

    fn digest(mut self) -> String {
        self.end_part();
        self.parts.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Names the form part in a problem.
fn with_part_name(problem: Problem, name: &str) -> Problem {
    let field = match problem.field() {
        Some(field)
            if field
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])) =>
        {
            field.to_owned()
        }
        // A field inside `job` is named as if the job had been sent as JSON.
        Some(field) if name == "job" => field.to_owned(),
        Some(field) => format!("{name}{field}"),
        None => name.to_owned(),
    };
    problem.with_field(field)
}

fn malformed(error: &MultipartError) -> Problem {
    Problem::bad_request("malformed_form", format!("the form cannot be read: {}", error.body_text()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn multipart_forms_are_recognised_by_content_type() {
        let is = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
            is_multipart(&headers)
        };
        assert!(is("multipart/form-data; boundary=x"));
        assert!(is("Multipart/Form-Data;boundary=x"));
        assert!(!is("application/json"));
        assert!(!is_multipart(&HeaderMap::new()));
    }

    #[test]
    fn parts_are_fields_of_the_job_as_text_or_json() {
        let mut job = NewJob::from_task("look".into());
        let parts =
            [("model", "openai/gpt-5"), ("name", "5"), ("priority", "5"), ("limits", "{\"memory_mib\": 64}")];
        for (name, text) in parts {
            job = with_field(&job, name, text.as_bytes()).unwrap();
        }
        let wanted = serde_json::json!({
            "task": "look", "model": "openai/gpt-5", "name": "5", "priority": 5, "limits": {"memory_mib": 64}
        });
        assert_eq!(serde_json::to_value(&job).unwrap(), wanted);
        for (name, text) in [("model", "again"), ("priority", "high"), ("approve_plan", "perhaps")] {
            assert_eq!(with_field(&job, name, text.as_bytes()).unwrap_err().field(), Some(name));
        }
        let refused = with_field(&job, "desktop", b"{\"width\": \"wide\"}").unwrap_err();
        assert_eq!(refused.field(), Some("desktop.width"));
        let leaked = job::SERDE_WORDING.iter().find(|words| refused.detail().contains(*words));
        assert_eq!(leaked, None, "{}", refused.detail());
    }

    #[test]
    fn problems_name_the_part() {
        let named = |field: &str, part: &str| {
            with_part_name(Problem::invalid_field(field, "is wrong"), part)
                .field()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(named("", "archive"), "archive");
        assert_eq!(named("steps[0].tool", "job"), "steps[0].tool");
        assert_eq!(named("[0].tool", "steps"), "steps[0].tool");
        assert_eq!(named("steps[0].tool", "steps"), "steps[0].tool");
        assert_eq!(named("desktop.width", "desktop"), "desktop.width");
        assert_eq!(named("task", "task"), "task");
    }
}
