//! The events of a job, live or by page.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use job::{CallRef, Event, JobId, Sequence};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{AccessGrant, CloseSignal};
use crate::extract::{AppState, JobPath, Parameters, Shutdown};
use crate::openapi::{JobProblems, QueryProblems};
use crate::problem::Problem;
use crate::streams::{DeltaSubscription, EventEncoding, EventFollower, LogState};

const MAX_PAGE: usize = 1000;
/// The store counts events in 64 bits with a sign.
const MAX_SEQUENCE: Sequence = i64::MAX.unsigned_abs();
const DEFAULT_PAGE: usize = 100;

/// From where and how to read.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Only events after this sequence number; `Last-Event-ID` takes precedence.
    #[param(value_type = Option<u64>, maximum = 9_223_372_036_854_775_807_i64)]
    after: Option<Sequence>,
    /// Overrides `Accept`.
    format: Option<EventFormat>,
    /// `true`: also send `delta` events with model output as it arrives: `turn`, `text`, `reasoning`, and `restarted` if the
    /// earlier output of the turn is void. They are not in the log and have no id; the event `model_answered` has the whole
    /// answer.
    deltas: Option<bool>,
    /// Page size of the format `json`; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// One message of the stream, as clients of server-sent events read it.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only described; the stream writes it")]
pub(crate) struct EventMessage {
    /// The sequence number; absent if the message is not in the log.
    id: Option<String>,
    /// The kind; `end` after the last one.
    event: String,
    /// The event ([`EventEntry`]) as JSON.
    data: String,
}

/// How events are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EventFormat {
    /// Live, as server-sent events.
    Sse,
    /// Live, one JSON object per line.
    Ndjson,
    /// One page of the events so far.
    Json,
}

impl EventFormat {
    fn negotiate(requested: Option<Self>, headers: &HeaderMap) -> Self {
        let accepts = |media_type: &str| {
            let lists = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
            lists.flat_map(|list| list.split(',')).any(|item| {
                let name = item.split(';').next().unwrap_or_default().trim();
                name.eq_ignore_ascii_case(media_type)
            })
        };
        match requested {
            Some(format) => format,
            None if accepts("text/event-stream") => Self::Sse,
            None if accepts("application/x-ndjson") => Self::Ndjson,
            None if accepts("application/json") => Self::Json,
            None => Self::Sse,
        }
    }
}

/// A page of events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventPage {
    /// In order, without gaps.
    #[schema(value_type = Vec<EventEntry>)]
    events: Vec<Event>,
    /// `after` of the next page.
    #[schema(value_type = u64)]
    next: Sequence,
    /// Whether the job has ended. If so and the page is empty, there are no more events.
    is_over: bool,
}

/// One entry of a job's log.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes an event in the document")]
pub(crate) struct EventEntry {
    /// Sequence number, from 1, without gaps.
    #[schema(value_type = u64)]
    sequence: Sequence,
    /// Milliseconds since 1970.
    time_ms: i64,
    /// The kind of event: `job_created`, `state_changed`, `call_started`, `call_output`, `call_ended`, `artifact_stored`, ...
    #[schema(example = "state_changed")]
    kind: String,
    /// The call that the event belongs to.
    call: Option<CallRef>,
    /// The data of this kind of event.
    #[schema(value_type = Object)]
    data: (),
}

