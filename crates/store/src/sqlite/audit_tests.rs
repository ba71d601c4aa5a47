//! Tests with a real database that is tampered with: removed heads, and changes to derived data.

use std::fs;
use std::path::{Path, PathBuf};

use job::{CallEnd, CallRef, EventBody, Fence, JobId, JobState};
use rusqlite::{Connection, params};

use super::heads_tests::{change, end, export_heads, faults, folder, job, note, verify_audit};
use super::{Sqlite, SqliteStore, write};
use crate::Store;
use crate::chain::{Link, digest};
use crate::error::StoreError;
use crate::evidence::check::JobAudit;
use crate::evidence::external_records::ExternalRecords;
use crate::evidence::file_digests::{FileState, job_folder};
use crate::evidence::trust::TrustedKeys;

const MINUTE_MS: i64 = 60_000;

fn database(folder: &Path) -> PathBuf {
    folder.join("caisson.db")
}

fn audit_of(folder: &Path, job: JobId) -> JobAudit {
    verify_audit(folder, Some(job), &[]).unwrap().jobs.remove(0)
}

#[track_caller]
fn assert_fault(folder: &Path, job: JobId, text: &str) {
    let told = audit_of(folder, job).faults.join("; ");
    assert!(told.contains(text), "not {text:?} but {told:?}");
}

/// Rewrites a log as someone with write access to the database could: shifted times, a different text in a note, and
/// a matching chain.
fn rewrite(folder: &Path, job: JobId, later_ms: i64) {
    let connection = Connection::open(database(folder)).unwrap();
    let id = job.to_string();
    let mut query = connection
        .prepare("SELECT sequence, time_ms, kind, call, attempt, generation, payload, digest FROM events WHERE job = ?1 ORDER BY sequence")
        .unwrap();
    let mut rows = query.query([&id]).unwrap();
    let mut head: Vec<u8> = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let payload: Option<String> = row.get(6).unwrap();
        let payload = payload.map(|payload| payload.replace("note 1", "note X"));
        let payload_digest: Vec<u8> = payload
            .as_ref()
            .map_or_else(|| row.get(7).unwrap(), |payload| digest(payload.as_bytes()).to_vec());
        let (kind, call): (String, Option<String>) = (row.get(2).unwrap(), row.get(3).unwrap());
        let link = Link {
            job: &id,
            sequence: row.get(0).unwrap(),
            time_ms: row.get::<_, i64>(1).unwrap() + later_ms,
            kind: &kind,
            call: call.as_deref(),
            attempt: row.get(4).unwrap(),
            generation: row.get(5).unwrap(),
            tokens: 0,
            payload_digest: &payload_digest,
        };
        head = link.hash(&head).to_vec();
        connection
            .execute(
                "UPDATE events SET time_ms = ?3, payload = ?4, digest = ?5, hash = ?6 WHERE job = ?1 AND sequence = ?2",
                params![id, link.sequence, link.time_ms, payload, payload_digest, head],
            )
            .unwrap();
    }
    connection
        .execute(
            "UPDATE jobs SET head_hash = ?2, header = json_set(header, '$.created_ms', json_extract(header, '$.created_ms') + ?3)
             WHERE id = ?1",
            params![id, head, later_ms],
        )
        .unwrap();
}

#[tokio::test]
async fn finished_job_with_deleted_heads_stays_a_fault() {
    for is_rewritten in [false, true] {
        let (folder, first, second) = folder().await;
        if is_rewritten {
            rewrite(folder.path(), first, 0);
        }
        change(folder.path(), "DELETE FROM heads WHERE job = ?1", first);
        let known = TrustedKeys::of_folder(folder.path());
        let missing = || {
            let report =
                crate::audit::verify_audit(&Sqlite, folder.path(), None, &ExternalRecords::default(), &known)
                    .unwrap();
            let told = faults(&report);
            assert!(
                told.contains("the job is over and no valid signed head covers its last event"),
                "{told}"
            );
            assert!(report.jobs.iter().all(|it| it.job != second || it.faults.is_empty()), "{told}");
        };
        missing();
        // The next server does not sign it, neither at its start nor when events are added.
        let store = SqliteStore::open(&database(folder.path())).unwrap();
        store.sign_heads().await.unwrap();
        missing();
        store.append(first, Fence::Anybody, vec![note("more")]).await.unwrap();
        store.sign_heads().await.unwrap();
        missing();
    }
}

/// An unfinished job with three heads, over its events 3, 4 and 5.
async fn signed_thrice() -> (tempfile::TempDir, JobId) {
    let (folder, _, second) = folder().await;
    let store = SqliteStore::open(&database(folder.path())).unwrap();
    for _ in 0..2 {
        store.append(second, Fence::Anybody, vec![note("more")]).await.unwrap();
        store.sign_heads().await.unwrap();
    }
    (folder, second)
}

