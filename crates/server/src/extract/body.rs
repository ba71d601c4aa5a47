//! Extractors that read request bodies. They limit size, time and concurrency, and their errors name the invalid
//! field.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use job::NewJob;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::json::{looks_like_json, looks_like_json_list, parse_json};
use crate::problem::Problem;
use crate::settings::ServerSettings;

/// Bodies up to this size do not need a permit for large bodies.
const SMALL_BODY_BYTES: usize = 64 * 1024;

const TYPE_HINT: &str = "send JSON with -H 'Content-Type: application/json'";
const TASK_HINT: &str = "send JSON with -H 'Content-Type: application/json', or a task as plain text with -H 'Content-Type: text/plain'";

/// Limits on request bodies.
#[derive(Debug, Clone)]
pub(crate) struct BodyLimits {
    max_bytes: usize,
    timeout: Duration,
    large: Arc<Semaphore>,
}

impl BodyLimits {
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    pub(crate) fn new(settings: &ServerSettings) -> Self {
        Self {
            max_bytes: settings.max_json_bytes,
            timeout: settings.request_timeout,
            large: Arc::new(Semaphore::new(settings.max_large_bodies.max(1))),
        }
    }
}

/// A JSON body of type `T`.
pub(crate) struct JsonBody<T>(pub(crate) T);

/// An optional JSON body of type `T`.
pub(crate) struct OptionalBody<T>(pub(crate) T);

/// A job, as JSON or as a plain-text task.
pub(crate) struct JobBody(pub(crate) NewJob);

impl<S, T> FromRequest<S> for JsonBody<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
    BodyLimits: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let form = BodyKind::of(request.headers());
        if matches!(form, BodyKind::Text | BodyKind::Other) {
            return Err(wrong_type(request.headers(), TYPE_HINT));
        }
        let (parts, body) = request.into_parts();
        let received = receive(&parts.headers, body, &BodyLimits::from_ref(state)).await?;
        if form == BodyKind::Unspecified && !looks_like_json(&received.bytes) {
            return Err(wrong_type(&parts.headers, TYPE_HINT));
        }
        parse_json(&received.bytes).map(Self)
    }
}

impl<S, T> FromRequest<S> for OptionalBody<T>
where
    S: Send + Sync,
    T: DeserializeOwned + Default,
    BodyLimits: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let received = receive(&parts.headers, body, &BodyLimits::from_ref(state)).await?;
        if matches!(received.bytes.trim_ascii(), b"" | b"null") {
            return Ok(Self(T::default()));
        }
        let whole = Request::from_parts(parts, Body::from(received.bytes));
        JsonBody::from_request(whole, state).await.map(|JsonBody(value)| Self(value))
    }
}

impl<S> FromRequest<S> for JobBody
where
    S: Send + Sync,
    BodyLimits: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let form = BodyKind::of(request.headers());
        if form == BodyKind::Other {
            return Err(wrong_type(request.headers(), TASK_HINT));
        }
        let (parts, body) = request.into_parts();
        let received = receive(&parts.headers, body, &BodyLimits::from_ref(state)).await?;
        match form {
            BodyKind::Text => parse_task(&received.bytes).map(Self),
            BodyKind::Unspecified => parse_untyped(&received.bytes).map(Self),
            _ => parse_json(&received.bytes).map(Self),
        }
    }
}

/// The kind of body that the `Content-Type` header announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyKind {
    Json,
    Text,
    /// No usable type. `curl -d` sends the form type by default, so that counts as none.
    Unspecified,
    Other,
}

impl BodyKind {
    fn of(headers: &HeaderMap) -> Self {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Self::Unspecified };
        let Ok(value) = value.to_str() else { return Self::Other };
        let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match media_type.as_str() {
            "application/json" | "text/json" => Self::Json,
            "text/plain" => Self::Text,
            "" | "application/x-www-form-urlencoded" => Self::Unspecified,
            other if other.starts_with("application/") && other.ends_with("+json") => Self::Json,
            _ => Self::Other,
        }
    }
}

fn wrong_type(headers: &HeaderMap, hint: &str) -> Problem {
    let detail = match headers.get(header::CONTENT_TYPE) {
        Some(sent) => {
            format!("unsupported content type `{}`; {hint}", String::from_utf8_lossy(sent.as_bytes()))
        }
        None => format!("the request has no content type; {hint}"),
    };
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
}

