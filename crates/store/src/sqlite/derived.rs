//! Verifies what the database derived from a log (the job's row and its steps), by deriving it again or, if payloads
//! were dropped, by the digest in the signed statement.

use job::{CallRef, ContentDigest, Event, EventBody, EventKind, JobId, JobView, Kinds, OUTPUT, Sequence};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use super::audit::each_row;
use super::failed;
use super::write::{control_request_name, kind_name};
use crate::error::StoreError;
use crate::evidence::check::Row;
use crate::evidence::dropped::{DerivedDigests, DropStatement};
use crate::sqlite::read;

type Result<T> = std::result::Result<T, StoreError>;

/// Derives the view of a job from the rows of its log.
pub(super) struct ViewBuilder {
    job: JobId,
    view: Option<JobView>,
    /// The first event whose payload exists but cannot be decoded.
    undecodable: Option<Sequence>,
    /// Whether payloads are missing, which makes the view incomplete.
    lacks_payloads: bool,
}

impl ViewBuilder {
    pub(super) fn new(job: JobId) -> Self {
        Self { job, view: None, undecodable: None, lacks_payloads: false }
    }

    pub(super) fn take(&mut self, row: &Row) {
        // Output is most of a log, and not part of the view.
        if matches!(OUTPUT, Kinds::Only(kinds) if kinds.iter().any(|kind| kind.name() == row.kind)) {
            return;
        }
        let payload = match &row.payload {
            Ok(Some(payload)) => payload,
            Ok(None) | Err(_) => {
                self.lacks_payloads = true;
                return;
            }
        };
        let decoded = std::str::from_utf8(payload).ok();
        let Some((actor, body)) = decoded.and_then(|text| read::decode_payload(&row.kind, text).ok()) else {
            self.undecodable.get_or_insert(row.sequence);
            return;
        };
        let call = row.call.clone().map(|id| CallRef { id, attempt: row.attempt });
        let event = Event { sequence: row.sequence, time_ms: row.time_ms, call, actor, body };
        match (&mut self.view, &event.body) {
            (Some(view), _) => drop(view.apply(&event)),
            (view @ None, EventBody::JobCreated { spec }) => {
                *view = Some(JobView::new(self.job, event.time_ms, spec));
            }
            (None, _) => {}
        }
    }

    /// Whether the job is over, according to its log.
    pub(super) fn is_over(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.state.is_over())
    }

    /// Compares the stored data with the log, and describes the differences.
    pub(super) fn compare(
        &self,
        connection: &Connection,
        dropped: Option<&DropStatement>,
        last: Sequence,
    ) -> Result<Vec<String>> {
        if let Some(sequence) = self.undecodable {
            return Ok(vec![format!(
                "event {sequence} cannot be decoded, so what was computed from the log is not checked"
            )]);
        }
        let Some(view) = &self.view else {
            return Ok(vec!["the log does not start with the creation of the job".to_owned()]);
        };
        let columns = Columns::of(connection, self.job)?;
        let mut faults = columns.compare(view);
        match dropped.map(|statement| &statement.derived) {
            // A payload that is missing without a statement is already a fault.
            _ if !self.lacks_payloads => faults.extend(compare_views(connection, view)?),
            None => {}
            Some(DerivedDigests { view: None, .. }) => faults.push(
                "the check found faults when retention dropped the payloads, so what was computed from the log is not known to be right"
                    .to_owned(),
            ),
            Some(DerivedDigests { view: Some(digest), sequence, .. })
                if *sequence == last && *digest != digest_of(connection, self.job)? =>
            {
                faults.push(
                    "the job's row (jobs) or its steps were changed since retention dropped the payloads".to_owned(),
                );
            }
            Some(DerivedDigests { view: Some(_), .. }) => {}
        }
        Ok(faults)
    }
}

/// The columns of a job's row that duplicate the content of its log.
struct Columns {
    kind: String,
    state: String,
    priority: i64,
    control_request: Option<String>,
    submitter: Option<String>,
}