#[tokio::test]
async fn removed_heads_are_detected_by_the_chain_and_by_kept_heads() {
    for (number, text) in [(1, "heads 1 to 1 are missing"), (2, "heads 2 to 2 are missing")] {
        let (folder, id) = signed_thrice().await;
        change(folder.path(), &format!("DELETE FROM heads WHERE number = {number} AND job = ?1"), id);
        assert_fault(folder.path(), id, text);
    }
    let (folder, id) = signed_thrice().await;
    let kept = export_heads(folder.path(), id).unwrap();
    assert_eq!(kept.iter().map(|head| head.number).collect::<Vec<_>>(), [1, 2, 3]);
    let whole = verify_audit(folder.path(), Some(id), &kept).unwrap();
    assert!(whole.is_sound, "{}", faults(&whole));
    assert_eq!(whole.jobs[0].heads_checked.newest_until, Some(5));
    change(folder.path(), "DELETE FROM heads WHERE number = 3 AND job = ?1", id);
    let cut = audit_of(folder.path(), id);
    assert_eq!((cut.faults.len(), cut.unsigned_events, cut.heads_checked.newest_until), (0, 1, None));
    let report = verify_audit(folder.path(), Some(id), &kept).unwrap();
    assert!(
        faults(&report).contains("the kept head of event 5 is not in the database"),
        "{}",
        faults(&report)
    );
}

/// The last events of an unfinished job may not be covered by a head yet; if they are old, heads were removed.
#[tokio::test]
async fn unfinished_job_has_no_unsigned_events_older_than_the_newest_head() {
    let (folder, _, second) = folder().await;
    let store = SqliteStore::open(&database(folder.path())).unwrap();
    store.append(second, Fence::Anybody, vec![note("more")]).await.unwrap();
    let fresh = audit_of(folder.path(), second);
    assert_eq!((fresh.faults.len(), fresh.unsigned_events), (0, 1), "{fresh:?}");
    drop(store);
    rewrite(folder.path(), second, -10 * MINUTE_MS);
    change(folder.path(), "DELETE FROM heads WHERE job = ?1", second);
    let text = "no valid signed head covers event 1 and those after it";
    assert_fault(folder.path(), second, text);
    let store = SqliteStore::open(&database(folder.path())).unwrap();
    store.append(second, Fence::Anybody, vec![note("more")]).await.unwrap();
    store.sign_heads().await.unwrap();
    assert_fault(folder.path(), second, text);
}

#[tokio::test]
async fn writing_a_head_also_signs_logs_that_have_waited_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&database(folder.path())).unwrap();
    let waiting = job(&store, 2).await;
    drop(store);
    rewrite(folder.path(), waiting, -10 * MINUTE_MS);
    let store = SqliteStore::open(&database(folder.path())).unwrap();
    let other = job(&store, 0).await;
    end(&store, other).await;
    let audit = audit_of(folder.path(), waiting);
    assert_eq!((audit.faults.len(), audit.signed_until, audit.unsigned_events), (0, 3, 0), "{audit:?}");
}

#[tokio::test]
async fn heads_of_a_rolled_back_transaction_are_signed_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&database(folder.path())).unwrap();
    let id = job(&store, 2).await;
    let fails = store.writer.run(move |context| {
        let over = EventBody::StateChanged { state: JobState::Complete, code: None, reason: None };
        write::append(context, id, Fence::Anybody, vec![over.into()])?;
        Err::<(), _>(StoreError::DiskFull)
    });
    assert!(fails.await.is_err());
    assert_eq!(store.sign_heads().await.unwrap(), 1);
    assert_eq!(audit_of(folder.path(), id).signed_until, 3);
}

/// A finished job with one completed step and two connections, and the list of these.
async fn worked() -> (tempfile::TempDir, SqliteStore, JobId) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&database(folder.path())).unwrap();
    let id = job(&store, 2).await;
    let call = CallRef { id: "step-1".into(), attempt: 1 };
    let started =
        EventBody::CallStarted { step: Some(0), tool: "shell".into(), input: serde_json::json!({}) }
            .of(&call);
    let ended = EventBody::CallEnded(CallEnd { exit_code: Some(0), ..CallEnd::default() }).of(&call);
    store
        .append(id, Fence::Anybody, vec![started, connection("one"), ended, connection("two")])
        .await
        .unwrap();
    end(&store, id).await;
    let list = job_folder(folder.path(), id).join("audit/network.jsonl");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    let lines: String = Connection::open(database(folder.path()))
        .unwrap()
        .query_row(
            "SELECT group_concat(payload || char(10), '') FROM events WHERE kind = 'egress'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(lines.lines().count(), 2);
    fs::write(list, lines).unwrap();
    (folder, store, id)
}