/// A complete body, with the permit to hold a large one in memory.
struct Received {
    bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

async fn receive(headers: &HeaderMap, body: Body, limits: &BodyLimits) -> Result<Received, Problem> {
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.max_bytes as u64) {
        return Err(too_large(limits));
    }
    tokio::time::timeout(limits.timeout, collect(body, limits)).await.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} s", limits.timeout.as_secs_f64());
        Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", detail))
    })
}

async fn collect(body: Body, limits: &BodyLimits) -> Result<Received, Problem> {
    let mut chunks = body.into_data_stream();
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut permit = None;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            Problem::bad_request("body_incomplete", format!("the body is incomplete: {error}"))
        })?;
        let size = first.len() + rest.len() + chunk.len();
        if size > limits.max_bytes {
            return Err(too_large(limits));
        }
        if size > SMALL_BODY_BYTES && permit.is_none() {
            permit = Arc::clone(&limits.large).acquire_owned().await.ok();
        }
        // Most bodies are a single chunk; do not copy those.
        if first.is_empty() && rest.is_empty() {
            first = chunk;
        } else {
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&chunk);
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(Received { bytes, _permit: permit })
}

fn too_large(limits: &BodyLimits) -> Problem {
    let detail = format!(
        "the body is larger than {} bytes; upload large content as files (PUT /v1/jobs/{{id}}/files/...)",
        limits.max_bytes
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
}

pub(crate) fn parse_task(bytes: &[u8]) -> Result<NewJob, Problem> {
    match std::str::from_utf8(bytes) {
        Ok(task) => Ok(NewJob::from_task(task.to_owned())),
        Err(error) => {
            let detail =
                format!("the task is not UTF-8 text: invalid byte at position {}", error.valid_up_to());
            Err(Problem::bad_request("malformed_text", detail))
        }
    }
}

/// Parses a job of unknown type: JSON, or else a task. `curl -d` announces a form, but few clients mean one.
fn parse_untyped(bytes: &[u8]) -> Result<NewJob, Problem> {
    let is_json = looks_like_json(bytes) || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
    if is_json || looks_like_json_list(bytes) || bytes.trim_ascii().is_empty() {
        return parse_json(bytes);
    }
    if let Some(field) = form_field(bytes) {
        let detail = format!(
            "the body is a form with the field `{field}`, and forms of this type are not accepted; send only the task, as in \
             -d 'Write a poem' (if it really begins with `{field}=`, add -H 'Content-Type: text/plain'), or {TYPE_HINT}"
        );
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail));
    }
    parse_task(bytes)
}

