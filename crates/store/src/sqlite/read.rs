//! Read queries.

use std::str::FromStr;

use job::{
    Actor, CallRef, Event, EventBody, EventKind, JobFilter, JobId, JobSpec, JobState, JobView, KeyId, Kinds,
    Sequence, StepView,
};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params, params_from_iter};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::write::kind_name;
use super::{failed, payloads};
use crate::error::StoreError;
use crate::{EventPage, Removable};

type Result<T> = std::result::Result<T, StoreError>;

/// A page of events ends after this many bytes, but has at least one event.
const MAX_PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of a decompressed payload.
const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;

fn undecodable(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Unreadable { what: what.into(), source: source.into() }
}

pub(super) fn parse_id(text: &str) -> Result<JobId> {
    JobId::from_str(text).map_err(|error| undecodable("a job id", error))
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| undecodable("a value", error))
}

pub(super) fn decode<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| undecodable(what, error))
}

/// How the JSON of an event's body starts.
fn opening(kind: &str) -> String {
    format!("{{\"kind\":\"{kind}\",\"data\":")
}

/// How a payload with an actor starts. The actor is part of the payload so that the hash chain covers it. Only this
/// code writes it as the first field, so nothing that an event contains can forge it.
const DONE_BY: &str = "{\"actor\":";

/// The actor of an event, as encoded in its payload.
#[derive(Deserialize)]
struct DoneBy {
    actor: Actor,
}

/// Encodes the data of an event without its kind, which has its own column.
pub(super) fn encode_payload(event: &Event) -> Result<String> {
    let whole = encode(&event.body)?;
    let data = whole.strip_prefix(&opening(event.body.kind().name())).and_then(|rest| rest.strip_suffix('}'));
    let data = data.ok_or_else(|| undecodable("an event", "it has no data"))?;
    let Some(actor) = &event.actor else { return Ok(data.to_owned()) };
    let rest = data.strip_prefix('{').ok_or_else(|| undecodable("an event", "it cannot say who did it"))?;
    let comma = if rest == "}" { "" } else { "," };
    Ok(format!("{DONE_BY}{}{comma}{rest}", encode(actor)?))
}

pub(super) fn decode_payload(kind: &str, payload: &str) -> Result<(Option<Actor>, EventBody)> {
    let body = decode("an event", &format!("{}{payload}}}", opening(kind)))?;
    if !payload.starts_with(DONE_BY) {
        return Ok((None, body));
    }
    let DoneBy { actor } = decode("who did something", payload)?;
    Ok((Some(actor), body))
}

pub(super) fn view(connection: &Connection, job: JobId) -> Result<JobView> {
    let header: String = connection
        .prepare_cached("SELECT header FROM jobs WHERE id = ?1")
        .and_then(|mut query| query.query_row([job.to_string()], |row| row.get(0)).optional())
        .map_err(failed("reading a job"))?
        .ok_or(StoreError::NoJob(job))?;
    let mut view: JobView = decode("a job", &header)?;
    if view.step_count > 0 {
        view.steps = JobView::new(job, view.created_ms, &spec(connection, job)?).steps;
        for step in touched_steps(connection, job)? {
            let index = step.index;
            if let Some(place) = view.steps.get_mut(index) {
                *place = step;
            }
        }
    }
    Ok(view)
}

fn touched_steps(connection: &Connection, job: JobId) -> Result<Vec<StepView>> {
    let texts: Vec<String> = connection
        .prepare_cached("SELECT view FROM steps WHERE job = ?1 ORDER BY position")
        .and_then(|mut query| query.query_map([job.to_string()], |row| row.get(0))?.collect())
        .map_err(failed("reading steps"))?;
    texts.iter().map(|text| decode("a step", text)).collect()
}

pub(super) fn spec(connection: &Connection, job: JobId) -> Result<JobSpec> {
    match events(connection, job, Kinds::All, (0, 1))?.events.pop().map(|event| event.body) {
        Some(EventBody::JobCreated { spec }) => Ok(*spec),
        Some(_) => Err(undecodable("a job", "its log does not start with its creation")),
        None => Err(StoreError::NoJob(job)),
    }
}

