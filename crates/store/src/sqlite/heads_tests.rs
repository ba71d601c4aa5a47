//! Tests with a real database that is tampered with.

use std::path::Path;

use job::{Actor, EventBody, Fence, JobDefaults, JobId, JobState, NewEvent, NewJob};
use rusqlite::Connection;

use super::{Sqlite, SqliteStore, drops};
use crate::evidence::check::AuditReport;
use crate::evidence::external_records::ExternalRecords;
use crate::evidence::file_digests::{FileState, job_folder, measure_file};
use crate::evidence::head::SignedHead;
use crate::evidence::key::SigningKey;
use crate::evidence::tombstone::Tombstone;
use crate::evidence::trust::TrustedKeys;
use crate::{NewRecord, Store};

/// Verifies like `caisson audit verify`.
pub(super) fn verify_audit(
    folder: &Path,
    job: Option<JobId>,
    kept: &[SignedHead],
) -> Result<AuditReport, crate::error::StoreError> {
    verify_kept(folder, job, &heads_only(kept))
}

fn verify_kept(
    folder: &Path,
    job: Option<JobId>,
    kept: &ExternalRecords,
) -> Result<AuditReport, crate::error::StoreError> {
    crate::audit::verify_audit(&Sqlite, folder, job, kept, &TrustedKeys::of_folder(folder))
}

fn heads_only(heads: &[SignedHead]) -> ExternalRecords {
    ExternalRecords { heads: heads.to_vec(), tombstones: Vec::new() }
}

pub(super) fn export_heads(folder: &Path, job: JobId) -> Result<Vec<SignedHead>, crate::error::StoreError> {
    crate::audit::export_heads(&Sqlite, folder, job).map(|kept| kept.heads)
}

pub(super) fn note(text: &str) -> NewEvent {
    EventBody::Note { text: text.into() }.into()
}

pub(super) async fn job(store: &SqliteStore, notes: usize) -> JobId {
    let id = JobId::generate();
    let json = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;
    let spec = serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default()).unwrap();
    store.create(NewRecord { id, spec, events: Vec::new(), idempotency: None }).await.unwrap();
    for number in 0..notes {
        store.append(id, Fence::Anybody, vec![note(&format!("note {number}"))]).await.unwrap();
    }
    id
}

pub(super) async fn end(store: &SqliteStore, job: JobId) {
    let over = EventBody::StateChanged { state: JobState::Complete, code: None, reason: None };
    store.append(job, Fence::Anybody, vec![over.into()]).await.unwrap();
}

/// A folder with a finished job of ten events (one of them long) and an unfinished job of three.
pub(super) async fn folder() -> (tempfile::TempDir, JobId, JobId) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
    let first = job(&store, 7).await;
    store.append(first, Fence::Anybody, vec![note(&"long ".repeat(4000))]).await.unwrap();
    end(&store, first).await;
    let second = job(&store, 2).await;
    store.sign_heads().await.unwrap();
    (folder, first, second)
}

pub(super) fn change(folder: &Path, sql: &str, job: JobId) {
    let connection = Connection::open(folder.join("caisson.db")).unwrap();
    let changed = connection.execute(sql, [job.to_string()]).unwrap();
    assert!(changed > 0, "{sql} changed nothing");
}

pub(super) fn faults(report: &AuditReport) -> String {
    report.jobs.iter().flat_map(|job| job.faults.clone()).collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn untouched_log_is_sound_and_fully_signed() {
    let (folder, first, second) = folder().await;
    let report = verify_audit(folder.path(), None, &[]).unwrap();
    assert!(report.is_sound, "{}", faults(&report));
    let of = |job| report.jobs.iter().find(|it| it.job == job).unwrap();
    assert_eq!((of(first).events, of(first).heads, of(first).signed_until), (10, 1, 10));
    assert_eq!((of(second).events, of(second).signed_until), (3, 3));
    // A server that restarts signs with the same key and signs nothing twice.
    let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
    assert_eq!(store.sign_heads().await.unwrap(), 0);
    store.append(second, Fence::Anybody, vec![note("more")]).await.unwrap();
    assert_eq!(store.sign_heads().await.unwrap(), 1);
    let heads = export_heads(folder.path(), second).unwrap();
    assert_eq!(heads.iter().map(|head| head.sequence).collect::<Vec<_>>(), [3, 4]);
    assert!(heads.iter().all(SignedHead::is_signed) && heads[0].key == heads[1].key);
}

#[tokio::test]
async fn next_server_signs_events_a_killed_server_left_unsigned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("caisson.db");
    let id = job(&SqliteStore::open(&path).unwrap(), 4).await;
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.sign_heads().await.unwrap(), 1);
    assert_eq!(verify_audit(folder.path(), Some(id), &[]).unwrap().jobs[0].signed_until, 5);
}