/// The name of the first field if the body looks like a form: a name, and `=` directly after it.
fn form_field(bytes: &[u8]) -> Option<&str> {
    let (name, _) = std::str::from_utf8(bytes).ok()?.split_once('=')?;
    let is_letter = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'[' | b']' | b'%' | b'+')
    };
    (!name.is_empty() && name.bytes().all(is_letter)).then_some(name)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn limits() -> BodyLimits {
        BodyLimits::new(&ServerSettings { max_json_bytes: 200_000, ..ServerSettings::default() })
    }

    async fn job(content_type: Option<&str>, body: impl Into<Body>) -> Result<NewJob, Problem> {
        let mut request = Request::new(body.into());
        if let Some(value) = content_type {
            request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::try_from(value).unwrap());
        }
        JobBody::from_request(request, &limits()).await.map(|JobBody(job)| job)
    }

    #[tokio::test]
    async fn the_content_type_decides_how_a_job_is_read() {
        let json = r#" {"task":"x"}"#;
        for media_type in [
            Some("application/json"),
            Some("Application/JSON; charset=utf-8"),
            Some("application/vnd.caisson+json"),
            Some("application/x-www-form-urlencoded"),
            None,
        ] {
            assert_eq!(job(media_type, json).await.unwrap().task.as_deref(), Some("x"), "{media_type:?}");
        }
        assert_eq!(job(Some("text/plain"), json).await.unwrap().task.as_deref(), Some(json));
        let problem = job(Some("multipart/form-data"), "make a page").await.unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (415, "unsupported_media_type"));
        assert!(problem.detail().contains("-H 'Content-Type: application/json'"), "{}", problem.detail());
    }

    #[tokio::test]
    async fn curls_default_content_type_carries_a_task_and_no_form() {
        for media_type in [Some("application/x-www-form-urlencoded"), None] {
            for task in [
                "Build me a todo app",
                "Set x=1 in the config & restart",
                "https://example.org/?a=b explains it",
                "[urgent] repair the build",
                "Mach eine Übersicht = Tabelle",
            ] {
                assert_eq!(
                    job(media_type, task).await.unwrap().task.as_deref(),
                    Some(task),
                    "{media_type:?}"
                );
            }
            for (form, field) in
                [("task=Build+me+an+app", "task"), ("a%5B0%5D=1&b=2", "a%5B0%5D"), ("x=", "x")]
            {
                let problem = job(media_type, form).await.unwrap_err();
                assert_eq!(
                    (problem.status().as_u16(), problem.code()),
                    (415, "unsupported_media_type"),
                    "{form}"
                );
                assert!(problem.detail().contains(&format!("the field `{field}`")), "{}", problem.detail());
            }
            // What was meant as JSON is never a task.
            for (text, code) in [
                ("", "malformed_json"),
                ("{\"task\": \"x\"", "malformed_json"),
                ("[{\"tool\": \"shell\"", "malformed_json"),
                ("[]", "invalid_field"),
                ("\"text\"", "invalid_field"),
            ] {
                assert_eq!(job(media_type, text).await.unwrap_err().code(), code, "{media_type:?}: {text}");
            }
        }
        let problem = job(Some("application/x-www-form-urlencoded"), vec![b'a', 0xff]).await.unwrap_err();
        assert_eq!(problem.code(), "malformed_text");
    }

    #[tokio::test]
    async fn optional_body_is_validated_if_present() {
        let read = async |content_type: Option<&str>, body: &'static str| {
            let mut request = Request::new(Body::from(body));
            if let Some(value) = content_type {
                request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::try_from(value).unwrap());
            }
            let read = OptionalBody::<orchestrator::Takeover>::from_request(request, &limits()).await;
            read.map(|OptionalBody(takeover)| takeover.by)
        };
        for content_type in [None, Some("application/json"), Some("application/x-www-form-urlencoded")] {
            assert_eq!(read(content_type, "").await.unwrap(), None, "{content_type:?}");
            assert_eq!(read(content_type, " {\"by\":\"Ada\"}").await.unwrap().as_deref(), Some("Ada"));
        }
        assert_eq!(read(None, "{\"colour\":1}").await.unwrap_err().code(), "invalid_field");
        assert_eq!(read(None, "Ada").await.unwrap_err().code(), "unsupported_media_type");
    }

    #[tokio::test]
    async fn a_task_must_be_text() {
        let problem = job(Some("text/plain"), vec![b'a', 0xff]).await.unwrap_err();
        assert_eq!(problem.code(), "malformed_text");
    }

    #[tokio::test]
    async fn chunked_body_is_joined() {
        let text = format!("{{\"task\":\"{}\"}}", "x".repeat(100_000));
        let pieces: Vec<Result<Bytes, std::io::Error>> =
            text.as_bytes().chunks(777).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let body = Body::from_stream(futures::stream::iter(pieces));
        assert_eq!(job(Some("application/json"), body).await.unwrap().task.unwrap().len(), 100_000);
    }

    #[tokio::test]
    async fn too_large_content_length_is_rejected_without_reading_the_body() {
        let body = Body::from_stream(futures::stream::poll_fn(
            |_| -> std::task::Poll<Option<Result<Bytes, std::io::Error>>> { panic!("the body was read") },
        ));
        let mut request = Request::new(body);
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("104857600"));
        let problem = JobBody::from_request(request, &limits()).await.map(|_| ()).unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (413, "body_too_large"));
    }

    #[tokio::test]
    async fn endless_body_is_rejected_at_the_limit() {
        let endless =
            futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 4096])));
        assert_eq!(
            job(Some("application/json"), Body::from_stream(endless)).await.unwrap_err().code(),
            "body_too_large"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn missing_body_times_out() {
        let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let problem = job(Some("application/json"), Body::from_stream(never)).await.unwrap_err();
        assert_eq!((problem.status().as_u16(), problem.code()), (408, "body_timeout"));
    }
}