impl Columns {
    fn of(connection: &Connection, job: JobId) -> Result<Self> {
        let columns = |row: &SqlRow<'_>| {
            Ok(Self {
                kind: row.get(0)?,
                state: row.get(1)?,
                priority: row.get(2)?,
                control_request: row.get(3)?,
                submitter: row.get(4)?,
            })
        };
        connection
            .prepare_cached(
                "SELECT kind, state, priority, control_request, submitter FROM jobs WHERE id = ?1",
            )
            .and_then(|mut query| query.query_row([job.to_string()], columns).optional())
            .map_err(failed("reading a job"))?
            .ok_or(StoreError::NoJob(job))
    }

    fn compare(&self, view: &JobView) -> Vec<String> {
        let submitter = view.owner.as_ref().map(|owner| owner.key.as_str());
        let pairs = [
            ("kind", self.kind == kind_name(view.kind)),
            ("state", self.state == view.state.name()),
            ("priority", self.priority == i64::from(view.priority)),
            ("control_request", self.control_request == view.control_request.map(control_request_name)),
            ("submitter", self.submitter.as_deref() == submitter),
        ];
        let differing = pairs.into_iter().filter(|(_, is_same)| !is_same);
        differing.map(|(name, _)| format!("jobs.{name} was changed: it is not what the log says")).collect()
    }
}

/// Compares the stored view with the one derived from the log.
fn compare_views(connection: &Connection, expected: &JobView) -> Result<Vec<String>> {
    let job = expected.job_id;
    let Ok(mut stored) = read::view(connection, job) else {
        return Ok(vec!["jobs.header or a step cannot be read".to_owned()]);
    };
    let mut faults = Vec::new();
    let steps = std::mem::take(&mut stored.steps);
    let header = JobView { steps: Vec::new(), ..expected.clone() };
    if stored != header {
        faults.push("jobs.header was changed: it is not what the log says".to_owned());
    }
    let differing = expected.steps.iter().enumerate().filter(|(at, step)| steps.get(*at) != Some(step));
    faults.extend(
        differing.map(|(at, _)| format!("step {} was changed: its row is not what the log says", at + 1)),
    );
    let misplaced: u64 = connection
        .prepare_cached(
            "SELECT COUNT(*) FROM steps WHERE job = ?1
             AND (position < 0 OR position >= ?2 OR json_extract(view, '$.index') IS NOT position)",
        )
        .and_then(|mut query| {
            query.query_row(params![job.to_string(), expected.steps.len()], |row| row.get(0))
        })
        .map_err(failed("reading steps"))?;
    if misplaced > 0 {
        faults.push("there are rows of steps that the job does not have".to_owned());
    }
    Ok(faults)
}

/// The digests for a drop statement of what was derived from the payloads.
pub(super) fn digests(connection: &Connection, job: JobId, is_sound: bool) -> Result<DerivedDigests> {
    let sequence = connection
        .prepare_cached("SELECT next_sequence - 1 FROM jobs WHERE id = ?1")
        .and_then(|mut query| query.query_row([job.to_string()], |row| row.get(0)).optional())
        .map_err(failed("reading the end of the log"))?
        .ok_or(StoreError::NoJob(job))?;
    let view = if is_sound { Some(digest_of(connection, job)?) } else { None };
    let network = network_lines(connection, job)?;
    Ok(DerivedDigests { sequence, view, network_bytes: network.bytes(), network_sha256: network.sha256() })
}

/// The list of connections according to the log.
fn network_lines(connection: &Connection, job: JobId) -> Result<ContentDigest> {
    let mut lines = ContentDigest::default();
    each_row(connection, job, Kinds::Only(&[EventKind::Egress]), |row| {
        if let Ok(Some(line)) = &row.payload {
            lines.add(line);
            lines.add(b"\n");
        }
    })?;
    Ok(lines)
}

/// SHA-256 of what the database derived from a log, as stored. Strings are length-prefixed.
fn digest_of(connection: &Connection, job: JobId) -> Result<String> {
    let mut digest = ContentDigest::default();
    let mut add = |text: &str| {
        digest.add(&(text.len() as u64).to_be_bytes());
        digest.add(text.as_bytes());
    };
    let header: String = connection
        .prepare_cached("SELECT header FROM jobs WHERE id = ?1")
        .and_then(|mut query| query.query_row([job.to_string()], |row| row.get(0)))
        .map_err(failed("reading a job"))?;
    let Columns { kind, state, priority, control_request, submitter } = Columns::of(connection, job)?;
    let priority = priority.to_string();
    let (control_request, submitter) = (control_request.unwrap_or_default(), submitter.unwrap_or_default());
    [kind, state, priority, control_request, submitter, header].iter().for_each(|text| add(text));
    let steps: Vec<(i64, String)> = connection
        .prepare_cached("SELECT position, view FROM steps WHERE job = ?1 ORDER BY position")
        .and_then(|mut query| {
            query.query_map([job.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .map_err(failed("reading steps"))?;
    for (position, view) in steps {
        add(&position.to_string());
        add(&view);
    }
    Ok(digest.sha256())
}