pub(super) fn jobs(connection: &Connection, filter: &JobFilter) -> Result<Vec<JobView>> {
    let mut sql = "SELECT header FROM jobs WHERE kind = ?".to_owned();
    let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(kind_name(filter.kind))];
    if !filter.states.is_empty() {
        sql += &format!(" AND state IN ({})", vec!["?"; filter.states.len()].join(", "));
        values.extend(filter.states.iter().map(|state| Box::new(state.name()) as Box<dyn ToSql>));
    }
    if let Some((name, value)) = &filter.label {
        sql += " AND EXISTS (SELECT 1 FROM json_each(header, '$.labels') WHERE key = ? AND value = ?)";
        values.push(Box::new(name.clone()));
        values.push(Box::new(value.clone()));
    }
    if let Some(submitter) = &filter.submitter {
        sql += " AND submitter = ?";
        values.push(Box::new(submitter.as_str().to_owned()));
    }
    if let Some(before) = filter.before {
        sql += " AND id < ?";
        values.push(Box::new(before.to_string()));
    }
    sql += " ORDER BY id DESC LIMIT ?";
    values.push(Box::new(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
    let headers: Vec<String> = connection
        .prepare_cached(&sql)
        .and_then(|mut query| query.query_map(params_from_iter(values), |row| row.get(0))?.collect())
        .map_err(failed("listing jobs"))?;
    headers.iter().map(|header| decode("a job", header)).collect()
}

pub(super) fn next_queued(connection: &Connection, limit: usize, except: &[KeyId]) -> Result<Vec<JobId>> {
    let mut sql = "SELECT id FROM jobs WHERE state = 'queued' AND owner IS NULL".to_owned();
    let mut values: Vec<Box<dyn ToSql>> = Vec::new();
    if !except.is_empty() {
        let places = vec!["?"; except.len()].join(", ");
        sql += &format!(" AND (submitter IS NULL OR submitter NOT IN ({places}))");
        values.extend(except.iter().map(|key| Box::new(key.as_str().to_owned()) as Box<dyn ToSql>));
    }
    sql += " ORDER BY priority DESC, id LIMIT ?";
    values.push(Box::new(i64::try_from(limit).unwrap_or(i64::MAX)));
    let texts: Vec<String> = connection
        .prepare_cached(&sql)
        .and_then(|mut query| query.query_map(params_from_iter(values), |row| row.get(0))?.collect())
        .map_err(failed("reading the queue"))?;
    texts.iter().map(|text| parse_id(text)).collect()
}

pub(super) fn count_queued(connection: &Connection) -> Result<usize> {
    connection
        .prepare_cached("SELECT COUNT(*) FROM jobs WHERE state = 'queued'")
        .and_then(|mut query| query.query_row([], |row| row.get(0)))
        .map_err(failed("counting the queue"))
}

pub(super) fn count_waiting(connection: &Connection) -> Result<usize> {
    connection
        .prepare_cached("SELECT COUNT(*) FROM jobs WHERE state IN ('queued', 'draft')")
        .and_then(|mut query| query.query_row([], |row| row.get(0)))
        .map_err(failed("counting the queue"))
}

pub(super) fn count_by_state(connection: &Connection) -> Result<Vec<(JobState, u64)>> {
    // Count all jobs with an index alone, then subtract the bare sandboxes, which are fewer.
    let sql = "SELECT state, SUM(count) FROM (
                   SELECT state, COUNT(*) AS count FROM jobs GROUP BY state
                   UNION ALL SELECT state, -COUNT(*) FROM jobs WHERE kind = 'sandbox' GROUP BY state
               ) GROUP BY state";
    let counts: Vec<(String, u64)> = connection
        .prepare_cached(sql)
        .and_then(|mut query| query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .map_err(failed("counting jobs"))?;
    counts.into_iter().map(|(name, count)| Ok((decode("a state", &format!("\"{name}\""))?, count))).collect()
}

pub(super) fn unfinished(connection: &Connection) -> Result<Vec<JobId>> {
    let sql = "SELECT id FROM jobs WHERE state IN ('starting', 'running', 'collecting')
               OR (control_request = 'cancel' AND state IN ('draft', 'queued', 'paused'))
               OR (state = 'paused' AND (json_extract(header, '$.sandbox') IS NOT NULL
                                         OR json_extract(header, '$.is_resume_requested')))
               ORDER BY id";
    let texts: Vec<String> = connection
        .prepare_cached(sql)
        .and_then(|mut query| query.query_map([], |row| row.get(0))?.collect())
        .map_err(failed("listing unfinished jobs"))?;
    texts.iter().map(|text| parse_id(text)).collect()
}

pub(super) fn jobs_with_code(connection: &Connection, state: JobState, code: &str) -> Result<Vec<JobId>> {
    let texts: Vec<String> = connection
        .prepare_cached(
            "SELECT id FROM jobs WHERE state = ?1 AND json_extract(header, '$.code') = ?2 ORDER BY id",
        )
        .and_then(|mut query| query.query_map([state.name(), code], |row| row.get(0))?.collect())
        .map_err(failed("listing jobs that wait"))?;
    texts.iter().map(|text| parse_id(text)).collect()
}

pub(super) fn removable(
    connection: &Connection,
    after: Option<JobId>,
    limit: usize,
) -> Result<Vec<Removable>> {
    // The plus makes SQLite use the order of the ids; with an index on the state, it would sort all jobs for each
    // page.
    let rows: Vec<(String, bool, i64)> = connection
        .prepare_cached(
            "SELECT id, state = 'draft',
                    COALESCE(json_extract(header, '$.ended_ms'), json_extract(header, '$.created_ms'))
             FROM jobs WHERE +state IN ('complete', 'failed', 'cancelled', 'draft') AND id > ?1
             ORDER BY id LIMIT ?2",
        )
        .and_then(|mut query| {
            let page = params![text_after(after), i64::try_from(limit).unwrap_or(i64::MAX)];
            query.query_map(page, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
        })
        .map_err(failed("listing jobs that may be removed"))?;
    let removable =
        |(id, is_draft, since_ms): (String, _, _)| Ok(Removable { job: parse_id(&id)?, is_draft, since_ms });
    rows.into_iter().map(removable).collect()
}

/// A text that sorts before the ids of all later jobs.
pub(super) fn text_after(job: Option<JobId>) -> String {
    job.map(|job| job.to_string()).unwrap_or_default()
}

struct RawEvent {
    sequence: Sequence,
    time_ms: i64,
    kind: String,
    call: Option<String>,
    attempt: u32,
    payload: Option<String>,
    packed: Option<Vec<u8>>,
}

impl RawEvent {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            sequence: row.get(0)?,
            time_ms: row.get(1)?,
            kind: row.get(2)?,
            call: row.get(3)?,
            attempt: row.get(4)?,
            payload: row.get(5)?,
            packed: row.get(6)?,
        })
    }

    fn with(self, actor: Option<Actor>, body: impl FnOnce(String) -> EventBody) -> Event {
        Event {
            sequence: self.sequence,
            time_ms: self.time_ms,
            call: self.call.map(|id| CallRef { id, attempt: self.attempt }),
            actor,
            body: body(self.kind),
        }
    }

    /// The event, and the size of its payload.
    fn decode(mut self) -> Result<(Event, usize)> {
        let payload = match (self.payload.take(), self.packed.take()) {
            (Some(payload), _) => payload,
            (None, Some(packed)) => {
                let bytes = zstd::bulk::decompress(&packed, MAX_PAYLOAD_BYTES)
                    .map_err(|error| undecodable("a payload", error))?;
                String::from_utf8(bytes).map_err(|error| undecodable("a payload", error))?
            }
            (None, None) if payloads::keeps_payload(&self.kind) => {
                return Err(undecodable("an event", "its payload is gone"));
            }
            (None, None) => return Ok((self.with(None, |kind| EventBody::PayloadDropped { kind }), 0)),
        };
        let (actor, body) = decode_payload(&self.kind, &payload)?;
        Ok((self.with(actor, |_| body), payload.len()))
    }
}