#[tokio::test]
async fn log_is_signed_early_after_a_thousand_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("caisson.db");
    let store = SqliteStore::open(&path).unwrap();
    let id = job(&store, 0).await;
    store.append(id, Fence::Anybody, (0..1200).map(|n| note(&n.to_string())).collect()).await.unwrap();
    assert_eq!(export_heads(folder.path(), id).unwrap().len(), 1);
}

#[tokio::test]
async fn every_tampered_column_is_found() {
    for sql in [
        "UPDATE events SET payload = replace(payload, 'note 3', 'note X') WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET time_ms = time_ms + 1 WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET kind = 'output' WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET call = 'other' WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET attempt = 9 WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET generation = 9 WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET tokens = 9 WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET digest = x'00' WHERE job = ?1 AND sequence = 5",
        "UPDATE events SET hash = x'00' WHERE job = ?1 AND sequence = 5",
        "UPDATE blobs SET data = x'28b52ffd' WHERE job = ?1",
        "DELETE FROM events WHERE job = ?1 AND sequence = 5",
        "DELETE FROM events WHERE job = ?1 AND sequence = 1",
        "DELETE FROM events WHERE job = ?1 AND sequence = 10",
        "UPDATE jobs SET next_sequence = 9 WHERE id = ?1",
        "UPDATE jobs SET head_hash = x'00' WHERE id = ?1",
        "UPDATE heads SET hash = '00' WHERE job = ?1",
        "UPDATE heads SET signature = '00' WHERE job = ?1",
        "UPDATE heads SET sequence = 9 WHERE job = ?1",
    ] {
        let (folder, first, second) = folder().await;
        change(folder.path(), sql, first);
        let report = verify_audit(folder.path(), None, &[]).unwrap();
        assert!(!report.is_sound, "{sql} was not found");
        let sound = report.jobs.iter().find(|it| it.job == second).unwrap();
        assert!(sound.faults.is_empty(), "{sql} harms another job: {}", faults(&report));
    }
}

/// Someone who can write to the database can recompute the chain and remove the heads; a head that was kept elsewhere
/// reveals that.
#[tokio::test]
async fn rewritten_log_is_found_by_a_kept_head() {
    let (folder, first, _) = folder().await;
    let kept = export_heads(folder.path(), first).unwrap();
    // The same job without its last two events, as if they had never been there.
    change(folder.path(), "DELETE FROM events WHERE job = ?1 AND sequence > 8", first);
    change(
        folder.path(),
        "UPDATE jobs SET next_sequence = 9, head_hash = (SELECT hash FROM events e WHERE e.job = jobs.id AND e.sequence = 8)
         WHERE id = ?1",
        first,
    );
    change(folder.path(), "DELETE FROM heads WHERE job = ?1", first);
    change(folder.path(), "UPDATE jobs SET state = 'draft' WHERE id = ?1", first);
    let header =
        "UPDATE jobs SET header = json_set(header, '$.state', 'draft', '$.ended_ms', NULL) WHERE id = ?1";
    change(folder.path(), header, first);
    let report = verify_audit(folder.path(), Some(first), &[]).unwrap();
    assert_eq!((report.is_sound, report.jobs[0].unsigned_events), (true, 8), "nothing inside tells of it");
    assert_eq!(report.jobs[0].heads_checked.newest_until, None, "and it says that it could not check that");
    let report = verify_audit(folder.path(), Some(first), &kept).unwrap();
    assert_eq!(report.jobs[0].heads_checked.newest_until, Some(10));
    assert!(
        faults(&report).contains("event 10, of which there is a kept head, is missing"),
        "{}",
        faults(&report)
    );
}

