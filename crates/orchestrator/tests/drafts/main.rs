//! Tests of drafts under concurrent operations. They use a real orchestrator and need no sandbox.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[allow(dead_code, reason = "no guest is asked for anything here")]
#[path = "../hostile_guest/guest.rs"]
mod guest;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use job::{JobId, NewJob};
use orchestrator::{ArchiveKind, DataFolder, Orchestrator, Settings, Submission};
use store::{LocalDatabase as _, Sqlite};

/// Generous timeout that only detects hangs.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Enough files that unpacking them takes a while.
const FILES: usize = 20_000;

struct TestServer {
    folder: tempfile::TempDir,
    orchestrator: Arc<Orchestrator>,
}

impl TestServer {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let orchestrator = start(folder.path(), Settings::default()).await;
        Self { folder, orchestrator }
    }

    async fn draft(&self) -> JobId {
        self.draft_with_disk(512).await
    }

    async fn draft_with_disk(&self, disk_mib: u64) -> JobId {
        let steps = r#"[{"tool":"shell","command":"true"}]"#;
        let json = format!(r#"{{"steps":{steps},"start":false,"limits":{{"disk_mib":{disk_mib}}}}}"#);
        let job: NewJob = serde_json::from_str(&json).unwrap();
        let submission = Submission { job, ..Submission::default() };
        self.orchestrator.submit(submission).await.unwrap().view.job_id
    }

    fn uploads(&self, id: JobId) -> PathBuf {
        self.folder.path().join("jobs").join(id.to_string()).join("upload")
    }

    async fn upload(&self, id: JobId, tar: Vec<u8>) -> Result<(), orchestrator::OrchestratorError> {
        let body = futures::stream::iter([Ok(Bytes::from(tar))]);
        self.orchestrator.upload_archive(id, ArchiveKind::Tar, body).await
    }

    /// Starts to unpack an archive and returns once its first file exists.
    async fn begin_upload(&self, id: JobId) -> tokio::task::JoinHandle<()> {
        let orchestrator = Arc::clone(&self.orchestrator);
        let body = futures::stream::iter([Ok(Bytes::from(tar_of("", FILES)))]);
        let uploading = tokio::spawn(async move {
            orchestrator.upload_archive(id, ArchiveKind::Tar, body).await.unwrap();
        });
        let first = self.uploads(id).join("0");
        let begun = async {
            while !first.exists() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, begun).await.expect("the archive is unpacked");
        uploading
    }
}

async fn start(folder: &Path, settings: Settings) -> Arc<Orchestrator> {
    let data = DataFolder::open(folder).unwrap();
    let backend: Arc<dyn sandbox::Backend> = Arc::new(guest::FakeBackend::default());
    let store = Sqlite.open(folder).unwrap();
    Arc::new(Orchestrator::start(data, store, backend, settings).await.unwrap())
}

/// A tar of empty files.
fn tar_of(folder: &str, files: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for number in 0..files {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("{folder}{number}"), std::io::empty()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draft_starts_only_after_archives_are_unpacked() {
    let world = TestServer::new().await;
    let id = world.draft().await;
    let uploading = world.begin_upload(id).await;
    world.orchestrator.start_draft(id).await.unwrap();
    assert_eq!(count(&world.uploads(id)), FILES, "it was started in the middle of an archive");
    uploading.await.unwrap();
    let error = world.orchestrator.remove_upload(id, "0").await.unwrap_err();
    assert_eq!(error.code(), "wrong_state", "{error}");
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_removal_waits_for_a_running_unpack() {
    let world = TestServer::new().await;
    let id = world.draft().await;
    let uploading = world.begin_upload(id).await;
    world.orchestrator.remove_upload(id, "0").await.unwrap();
    assert_eq!(count(&world.uploads(id)), FILES - 1);
    uploading.await.unwrap();
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archives_of_one_draft_share_the_file_limit() {
    let world = TestServer::new().await;
    let id = world.draft().await;
    world.upload(id, tar_of("one/", 150_000)).await.unwrap();
    let error = world.upload(id, tar_of("two/", 60_000)).await.unwrap_err();
    assert_eq!(error.code(), "file_too_large", "{error}");
    assert!(error.to_string().contains("at most 200000 files and directories"), "{error}");
    // A single file counts as well, and so does a directory.
    let body = futures::stream::iter([Ok(Bytes::from_static(b"x"))]);
    let error = world.orchestrator.upload_file(id, "three", None, body).await.unwrap_err();
    assert_eq!(error.code(), "file_too_large", "{error}");
    world.orchestrator.shutdown().await;
}

/// Resubmitting an old job must not bypass limits that the operator has set since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_above_a_lowered_ceiling_cannot_be_started_or_retried() {
    let world = TestServer::new().await;
    let json = r#"{"steps":[{"tool":"shell","command":"true"}],"start":false,"egress":"open"}"#;
    let submit = || Submission { job: serde_json::from_str(json).unwrap(), ..Submission::default() };
    let id = world.orchestrator.submit(submit()).await.unwrap().view.job_id;
    world
        .orchestrator
        .change_settings(Settings { egress_ceiling: Some(egress::Mode::Off), ..Settings::default() });
    let started = world.orchestrator.start_draft(id).await.map(drop);
    let repeated = world.orchestrator.retry(id, None).await.map(drop);
    for refused in [started, repeated] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("egress"), "{error}");
    }
    let mut settings = Settings::default();
    settings.defaults.allowance.bytes = Some(1000);
    world.orchestrator.change_settings(settings);
    let again = world.orchestrator.retry(id, None).await.unwrap().view.job_id;
    let log = world.orchestrator.events(again, 0, 1).await.unwrap();
    let job::EventBody::JobCreated { spec } = &log[0].body else { panic!("{log:?}") };
    assert_eq!(spec.egress_settings.allowance.bytes, Some(1000));
    world.orchestrator.start_draft(id).await.unwrap();
    world.orchestrator.shutdown().await;
}

/// Text that barely compresses.
fn noise(seed: u64, length: usize) -> String {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 58) as u8)
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.metadata().unwrap() {
            metadata if metadata.is_dir() => bytes_below(&entry.path()),
            metadata => metadata.len(),
        })
        .sum()
}

