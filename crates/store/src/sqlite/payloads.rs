//! Payloads that retention drops: the events stay in the chain, but their content is gone.

use job::{EventKind, JobId};
use rusqlite::{Connection, params};
use strum::VariantArray;

use super::read::{parse_id, text_after};
use super::writer::Context;
use super::{derived, drops, failed};
use crate::error::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

/// Whether events of the kind with this name keep their payload.
pub(super) fn keeps_payload(kind: &str) -> bool {
    kind.parse().is_ok_and(EventKind::keeps_payload)
}

/// Jobs that ended before a point in time and still have their payloads, oldest first, starting after `after`.
pub(super) fn jobs_to_drop(
    connection: &Connection,
    ended_before_ms: i64,
    after: Option<JobId>,
    limit: usize,
) -> Result<Vec<JobId>> {
    // The plus makes SQLite use the order of the ids; with an index on the state, it would sort all jobs for each
    // page.
    let texts: Vec<String> = connection
        .prepare_cached(
            "SELECT id FROM jobs WHERE +state IN ('complete', 'failed', 'cancelled') AND payloads_dropped = 0
             AND COALESCE(json_extract(header, '$.ended_ms'), json_extract(header, '$.created_ms')) < ?1
             AND id > ?2 ORDER BY id LIMIT ?3",
        )
        .and_then(|mut query| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            query.query_map(params![ended_before_ms, text_after(after), limit], |row| row.get(0))?.collect()
        })
        .map_err(failed("listing jobs with old payloads"))?;
    texts.iter().map(|text| parse_id(text)).collect()
}

/// Drops the payloads of a job and signs a statement about it. The statement contains digests of the derived data if
/// the verification found no faults.
pub(super) fn drop_job_payloads(context: &mut Context<'_>, job: JobId, is_sound: bool) -> Result<()> {
    let digests = derived::digests(context.connection, job, is_sound)?;
    let id = job.to_string();
    let kept = EventKind::VARIANTS.iter().filter(|kind| kind.keeps_payload());
    let kept = kept.map(|kind| format!("'{kind}'")).collect::<Vec<_>>().join(", ");
    let statements = [
        format!(
            "UPDATE events SET payload = NULL WHERE job = ?1 AND payload IS NOT NULL AND kind NOT IN ({kept})"
        ),
        // Long payloads, and images that events refer to.
        format!(
            "DELETE FROM blobs WHERE job = ?1 AND digest NOT IN
             (SELECT digest FROM events WHERE job = ?1 AND kind IN ({kept}))"
        ),
        "UPDATE jobs SET payloads_dropped = 1 WHERE id = ?1".to_owned(),
    ];
    for statement in statements {
        context.connection.execute(&statement, [&id]).map_err(failed("dropping payloads"))?;
    }
    context.mark_deletion()?;
    drops::store(context.connection, &context.signer.sign_drop(job, digests))
}
