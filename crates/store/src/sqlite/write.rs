//! Write operations; each runs inside the writer's transaction.

use job::{
    Actor, Changed, ControlRequest, Event, EventBody, Fence, Generation, JobId, JobKind, JobView, NewEvent,
};
use rusqlite::{OptionalExtension, params};

use super::failed;
use super::heads;
use super::keys;
use super::tombstones;
use super::writer::Context;
use crate::chain::{Link, digest};
use crate::clock::now_ms;
use crate::error::StoreError;
use crate::sqlite::read;
use crate::{Created, NewRecord};

/// The only possible owner, because the data folder is locked.
const OWNER: &str = "this server";
/// Larger payloads are compressed and stored in `blobs`.
const MAX_INLINE_BYTES: usize = 8 * 1024;

type Result<T> = std::result::Result<T, StoreError>;

pub(super) fn create(context: &mut Context<'_>, record: NewRecord) -> Result<Created> {
    let NewRecord { id, spec, events, idempotency } = record;
    if let Some((key, body_digest)) = &idempotency {
        let earlier: Option<(Vec<u8>, String)> = context
            .connection
            .prepare_cached("SELECT digest, job FROM idempotency WHERE key = ?1")
            .and_then(|mut query| query.query_row([key], |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(failed("looking for the idempotency key"))?;
        match earlier {
            Some((earlier, job)) if &earlier == body_digest => {
                return Ok(Created::Repeated(read::parse_id(&job)?));
            }
            Some(_) => return Ok(Created::Mismatch),
            None => {}
        }
        context
            .connection
            .prepare_cached("INSERT INTO idempotency (key, digest, job) VALUES (?1, ?2, ?3)")
            .and_then(|mut insert| insert.execute(params![key, body_digest, id.to_string()]))
            .map_err(failed("storing the idempotency key"))?;
    }
    // One timestamp for everything: the view must equal the one derived from the log.
    let time_ms = now_ms();
    let mut view = JobView::new(id, time_ms, &spec);
    let mut cursor = Cursor { next_sequence: 1, head: Vec::new() };
    let created = NewEvent::from(EventBody::JobCreated { spec: Box::new(spec) });
    for event in std::iter::once(created).chain(events) {
        let event = cursor.place(event, time_ms);
        cursor.store(context, id, Generation(0), &event)?;
        view.apply(&event);
    }
    let header = header_of(&mut view);
    context
        .connection
        .prepare_cached(
            "INSERT INTO jobs (id, kind, state, priority, header, next_sequence, head_hash, submitter)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                id.to_string(),
                kind_name(view.kind),
                view.state.name(),
                view.priority,
                header,
                cursor.next_sequence,
                cursor.head,
                view.owner.as_ref().map(|owner| owner.key.as_str()),
            ])
        })
        .map_err(failed("storing the job"))?;
    let placed = (1, cursor.next_sequence - 1);
    heads::note(context, id, placed, time_ms, &cursor.head, view.state.is_over())?;
    Ok(Created::New(Box::new(view)))
}

pub(super) fn append(
    context: &mut Context<'_>,
    job: JobId,
    fence: Fence,
    events: Vec<NewEvent>,
) -> Result<Vec<Event>> {
    let (mut cursor, generation) = Cursor::load(context, job)?;
    if let Fence::Owner(claimed) = fence
        && claimed != generation
    {
        return Err(StoreError::Fenced(job));
    }
    let mut view = match context.views.remove(&job) {
        Some(view) => view,
        None => read::view(context.connection, job)?,
    };
    let time_ms = now_ms();
    let first = cursor.next_sequence;
    let spent_before = spent(&view);
    let mut placed = Vec::with_capacity(events.len());
    let mut header_changed = false;
    for event in events {
        let event = cursor.place(event, time_ms);
        cursor.store(context, job, generation, &event)?;
        match view.apply(&event) {
            Changed::Nothing => {}
            Changed::Header => header_changed = true,
            Changed::Steps(range) => {
                header_changed = true;
                store_steps(context, &view, range)?;
            }
        }
        placed.push(event);
    }
    let spent_now = spent(&view).saturating_sub(spent_before);
    if let Some(owner) = view.owner.as_ref().filter(|_| spent_now > 0) {
        keys::spend(context, &owner.key, time_ms, spent_now)?;
    }
    if header_changed {
        cursor.save_with(context, &mut view)?;
    } else {
        cursor.save(context, job)?;
    }
    let last = cursor.next_sequence - 1;
    heads::note(context, job, (first, last), time_ms, &cursor.head, view.state.is_over())?;
    context.new_events.push((job, cursor.next_sequence - 1));
    if !view.state.is_over() {
        context.views.insert(job, view);
    }
    Ok(placed)
}

