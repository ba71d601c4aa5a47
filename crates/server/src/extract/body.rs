//! Extractors that read request bodies. They limit size, time and concurrency, and their errors name the invalid
//! field.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use orchestrator::NewJob;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Position, Problem};
use crate::settings::ServerSettings;

/// Bodies up to this size do not need a permit for large bodies.
const SMALL_BODY_BYTES: usize = 64 * 1024;

const TYPE_HINT: &str = "send JSON with -H 'Content-Type: application/json'";
const TASK_HINT: &str = "send JSON with -H 'Content-Type: application/json', or a task in plain words with -H 'Content-Type: text/plain'";

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
            BodyKind::Unspecified if !looks_like_json(&received.bytes) => {
                Err(wrong_type(&parts.headers, TASK_HINT))
            }
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

fn looks_like_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
}

fn wrong_type(headers: &HeaderMap, hint: &str) -> Problem {
    let detail = match headers.get(header::CONTENT_TYPE) {
        Some(sent) => {
            format!("a body of type `{}` is not understood; {hint}", String::from_utf8_lossy(sent.as_bytes()))
        }
        None => format!("the body has no type; {hint}"),
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
            Problem::bad_request("body_incomplete", format!("the body could not be read to its end: {error}"))
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
        "the body is larger than {} bytes; large content belongs into files of the job (PUT /v1/jobs/{{id}}/files/...)",
        limits.max_bytes
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
}

pub(crate) fn parse_task(bytes: &[u8]) -> Result<NewJob, Problem> {
    match std::str::from_utf8(bytes) {
        Ok(task) => Ok(NewJob::from_task(task.to_owned())),
        Err(error) => {
            let detail = format!("the task is not UTF-8 text: byte {} is wrong", error.valid_up_to());
            Err(Problem::bad_request("malformed_text", detail))
        }
    }
}

/// Parses a JSON object. If that fails, parses it once more to find the path of the invalid field.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // serde would accept an array as the fields of a struct, in their order.
    if !looks_like_json(bytes) {
        return Err(match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
            Ok(_) => Problem::invalid_field("", "the body must be a JSON object: {...}"),
            Err(error) => malformed(bytes, &error),
        });
    }
    serde_json::from_slice(bytes).map_err(|error| explain::<T>(bytes, &error))
}

pub(crate) fn parse_list<T: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<T>, Problem> {
    serde_json::from_slice(bytes).map_err(|error| explain::<Vec<T>>(bytes, &error))
}

fn explain<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Problem {
    if error.classify() != serde_json::error::Category::Data {
        return malformed(bytes, error);
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Ok(_) => malformed(bytes, error),
        Err(found) => {
            let message = without_position(found.inner());
            Problem::invalid_field(field_path(&found.path().to_string(), &message), message)
        }
    }
}

fn malformed(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let detail = if bytes.trim_ascii().is_empty() {
        "the body is empty, a JSON object was expected".to_owned()
    } else {
        format!(
            "the body is not JSON: {} at line {} column {}",
            without_position(error),
            error.line(),
            error.column()
        )
    };
    let position = Position {
        line: u32::try_from(error.line()).unwrap_or(u32::MAX),
        column: u32::try_from(error.column()).unwrap_or(u32::MAX),
    };
    Problem::bad_request("malformed_json", detail).at(position)
}

/// The message without the " at line 1 column 2" that `serde_json` appends.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    with_plain_number_types(text.strip_suffix(&position).unwrap_or(&text))
}

/// The message with Rust's integer type names replaced by plain words.
fn with_plain_number_types(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let plain = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        _ => return message.to_owned(),
    };
    format!("{found}, expected {plain}")
}

