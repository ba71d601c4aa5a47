//! The reads.

use std::str::FromStr;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params_from_iter};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failed;
use super::write::{kind_name, state_name};
use crate::answers::JobFilter;
use crate::error::OrchestratorError;
use crate::event::{CallRef, Event, EventBody};
use crate::ids::{JobId, Sequence};
use crate::request::JobSpec;
use crate::state::JobState;
use crate::view::{JobView, StepView};

type Result<T> = std::result::Result<T, OrchestratorError>;

/// The longest payload that is ever unpacked.
const MAX_PAYLOAD_BYTES: usize = 64 * 1024 * 1024;

fn undecodable(what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OrchestratorError {
    OrchestratorError::Store { what: format!("decoding {what}"), source: source.into() }
}

pub(super) fn parse_id(text: &str) -> Result<JobId> {
    JobId::from_str(text).map_err(|error| undecodable("a job id", error))
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| undecodable("a value", error))
}

fn decode<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| undecodable(what, error))
}

/// How the JSON of an event's body starts.
fn opening(kind: &str) -> String {
    format!("{{\"kind\":\"{kind}\",\"data\":")
}

/// The data of an event without its kind, which has a column of its own.
pub(super) fn encode_payload(body: &EventBody) -> Result<String> {
    let whole = encode(body)?;
    let data = whole.strip_prefix(&opening(body.kind())).and_then(|rest| rest.strip_suffix('}'));
    data.map(ToOwned::to_owned).ok_or_else(|| undecodable("an event", "it has no data"))
}

fn decode_payload(kind: &str, payload: &str) -> Result<EventBody> {
    decode("an event", &format!("{}{payload}}}", opening(kind)))
}

pub(super) fn view(connection: &Connection, job: JobId) -> Result<JobView> {
    let header: String = connection
        .prepare_cached("SELECT header FROM jobs WHERE id = ?1")
        .and_then(|mut query| query.query_row([job.to_string()], |row| row.get(0)).optional())
        .map_err(failed("reading a job"))?
        .ok_or(OrchestratorError::NoJob(job))?;
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
    match events(connection, job, 0, 1)?.pop().map(|event| event.body) {
        Some(EventBody::JobCreated { spec }) => Ok(*spec),
        Some(_) => Err(undecodable("a job", "its log does not start with its creation")),
        None => Err(OrchestratorError::NoJob(job)),
    }
}

pub(super) fn jobs(connection: &Connection, filter: &JobFilter) -> Result<Vec<JobView>> {
    let mut sql = "SELECT header FROM jobs WHERE kind = ?".to_owned();
    let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(kind_name(filter.kind))];
    if !filter.states.is_empty() {
        sql += &format!(" AND state IN ({})", vec!["?"; filter.states.len()].join(", "));
        values.extend(filter.states.iter().map(|state| Box::new(state_name(*state)) as Box<dyn ToSql>));
    }
    if let Some((name, value)) = &filter.label {
        sql += " AND EXISTS (SELECT 1 FROM json_each(header, '$.labels') WHERE key = ? AND value = ?)";
        values.push(Box::new(name.clone()));
        values.push(Box::new(value.clone()));
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

fn ids(connection: &Connection, what: &str, sql: &str, limit: usize) -> Result<Vec<JobId>> {
    let texts: Vec<String> = connection
        .prepare_cached(sql)
        .and_then(|mut query| {
            query.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| row.get(0))?.collect()
        })
        .map_err(failed(what))?;
    texts.iter().map(|text| parse_id(text)).collect()
}

pub(super) fn next_queued(connection: &Connection, limit: usize) -> Result<Vec<JobId>> {
    let sql =
        "SELECT id FROM jobs WHERE state = 'queued' AND owner IS NULL ORDER BY priority DESC, id LIMIT ?1";
    ids(connection, "reading the queue", sql, limit)
}

pub(super) fn count_queued(connection: &Connection) -> Result<usize> {
    connection
        .query_row("SELECT COUNT(*) FROM jobs WHERE state = 'queued'", [], |row| row.get(0))
        .map_err(failed("counting the queue"))
}

pub(super) fn count_by_state(connection: &Connection) -> Result<Vec<(JobState, u64)>> {
    let counts: Vec<(String, u64)> = connection
        .prepare_cached("SELECT state, COUNT(*) FROM jobs GROUP BY state")
        .and_then(|mut query| query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .map_err(failed("counting jobs"))?;
    counts.into_iter().map(|(name, count)| Ok((decode("a state", &format!("\"{name}\""))?, count))).collect()
}

pub(super) fn unfinished(connection: &Connection) -> Result<Vec<JobId>> {
    let sql = "SELECT id FROM jobs WHERE state IN ('starting', 'running', 'collecting')
               OR (wish IS NOT NULL AND state IN ('draft', 'queued', 'paused')) ORDER BY id LIMIT ?1";
    ids(connection, "listing unfinished jobs", sql, usize::MAX)
}

pub(super) fn over(connection: &Connection, limit: usize) -> Result<Vec<JobView>> {
    let headers: Vec<String> = connection
        .prepare_cached(
            "SELECT header FROM jobs WHERE state IN ('complete', 'failed', 'cancelled') ORDER BY id LIMIT ?1",
        )
        .and_then(|mut query| {
            query.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| row.get(0))?.collect()
        })
        .map_err(failed("listing finished jobs"))?;
    headers.iter().map(|header| decode("a job", header)).collect()
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

    fn decode(self) -> Result<Event> {
        let payload = match (self.payload, self.packed) {
            (Some(payload), _) => payload,
            (None, Some(packed)) => {
                let bytes = zstd::bulk::decompress(&packed, MAX_PAYLOAD_BYTES)
                    .map_err(|error| undecodable("a payload", error))?;
                String::from_utf8(bytes).map_err(|error| undecodable("a payload", error))?
            }
            (None, None) => return Err(undecodable("an event", "its payload was dropped")),
        };
        Ok(Event {
            sequence: self.sequence,
            time_ms: self.time_ms,
            call: self.call.map(|id| CallRef { id, attempt: self.attempt }),
            body: decode_payload(&self.kind, &payload)?,
        })
    }
}

pub(super) fn events(
    connection: &Connection,
    job: JobId,
    after: Sequence,
    limit: usize,
) -> Result<Vec<Event>> {
    let raw: Vec<RawEvent> = connection
        .prepare_cached(
            "SELECT e.sequence, e.time_ms, e.kind, e.call, e.attempt, e.payload, b.data
             FROM events e LEFT JOIN blobs b ON e.payload IS NULL AND b.job = e.job AND b.digest = e.digest
             WHERE e.job = ?1 AND e.sequence > ?2 ORDER BY e.sequence LIMIT ?3",
        )
        .and_then(|mut query| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            query.query_map(rusqlite::params![job.to_string(), after, limit], RawEvent::of)?.collect()
        })
        .map_err(failed("reading events"))?;
    raw.into_iter().map(RawEvent::decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_the_name_that_programs_see() {
        for state in [JobState::Draft, JobState::Queued, JobState::Collecting, JobState::Cancelled] {
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{}\"", state_name(state)));
        }
    }
}