/// Model cost of a job, in nanodollars.
fn spent(view: &JobView) -> u64 {
    view.agent.as_ref().map_or(0, |agent| agent.spent.cost_nanodollars)
}

fn store_steps(context: &Context<'_>, view: &JobView, range: std::ops::Range<usize>) -> Result<()> {
    let mut insert = context
        .connection
        .prepare_cached("INSERT OR REPLACE INTO steps (job, position, view) VALUES (?1, ?2, ?3)")
        .map_err(failed("storing a step"))?;
    for step in view.steps.get(range).unwrap_or_default() {
        insert
            .execute(params![view.job_id.to_string(), step.index, read::encode(step)?])
            .map_err(failed("storing a step"))?;
    }
    Ok(())
}

/// Encodes a view without its steps, which have their own table.
fn header_of(view: &mut JobView) -> String {
    // Taken out and put back, not cloned: there may be thousands.
    let steps = std::mem::take(&mut view.steps);
    let header = serde_json::to_string(view).unwrap_or_default();
    view.steps = steps;
    header
}

/// The name of a job kind in the database.
pub(super) fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Job => "job",
        JobKind::Sandbox => "sandbox",
    }
}

/// The name of a control request in the database.
pub(super) fn control_request_name(control_request: ControlRequest) -> String {
    format!("{control_request:?}").to_lowercase()
}

pub(super) fn claim(context: &mut Context<'_>, job: JobId, lease_ms: i64) -> Result<Option<Generation>> {
    let now = now_ms();
    context
        .connection
        .prepare_cached(
            "UPDATE jobs SET owner = ?2, generation = generation + 1, lease_until = ?3
             WHERE id = ?1 AND (owner IS NULL OR lease_until < ?4) RETURNING generation",
        )
        .and_then(|mut update| {
            update
                .query_row(params![job.to_string(), OWNER, now + lease_ms, now], |row| row.get(0))
                .optional()
        })
        .map(|generation| generation.map(Generation))
        .map_err(failed("taking a job over"))
}

pub(super) fn renew_leases(context: &mut Context<'_>, lease_ms: i64) -> Result<()> {
    context
        .connection
        .execute("UPDATE jobs SET lease_until = ?2 WHERE owner = ?1", params![OWNER, now_ms() + lease_ms])
        .map(drop)
        .map_err(failed("renewing leases"))
}

pub(super) fn release(context: &mut Context<'_>, job: JobId, generation: Generation) -> Result<()> {
    context
        .connection
        .prepare_cached("UPDATE jobs SET owner = NULL, lease_until = 0 WHERE id = ?1 AND generation = ?2")
        .and_then(|mut update| update.execute(params![job.to_string(), generation.0]))
        .map(drop)
        .map_err(failed("giving a job back"))
}

/// Deletes everything of a job except a signed statement about the end of its log and who deleted it.
pub(super) fn delete(context: &mut Context<'_>, job: JobId, by: &Actor) -> Result<()> {
    context.views.remove(&job);
    match Cursor::load(context, job) {
        Ok((Cursor { next_sequence, head }, _)) => {
            let last = (next_sequence.saturating_sub(1), head.as_slice());
            tombstones::store(context.connection, &context.signer.sign_deletion(job, last, by))?;
        }
        Err(StoreError::NoJob(_)) => return Ok(()),
        Err(error) => return Err(error),
    }
    context.mark_deletion()?;
    for table in ["events", "blobs", "steps", "idempotency", "heads", "drops", "shares"] {
        context
            .connection
            .execute(&format!("DELETE FROM {table} WHERE job = ?1"), [job.to_string()])
            .map_err(failed("deleting a job"))?;
    }
    context
        .connection
        .execute("DELETE FROM jobs WHERE id = ?1", [job.to_string()])
        .map(drop)
        .map_err(failed("deleting a job"))
}

/// Writes a value that is already there. A statement that changes nothing would not notice an unwritable disk.
pub(super) fn check(context: &mut Context<'_>) -> Result<()> {
    context
        .connection
        .pragma_update(None, "user_version", super::VERSION)
        .map_err(failed("checking the database"))
}