/// The path of the invalid field. For an unknown or missing field, serde names it in the message and not always in
/// the path.
fn field_path(path: &str, message: &str) -> String {
    let path = if path == "." { "" } else { path };
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split_once('`').map(|(name, _)| name))
        .or_else(|| message.starts_with("unknown tool `").then_some("tool"));
    match named {
        None => path.to_owned(),
        Some(name) if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) => format!("{path}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn limits() -> BodyLimits {
        BodyLimits::new(&ServerSettings { max_json_bytes: 200_000, ..ServerSettings::default() })
    }

    fn refusal(json: &str) -> Problem {
        parse_json::<NewJob>(json.as_bytes()).unwrap_err()
    }

    async fn job(content_type: Option<&str>, body: impl Into<Body>) -> Result<NewJob, Problem> {
        let mut request = Request::new(body.into());
        if let Some(value) = content_type {
            request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::try_from(value).unwrap());
        }
        JobBody::from_request(request, &limits()).await.map(|JobBody(job)| job)
    }

    #[test]
    fn number_errors_use_plain_words() {
        let problem = refusal(r#"{"task": "x", "budget": {"turns": -1}}"#);
        let detail = problem.detail();
        assert!(detail.contains("integer `-1`, expected a whole number, 0 or more"), "{detail}");
        let problem = refusal(r#"{"task": "x", "budget": {"money_usd": "1"}}"#);
        assert!(problem.detail().ends_with("expected a number"), "{}", problem.detail());
    }

    #[test]
    fn malformed_json_reports_line_and_column() {
        let problem = refusal("{\n  \"task\": \"x\",,\n}");
        assert_eq!((problem.status().as_u16(), problem.code()), (400, "malformed_json"));
        assert!(problem.detail().contains("at line 2 column 15"), "{}", problem.detail());
        let json: serde_json::Value = serde_json::from_slice(&problem.to_json()).unwrap();
        assert_eq!((&json["line"], &json["column"]), (&2.into(), &15.into()));
        for text in ["", "{", "[1", "{\"task\": \"x\"} more", "nul", "{\"task\":\"\u{1}\"}"] {
            assert_eq!(refusal(text).code(), "malformed_json", "{text}");
        }
        assert!(refusal("  ").detail().contains("the body is empty"));
    }

    #[test]
    fn deep_nesting_is_refused_and_does_not_exhaust_the_stack() {
        let deep = format!("{{\"egress\":{}", "[".repeat(100_000));
        assert_eq!(refusal(&deep).code(), "malformed_json");
    }

    #[test]
    fn invalid_fields_are_named_with_their_path() {
        let table = [
            (r#"{"colour":"red"}"#, "colour", "unknown field"),
            (r#"{"task":5}"#, "task", "invalid type: integer `5`"),
            (r#"{"limits":{"memory_mib":"much"}}"#, "limits.memory_mib", "invalid type: string"),
            (r#"{"limits":{"speed":1}}"#, "limits.speed", "unknown field"),
            (r#"{"steps":[{"tool":"fly"}]}"#, "steps[0].tool", "unknown tool `fly`"),
            (r#"{"steps":[{"command":"ls"}]}"#, "steps[0].tool", "missing field"),
            (
                r#"{"steps":[{"tool":"shell","command":"ls"},{"tool":"shell"}]}"#,
                "steps[1].command",
                "missing field",
            ),
            (r#"{"steps":[{"tool":"shell","command":"ls","colour":1}]}"#, "steps[0].colour", "unknown field"),
            (r#"{"steps":{}}"#, "steps", "expected a sequence"),
            (r#"["task"]"#, "", "must be a JSON object"),
            (r#"{"task":"a","task":"b"}"#, "task", "duplicate field"),
        ];
        for (json, field, text) in table {
            let problem = refusal(json);
            assert_eq!((problem.status().as_u16(), problem.code()), (422, "invalid_field"), "{json}");
            assert_eq!(problem.field().unwrap_or_default(), field, "{json}: {}", problem.detail());
            assert!(problem.detail().contains(text), "{json}: {}", problem.detail());
            assert!(!problem.detail().contains("line 1"), "{json}: {}", problem.detail());
        }
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
        for media_type in [Some("application/x-www-form-urlencoded"), None, Some("multipart/form-data")] {
            let problem = job(media_type, "make a page").await.unwrap_err();
            assert_eq!((problem.status().as_u16(), problem.code()), (415, "unsupported_media_type"));
            assert!(problem.detail().contains("-H 'Content-Type: application/json'"), "{}", problem.detail());
        }
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