/// Stream the events of a job
///
/// Server-sent events: `id` is the sequence number, `event` the kind, `data` the event as JSON. After a lost connection,
/// `Last-Event-ID` resumes the stream without gaps or duplicates. After the last event the server sends `event: end` and
/// closes the stream. `Accept: application/x-ndjson` returns lines of JSON; `Accept: application/json` or `?format=json`
/// returns one page of the events so far.
#[utoipa::path(
    get, path = "/events", tag = "jobs", operation_id = "job_events",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("Last-Event-ID" = Option<u64>, Header, maximum = 9_223_372_036_854_775_807_i64, description = "Sequence number of the last received event"),
        EventQuery,
    ),
    responses(
        (status = 200, description = "The events", content(
            (EventMessage = "text/event-stream"),
            (EventEntry = "application/x-ndjson"),
            (EventPage = "application/json"),
        )),
        JobProblems,
        QueryProblems
    )
)]
pub(crate) async fn events(
    State(state): State<AppState>,
    JobPath(job): JobPath,
    Parameters(query): Parameters<EventQuery>,
    shutdown: Shutdown,
    Extension(grant): Extension<AccessGrant>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let after = start_of(&query, &headers)?;
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        let detail = format!("{limit} is not between 1 and {MAX_PAGE}");
        return Err(Problem::bad_request("invalid_query", detail).with_field("limit"));
    }
    // Check before reading: a job that is over now writes no events after those read below.
    let is_over = state.orchestrator.job(job).await?.state.is_over();
    let encoding = match EventFormat::negotiate(query.format, &headers) {
        EventFormat::Sse => EventEncoding::ServerSent,
        EventFormat::Ndjson => EventEncoding::Lines,
        EventFormat::Json => {
            let events = state.orchestrator.events(job, after, limit).await?;
            let next = events.last().map_or(after, |event| event.sequence);
            return Ok(Json(EventPage { events, next, is_over }).into_response());
        }
    };
    let follower = EventFollower {
        orchestrator: state.orchestrator,
        job,
        after,
        log_state: if is_over { LogState::Complete } else { LogState::Open },
        deltas: if query.deltas == Some(true) { DeltaSubscription::on() } else { DeltaSubscription::Off },
        encoding,
        heartbeat: state.settings.heartbeat,
        closing: CloseSignal::new(Some(grant), &shutdown.0),
    };
    let mut response = Body::from_stream(follower.follow()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(encoding.media_type()));
    // Reverse proxies must not buffer events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// `Last-Event-ID` takes precedence over `after`: a browser reconnects with its original URL.
fn start_of(query: &EventQuery, headers: &HeaderMap) -> Result<Sequence, Problem> {
    let Some(value) = headers.get("last-event-id") else {
        return match query.after.unwrap_or(0) {
            after if after <= MAX_SEQUENCE => Ok(after),
            after => {
                let detail = format!("{after} is not between 0 and {MAX_SEQUENCE}");
                Err(Problem::bad_request("invalid_query", detail).with_field("after"))
            }
        };
    };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.filter(|number| *number <= MAX_SEQUENCE).ok_or_else(|| {
        Problem::bad_request(
            "bad_sequence",
            "the Last-Event-ID header must be the sequence number of an event",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        headers
    }

    #[test]
    fn the_format_is_negotiated() {
        let table = [
            (None, "*/*", EventFormat::Sse),
            (None, "text/event-stream", EventFormat::Sse),
            (None, "application/x-ndjson", EventFormat::Ndjson),
            (None, "text/html, application/json;q=0.9", EventFormat::Json),
            (None, "application/json, text/event-stream", EventFormat::Sse),
            (Some(EventFormat::Json), "text/event-stream", EventFormat::Json),
        ];
        for (requested, accept, expected) in table {
            assert_eq!(EventFormat::negotiate(requested, &headers("accept", accept)), expected, "{accept}");
        }
        assert_eq!(EventFormat::negotiate(None, &HeaderMap::new()), EventFormat::Sse);
    }

    #[test]
    fn last_event_id_resumes_the_stream() {
        let query = EventQuery { after: Some(3), ..EventQuery::default() };
        assert_eq!(start_of(&query, &HeaderMap::new()).unwrap(), 3);
        assert_eq!(start_of(&query, &headers("last-event-id", "17")).unwrap(), 17);
        assert_eq!(start_of(&EventQuery::default(), &HeaderMap::new()).unwrap(), 0);
        for bad in ["-1", "x", ""] {
            assert_eq!(start_of(&query, &headers("last-event-id", bad)).unwrap_err().code(), "bad_sequence");
        }
    }
}