/// The folders alone are within the limit; the database exceeds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_jobs_are_removed_when_the_database_exceeds_the_limit() {
    const TEXT_BYTES: usize = 1 << 20;
    let world = TestServer::new().await;
    let mut jobs = Vec::new();
    for seed in 1..=4 {
        let steps: Vec<_> = (0..16)
            .map(|step| serde_json::json!({"tool": "shell", "command": noise(seed << 8 | step, TEXT_BYTES / 16)}))
            .collect();
        let job = serde_json::from_value(serde_json::json!({"steps": steps, "start": false})).unwrap();
        let submission = Submission { job, ..Submission::default() };
        let id = world.orchestrator.submit(submission).await.unwrap().view.job_id;
        world.orchestrator.cancel(id).await.unwrap();
        let over = async {
            while !world.orchestrator.job(id).await.unwrap().state.is_over() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, over).await.expect("it is cancelled");
        jobs.push(id);
    }
    world.orchestrator.shutdown().await;
    let TestServer { folder, orchestrator } = world;
    drop(orchestrator);
    let in_folders = bytes_below(&folder.path().join("jobs"));
    let retention_bytes = in_folders + TEXT_BYTES as u64;
    let orchestrator = start(folder.path(), Settings { retention_bytes, ..Settings::default() }).await;
    wait_until_gone(&orchestrator, jobs[0]).await;
    orchestrator.job(jobs[3]).await.expect("the newest is kept");
    orchestrator.shutdown().await;
}

/// The limit also holds when usage is not recounted for each file.
#[tokio::test]
async fn draft_uploads_are_limited_to_the_disk_size() {
    const MEBIBYTE: usize = 1 << 20;
    async fn put(orchestrator: &Orchestrator, id: JobId, name: &str, bytes: usize) -> Option<&'static str> {
        let body = futures::stream::iter([Ok(Bytes::from(vec![7; bytes]))]);
        orchestrator.upload_file(id, name, None, body).await.err().map(|error| error.code())
    }
    let world = TestServer::new().await;
    let (id, orchestrator) = (world.draft_with_disk(64).await, &world.orchestrator);
    for _ in 0..20 {
        assert_eq!(put(orchestrator, id, "again", 4 * MEBIBYTE).await, None, "it takes the place of itself");
    }
    world.upload(id, tar_of("of-an-archive/", 3)).await.unwrap();
    for number in 1..16 {
        assert_eq!(put(orchestrator, id, &format!("in/{number}"), 4 * MEBIBYTE).await, None);
    }
    let full = Some("file_too_large");
    assert_eq!(put(orchestrator, id, "more", 1).await, full);
    assert_eq!(put(orchestrator, id, "again", 4 * MEBIBYTE + 1).await, full);
    assert_eq!(put(orchestrator, id, "again", 4 * MEBIBYTE - 2).await, None);
    assert_eq!(put(orchestrator, id, "more", 3).await, full);
    assert_eq!(put(orchestrator, id, "more", 2).await, None);
    orchestrator.remove_upload(id, "in/3").await.unwrap();
    assert_eq!(put(orchestrator, id, "other", 4 * MEBIBYTE + 1).await, full);
    assert_eq!(put(orchestrator, id, "other", 4 * MEBIBYTE).await, None);
    orchestrator.shutdown().await;
    let TestServer { folder, orchestrator } = world;
    drop(orchestrator);
    let orchestrator = start(folder.path(), Settings::default()).await;
    assert_eq!(put(&orchestrator, id, "more", 3).await, full);
    assert_eq!(put(&orchestrator, id, "more", 2).await, None);
    orchestrator.shutdown().await;
}

/// More jobs than one page. A single thread runs both the test and the removal, so that neither gets ahead of the
/// other.
#[tokio::test]
async fn retention_removes_jobs_in_batches_and_shutdown_does_not_wait() {
    const MANY: usize = 2500;
    let world = TestServer::new().await;
    let mut jobs = futures::future::join_all((0..MANY).map(|_| world.draft())).await;
    jobs.sort_unstable();
    world.orchestrator.shutdown().await;
    let TestServer { folder, orchestrator } = world;
    drop(orchestrator);
    let at_once = Settings { retention_age: Duration::ZERO, ..Settings::default() };
    let orchestrator = start(folder.path(), at_once.clone()).await;
    wait_until_gone(&orchestrator, jobs[0]).await;
    orchestrator.shutdown().await;
    orchestrator.job(jobs[MANY - 1]).await.expect("the stop came before its turn");
    drop(orchestrator);
    let orchestrator = start(folder.path(), at_once).await;
    wait_until_gone(&orchestrator, jobs[MANY - 1]).await;
    for job in jobs {
        assert!(orchestrator.job(job).await.is_err(), "{job} was passed over");
    }
    orchestrator.shutdown().await;
}

async fn wait_until_gone(orchestrator: &Orchestrator, job: JobId) {
    let removed = async {
        while orchestrator.job(job).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, removed).await.expect("it is removed");
}