fn connection(host: &str) -> job::NewEvent {
    let event = serde_json::json!({
        "event": "opened", "id": 1, "time_ms": 1, "call": null, "method": "CONNECT", "host": host, "port": 443,
        "address": null, "bytes_up": 0, "bytes_down": 0, "duration_ms": 0, "verdict": "allowed", "code": null,
        "rule": "all", "reason": "",
    });
    EventBody::Egress(serde_json::from_value(event).unwrap()).into()
}

const EDITS: [(&str, &str); 9] = [
    ("UPDATE jobs SET header = json_set(header, '$.name', 'other') WHERE id = ?1", "jobs.header was changed"),
    (
        "UPDATE jobs SET header = json_set(header, '$.state', 'failed') WHERE id = ?1",
        "jobs.header was changed",
    ),
    ("UPDATE jobs SET state = 'failed' WHERE id = ?1", "jobs.state was changed"),
    ("UPDATE jobs SET submitter = 'me' WHERE id = ?1", "jobs.submitter was changed"),
    ("UPDATE jobs SET priority = 9 WHERE id = ?1", "jobs.priority was changed"),
    ("UPDATE steps SET view = json_set(view, '$.exit_code', 1) WHERE job = ?1", "step 1 was changed"),
    ("DELETE FROM steps WHERE job = ?1", "step 1 was changed"),
    ("INSERT INTO steps SELECT ?1, 7, view FROM steps", "rows of steps that the job does not have"),
    ("UPDATE jobs SET header = 'none' WHERE id = ?1", "cannot be read"),
];

#[tokio::test]
async fn tampering_with_derived_data_is_found_even_after_payloads_were_dropped() {
    let (folder, store, id) = worked().await;
    let whole = audit_of(folder.path(), id);
    assert_eq!((whole.faults.clone(), whole.files[0].state), (Vec::<String>::new(), FileState::Sound));
    for is_dropped in [false, true] {
        if is_dropped {
            store.drop_payloads(id).await.unwrap();
            let dropped = audit_of(folder.path(), id);
            assert!(dropped.dropped_payloads > 0 && dropped.faults.is_empty(), "{dropped:?}");
        }
        for (sql, text) in EDITS {
            Connection::open(database(folder.path()))
                .unwrap()
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .unwrap();
            let copy = tempfile::tempdir().unwrap();
            fs::copy(database(folder.path()), database(copy.path())).unwrap();
            fs::copy(folder.path().join("audit.pub"), copy.path().join("audit.pub")).unwrap();
            change(copy.path(), sql, id);
            let told = audit_of(copy.path(), id).faults.join("; ");
            let by_digest = "the job's row (jobs) or its steps were changed";
            assert!(told.contains(text) || is_dropped && told.contains(by_digest), "{sql}: {told:?}");
        }
    }
}

#[tokio::test]
async fn tampering_before_payloads_were_dropped_stays_a_fault() {
    let (folder, store, id) = worked().await;
    change(folder.path(), EDITS[0].0, id);
    store.drop_payloads(id).await.unwrap();
    assert_fault(folder.path(), id, "the check found faults when retention dropped the payloads");
}

#[tokio::test]
async fn tampering_with_the_connection_list_is_found() {
    let (folder, store, id) = worked().await;
    let list = job_folder(folder.path(), id).join("audit/network.jsonl");
    let lines = fs::read_to_string(&list).unwrap();
    let state = |text: &str| {
        fs::write(&list, text).unwrap();
        let audit = audit_of(folder.path(), id);
        assert_eq!(audit.faults.is_empty(), audit.files[0].state != FileState::Changed, "{audit:?}");
        audit.files[0].state
    };
    // The server was killed after writing the log and before writing the list: the next server adds the line.
    let first = lines.lines().next().unwrap().to_owned() + "\n";
    assert_eq!((state(&lines), state(&first)), (FileState::Sound, FileState::Behind));
    assert_eq!(store.recently_ended().await.unwrap(), [id]);
    for changed in
        [lines.replace("two", "TWO"), lines.replace("one", "ONE"), format!("{lines}{first}"), first.repeat(2)]
    {
        assert_eq!(state(&changed), FileState::Changed, "{changed}");
    }
    store.drop_payloads(id).await.unwrap();
    assert_eq!((state(&lines), state(&first)), (FileState::Sound, FileState::Changed));
    // A job without connections has no list.
    let quiet = job(&store, 0).await;
    end(&store, quiet).await;
    assert_eq!(audit_of(folder.path(), quiet).files, []);
    let list = job_folder(folder.path(), quiet).join("audit/network.jsonl");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    fs::write(list, &lines).unwrap();
    assert_fault(folder.path(), quiet, "audit/network.jsonl was changed");
}