#[tokio::test]
async fn removed_job_is_found_by_a_kept_head() {
    let (folder, first, second) = folder().await;
    let kept = export_heads(folder.path(), first).unwrap();
    for table in ["events", "heads", "blobs"] {
        change(folder.path(), &format!("DELETE FROM {table} WHERE job = ?1"), first);
    }
    change(folder.path(), "DELETE FROM jobs WHERE id = ?1", first);
    for job in [None, Some(first)] {
        let report = verify_audit(folder.path(), job, &kept).unwrap();
        assert!(faults(&report).contains("the job was removed by hand"), "{}", faults(&report));
    }
    assert!(verify_audit(folder.path(), Some(second), &kept).unwrap().is_sound);
    assert!(verify_audit(folder.path(), Some(first), &[]).is_err(), "without a head nobody knows of it");
}

fn ada() -> Actor {
    serde_json::from_str(r#"{"name": "ada \n x", "key": "0193"}"#).unwrap()
}

#[tokio::test]
async fn server_deletion_is_distinguished_from_manual_removal() {
    let (folder, first, second) = folder().await;
    let kept = export_heads(folder.path(), first).unwrap();
    let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
    store.delete(first, ada()).await.unwrap();
    for job in [None, Some(first)] {
        let report = verify_audit(folder.path(), job, &kept).unwrap();
        assert!(report.is_sound, "{}", faults(&report));
        let of_first = report.jobs.iter().find(|it| it.job == first).unwrap();
        let deletion = of_first.deletion.clone().unwrap();
        assert_eq!((deletion.sequence, deletion.by.as_str()), (10, "ada \n x"));
        assert_eq!(deletion.by_key.as_ref().map(ToString::to_string).as_deref(), Some("0193"));
        assert!(deletion.is_signed());
    }
    let report = verify_audit(folder.path(), None, &[]).unwrap();
    assert_eq!((report.is_sound, report.deleted, report.jobs.len()), (true, 1, 1));
    assert!(verify_audit(folder.path(), Some(second), &[]).unwrap().is_sound);
    // A deletion statement is exported like heads, and counts if the database has lost its own.
    let exported = crate::audit::export_heads(&Sqlite, folder.path(), first).unwrap();
    assert_eq!((exported.heads.len(), exported.tombstones.len()), (0, 1));
    change(folder.path(), "DELETE FROM tombstones WHERE job = ?1", first);
    let report = verify_audit(folder.path(), None, &kept).unwrap();
    assert!(faults(&report).contains("removed by hand"), "{}", faults(&report));
    let both = ExternalRecords { heads: kept, tombstones: exported.tombstones };
    assert!(verify_kept(folder.path(), None, &both).unwrap().is_sound);
}

#[tokio::test]
async fn forged_deletion_statement_is_found() {
    let (folder, first, second) = folder().await;
    let kept = export_heads(folder.path(), first).unwrap();
    let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
    store.delete(first, ada()).await.unwrap();
    let forge = |tombstone: &Tombstone| {
        let connection = Connection::open(folder.path().join("caisson.db")).unwrap();
        let text = serde_json::to_string(tombstone).unwrap();
        connection.execute("UPDATE tombstones SET statement = ?1", [text]).unwrap();
        faults(&verify_audit(folder.path(), None, &kept).unwrap())
    };
    let own = crate::audit::export_heads(&Sqlite, folder.path(), first).unwrap().tombstones.remove(0);
    assert_eq!(forge(&own), "");
    for changed in [
        Tombstone { by: "bob".into(), ..own.clone() },
        Tombstone { by_key: None, ..own.clone() },
        Tombstone { time_ms: 0, ..own.clone() },
        Tombstone { sequence: 11, ..own.clone() },
        Tombstone { deleted_job: first, signature: "00".into(), ..own.clone() },
    ] {
        assert!(forge(&changed).contains("false signature"), "{changed:?}");
    }
    // Signed by another key, and signed by the server's key for a log shorter than what was kept.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = SigningKey::of(elsewhere.path()).unwrap().sign_deletion(first, (10, &[1; 32]), &ada());
    assert!(forge(&other).contains("by a key that does not count"));
    let key = SigningKey::of(folder.path()).unwrap();
    assert!(forge(&key.sign_deletion(first, (9, &[1; 32]), &ada())).contains("the log ended with event 9"));
    assert!(forge(&key.sign_deletion(first, (10, &[1; 32]), &ada())).contains("was not what it was"));
    // The statements are verified even if no head was kept.
    let connection = Connection::open(folder.path().join("caisson.db")).unwrap();
    let text = serde_json::to_string(&Tombstone { by: "bob".into(), ..own }).unwrap();
    connection.execute("UPDATE tombstones SET statement = ?1", [text]).unwrap();
    assert!(faults(&verify_audit(folder.path(), None, &[]).unwrap()).contains("false signature"));
    assert!(verify_audit(folder.path(), Some(second), &[]).unwrap().is_sound);
}

#[tokio::test]
async fn tampering_with_the_zip_or_the_file_list_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
    let id = job(&store, 0).await;
    let place = job_folder(folder.path(), id);
    std::fs::create_dir_all(place.join("audit")).unwrap();
    let files = [(place.join("output.zip"), "zip"), (place.join("audit/files.jsonl"), "list")];
    for (path, text) in &files {
        std::fs::write(path, text).unwrap();
    }
    let list = measure_file(&place, "audit/files.jsonl").unwrap();
    let zip = measure_file(&place, "output.zip").unwrap();
    let artifact = job::Artifact {
        name: zip.name,
        bytes: zip.bytes,
        files: 1,
        sha256: zip.sha256,
        source: "workspace".into(),
    };
    let stored = vec![EventBody::AuditFileStored(list).into(), EventBody::ArtifactStored(artifact).into()];
    store.append(id, Fence::Anybody, stored).await.unwrap();
    let look = || verify_audit(folder.path(), Some(id), &[]).unwrap();
    assert_eq!(look().jobs[0].files, [], "a job that is not over may still write them");
    end(&store, id).await;
    let states = || look().jobs[0].files.iter().map(|file| file.state).collect::<Vec<_>>();
    assert_eq!((states(), look().is_sound), (vec![FileState::Sound, FileState::Sound], true));
    // Retention does not drop the digests.
    store.drop_payloads(id).await.unwrap();
    for (path, text) in &files {
        std::fs::write(path, text.to_uppercase()).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let told = faults(&look());
        assert!(told.contains("was changed") && told.contains(name), "{told}");
        std::fs::remove_file(path).unwrap();
        assert!(look().is_sound, "one that is gone is said to be");
    }
    assert_eq!(states(), [FileState::Absent, FileState::Absent]);
}