/// The end of a job's log.
struct Cursor {
    next_sequence: u64,
    head: Vec<u8>,
}

impl Cursor {
    fn load(context: &Context<'_>, job: JobId) -> Result<(Self, Generation)> {
        context
            .connection
            .prepare_cached("SELECT next_sequence, head_hash, generation FROM jobs WHERE id = ?1")
            .and_then(|mut query| {
                query
                    .query_row([job.to_string()], |row| {
                        Ok((Self { next_sequence: row.get(0)?, head: row.get(1)? }, Generation(row.get(2)?)))
                    })
                    .optional()
            })
            .map_err(failed("reading the end of the log"))?
            .ok_or(StoreError::NoJob(job))
    }

    fn place(&self, event: NewEvent, time_ms: i64) -> Event {
        let NewEvent { call, actor, body } = event;
        Event { sequence: self.next_sequence, time_ms, call, actor, body }
    }

    fn store(
        &mut self,
        context: &Context<'_>,
        job: JobId,
        generation: Generation,
        event: &Event,
    ) -> Result<()> {
        let job_text = job.to_string();
        let payload = read::encode_payload(event)?;
        let payload_digest = digest(payload.as_bytes());
        let call = event.call.as_ref();
        let link = Link {
            job: &job_text,
            sequence: event.sequence,
            time_ms: event.time_ms,
            kind: event.body.kind().name(),
            call: call.map(|call| call.id.as_str()),
            attempt: call.map_or(0, |call| call.attempt),
            generation: generation.0,
            tokens: 0,
            payload_digest: &payload_digest,
        };
        let hash = link.hash(&self.head);
        let inline = (payload.len() <= MAX_INLINE_BYTES).then_some(&payload);
        if inline.is_none() {
            store_blob(context, &job_text, &payload_digest, payload.as_bytes())?;
        }
        context
            .connection
            .prepare_cached(
                "INSERT INTO events (job, sequence, time_ms, kind, call, attempt, generation, tokens, payload, digest, hash)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    link.job,
                    link.sequence,
                    link.time_ms,
                    link.kind,
                    link.call,
                    link.attempt,
                    link.generation,
                    link.tokens,
                    inline,
                    payload_digest,
                    hash,
                ])
            })
            .map_err(failed("storing an event"))?;
        self.head = hash.to_vec();
        self.next_sequence += 1;
        Ok(())
    }

    fn save(&self, context: &Context<'_>, job: JobId) -> Result<()> {
        context
            .connection
            .prepare_cached("UPDATE jobs SET next_sequence = ?2, head_hash = ?3 WHERE id = ?1")
            .and_then(|mut update| update.execute(params![job.to_string(), self.next_sequence, self.head]))
            .map(drop)
            .map_err(failed("storing the end of the log"))
    }

    /// Also saves the job's updated view.
    fn save_with(&self, context: &Context<'_>, view: &mut JobView) -> Result<()> {
        let header = header_of(view);
        context
            .connection
            .prepare_cached(
                "UPDATE jobs SET next_sequence = ?2, head_hash = ?3, state = ?4, control_request = ?5, header = ?6 WHERE id = ?1",
            )
            .and_then(|mut update| {
                let control_request = view.control_request.map(control_request_name);
                update.execute(params![
                    view.job_id.to_string(),
                    self.next_sequence,
                    self.head,
                    view.state.name(),
                    control_request,
                    header,
                ])
            })
            .map(drop)
            .map_err(failed("storing the job"))
    }
}

/// Stores bytes that an event will refer to.
pub(super) fn put_blob(context: &Context<'_>, job: JobId, bytes: &[u8]) -> Result<String> {
    let bytes_digest = digest(bytes);
    store_blob(context, &job.to_string(), &bytes_digest, bytes)?;
    Ok(bytes_digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn store_blob(context: &Context<'_>, job: &str, payload_digest: &[u8], payload: &[u8]) -> Result<()> {
    let data = zstd::bulk::compress(payload, 1).map_err(StoreError::io("compressing a payload"))?;
    context
        .connection
        .prepare_cached("INSERT OR IGNORE INTO blobs (job, digest, data) VALUES (?1, ?2, ?3)")
        .and_then(|mut insert| insert.execute(params![job, payload_digest, data]))
        .map(drop)
        .map_err(failed("storing a payload"))
}