/// A page of events after a sequence number, bounded by a count and by size.
pub(super) fn events(
    connection: &Connection,
    job: JobId,
    kinds: Kinds,
    (after, limit): (Sequence, usize),
) -> Result<EventPage> {
    let sql = format!(
        "SELECT e.sequence, e.time_ms, e.kind, e.call, e.attempt, e.payload, b.data
         FROM events e LEFT JOIN blobs b ON e.payload IS NULL AND b.job = e.job AND b.digest = e.digest
         WHERE e.job = ?1 AND e.sequence > ?2 {} ORDER BY e.sequence LIMIT ?3",
        condition(kinds)
    );
    let problem = || failed("reading events");
    let asked = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut query = connection.prepare_cached(&sql).map_err(problem())?;
    let mut rows = query.query(rusqlite::params![job.to_string(), after, asked]).map_err(problem())?;
    let (mut events, mut bytes) = (Vec::new(), 0);
    while bytes < MAX_PAGE_BYTES {
        let Some(row) = rows.next().map_err(problem())? else {
            let is_last = events.len() < limit;
            return Ok(EventPage { events, is_last });
        };
        let (event, size) = RawEvent::of(row).map_err(problem())?.decode()?;
        bytes += size;
        events.push(event);
    }
    Ok(EventPage { events, is_last: false })
}

/// The SQL condition for these kinds. Their names need no escaping.
pub(super) fn condition(kinds: Kinds) -> String {
    let list =
        |kinds: &[EventKind]| kinds.iter().map(|kind| format!("'{kind}'")).collect::<Vec<_>>().join(", ");
    match kinds {
        Kinds::All => String::new(),
        Kinds::Only(kinds) => format!("AND e.kind IN ({})", list(kinds)),
        Kinds::Except(kinds) => format!("AND e.kind NOT IN ({})", list(kinds)),
    }
}

/// The stored bytes with this digest (hexadecimal).
pub(super) fn blob(connection: &Connection, job: JobId, digest: &str) -> Result<Option<Vec<u8>>> {
    let pair = |at: usize| digest.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let Some(digest) = (0..digest.len()).step_by(2).map(pair).collect::<Option<Vec<u8>>>() else {
        return Ok(None);
    };
    let packed: Option<Vec<u8>> = connection
        .prepare_cached("SELECT data FROM blobs WHERE job = ?1 AND digest = ?2")
        .and_then(|mut query| {
            query.query_row(rusqlite::params![job.to_string(), digest], |row| row.get(0)).optional()
        })
        .map_err(failed("reading a payload"))?;
    packed
        .map(|packed| {
            zstd::bulk::decompress(&packed, MAX_PAYLOAD_BYTES)
                .map_err(|error| undecodable("a payload", error))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_names_match_their_serialization() {
        for state in [JobState::Draft, JobState::Queued, JobState::Collecting, JobState::Cancelled] {
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{}\"", state.name()));
        }
    }
}