#[tokio::test]
async fn a_forged_head_is_refused() {
    let (folder, first, _) = folder().await;
    let kept = export_heads(folder.path(), first).unwrap();
    let forged = SignedHead { hash: "11".repeat(32), ..kept[0].clone() };
    let report = verify_audit(folder.path(), Some(first), &[forged]).unwrap();
    assert!(faults(&report).contains("false signature"), "{}", faults(&report));
    // A head that another key signed over other events.
    let other = tempfile::tempdir().unwrap();
    let key = SigningKey::of(other.path()).unwrap();
    let report = verify_audit(folder.path(), Some(first), &[key.sign(first, (10, &[1; 32]), None)]).unwrap();
    assert!(faults(&report).contains("not what it was"), "{}", faults(&report));
}

/// Someone who can write to the database can recompute the chain and sign it with a key of their own.
#[tokio::test]
async fn rewritten_log_signed_by_another_key_is_found() {
    let (folder, first, second) = folder().await;
    let known = TrustedKeys::of_folder(folder.path());
    change(folder.path(), "DELETE FROM events WHERE job = ?1 AND sequence > 8", first);
    change(
        folder.path(),
        "UPDATE jobs SET next_sequence = 9, head_hash = (SELECT hash FROM events e WHERE e.job = jobs.id AND e.sequence = 8)
         WHERE id = ?1",
        first,
    );
    change(folder.path(), "DELETE FROM heads WHERE job = ?1", first);
    let header = "UPDATE jobs SET state = 'draft', header = json_set(header, '$.state', 'draft', '$.ended_ms', NULL) WHERE id = ?1";
    change(folder.path(), header, first);
    let connection = Connection::open(folder.path().join("caisson.db")).unwrap();
    let hash: Vec<u8> = connection
        .query_row("SELECT head_hash FROM jobs WHERE id = ?1", [first.to_string()], |row| row.get(0))
        .unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let SignedHead { sequence, hash, time_ms, key, signature, .. } =
        SigningKey::of(elsewhere.path()).unwrap().sign(first, (8, &hash), None);
    connection
        .execute(
            "INSERT INTO heads (job, sequence, hash, time_ms, key, signature, number) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1)",
            rusqlite::params![first.to_string(), sequence, hash, time_ms, key, signature],
        )
        .unwrap();
    let report = verify_audit(folder.path(), None, &[]).unwrap();
    assert!(faults(&report).contains("by a key that does not count"), "{}", faults(&report));
    let sound = report.jobs.iter().find(|it| it.job == second).unwrap();
    assert!(sound.faults.is_empty(), "{}", faults(&report));
    // Someone who can write to the whole folder can add their key there; that does not help against a caller who has
    // kept the right key elsewhere.
    std::fs::write(folder.path().join("audit.pub.old"), &key).unwrap();
    assert!(verify_audit(folder.path(), Some(first), &[]).unwrap().is_sound);
    let report =
        crate::audit::verify_audit(&Sqlite, folder.path(), Some(first), &ExternalRecords::default(), &known)
            .unwrap();
    assert!(faults(&report).contains("by a key that does not count"), "{}", faults(&report));
}

#[tokio::test]
async fn dropping_payloads_keeps_the_chain_intact() {
    let (folder, first, _) = folder().await;
    let kept = export_heads(folder.path(), first).unwrap();
    let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
    store.drop_payloads(first).await.unwrap();
    let report = verify_audit(folder.path(), Some(first), &kept).unwrap();
    assert!(report.is_sound, "{}", faults(&report));
    assert_eq!((report.jobs[0].dropped_payloads, report.jobs[0].signed_until), (8, 10));
    // Payloads that show how the job went are never dropped.
    change(folder.path(), "UPDATE events SET payload = NULL WHERE job = ?1 AND sequence = 10", first);
    let report = verify_audit(folder.path(), Some(first), &kept).unwrap();
    assert!(faults(&report).contains("event 10: its payload was removed"), "{}", faults(&report));
}

#[tokio::test]
async fn removed_payloads_are_found_even_if_marked_as_dropped() {
    let (folder, first, second) = folder().await;
    let kept = export_heads(folder.path(), first).unwrap();
    let store = SqliteStore::open(&folder.path().join("caisson.db")).unwrap();
    end(&store, second).await;
    store.drop_payloads(second).await.unwrap();
    change(folder.path(), "UPDATE events SET payload = NULL WHERE job = ?1 AND kind = 'note'", first);
    change(folder.path(), "DELETE FROM blobs WHERE job = ?1", first);
    change(folder.path(), "UPDATE jobs SET payloads_dropped = 1 WHERE id = ?1", first);
    let missed = || {
        let report = verify_audit(folder.path(), Some(first), &kept).unwrap();
        assert!(faults(&report).contains("its payload was removed, and not by retention"), "{report:?}");
    };
    missed();
    // A statement about another job does not help, nor does one signed by another key.
    change(
        folder.path(),
        "INSERT INTO drops SELECT ?1, time_ms, key, signature, sequence, view, network_bytes, network_sha256 FROM drops",
        first,
    );
    missed();
    let elsewhere = tempfile::tempdir().unwrap();
    let connection = Connection::open(folder.path().join("caisson.db")).unwrap();
    let statement =
        drops::of_job(&connection, second, &TrustedKeys::of_folder(folder.path())).unwrap().unwrap();
    let own = SigningKey::of(elsewhere.path()).unwrap().sign_drop(first, statement.derived);
    assert!(own.is_signed());
    let sql = format!(
        "UPDATE drops SET time_ms = {}, key = '{}', signature = '{}' WHERE job = ?1",
        own.time_ms, own.key, own.signature
    );
    change(folder.path(), &sql, first);
    missed();
    // A server that restarts does not sign it afterwards.
    change(folder.path(), "DELETE FROM drops WHERE job = ?1", first);
    drop(store);
    drop(SqliteStore::open(&folder.path().join("caisson.db")).unwrap());
    missed();
    let report = verify_audit(folder.path(), Some(second), &[]).unwrap();
    assert!(report.is_sound, "what the server has dropped is no fault: {}", faults(&report));
}

#[tokio::test]
async fn payloads_not_dropped_by_retention_are_reported_missing() {
    let (folder, first, _) = folder().await;
    change(folder.path(), "UPDATE events SET payload = NULL WHERE job = ?1 AND sequence = 4", first);
    change(folder.path(), "DELETE FROM blobs WHERE job = ?1", first);
    let report = verify_audit(folder.path(), Some(first), &[]).unwrap();
    let faults = faults(&report);
    assert!(faults.contains("event 4: its payload was removed, and not by retention"), "{faults}");
    assert!(faults.contains("event 9: its payload was removed"), "{faults}");
}
