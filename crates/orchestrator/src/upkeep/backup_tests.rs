//! Tests of backups made while the folder is in use, and of archives that a restore must refuse.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use job::{EventBody, Fence, JobDefaults, JobId, JobState, NewEvent, NewJob};
use sandbox::SandboxId;
use store::{ExternalRecords, LocalDatabase, NewRecord, Sqlite, Store, TrustedKeys, verify_audit};
use tempfile::TempDir;

use crate::core::model_choice_file::ModelChoiceFile;
use crate::data_folder::DataFolder;
use crate::upkeep::backup::back_up;
use crate::upkeep::restore::restore;

struct Host {
    root: TempDir,
    folder: DataFolder,
    store: Arc<dyn Store>,
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(&root.path().join("data")).unwrap();
        let store = Sqlite.open(&root.path().join("data")).unwrap();
        Self { root, folder, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    async fn job(&self, events: Vec<NewEvent>) -> JobId {
        let json = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;
        let spec = serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default()).unwrap();
        let id = JobId::generate();
        self.store.create(NewRecord { id, spec, events, idempotency: None }).await.unwrap();
        self.folder.make_job(id).unwrap();
        fs::write(self.folder.agent_log(id), format!("log of {id}\n")).unwrap();
        id
    }

    /// One finished job, one running job with a checkpoint, and a backup of both.
    async fn backed_up(&self) -> (JobId, JobId, PathBuf) {
        let over = self.job(vec![state(JobState::Queued), state(JobState::Complete)]).await;
        fs::write(self.folder.output(over), vec![7; 300_000]).unwrap();
        let sandbox = SandboxId::generate();
        let running = self
            .job(vec![
                state(JobState::Starting),
                EventBody::SandboxRequested { sandbox }.into(),
                state(JobState::Running),
                EventBody::Checkpoint { steps: 1, bytes: 5 }.into(),
            ])
            .await;
        fs::write(self.folder.checkpoint(running, 1), "saved").unwrap();
        fs::write(self.folder.job(running).join("checkpoint-2.partial"), "half").unwrap();
        let upload = self.folder.upload(running).join("checkpoint-of-the-impartial");
        fs::create_dir_all(self.folder.upload(running)).unwrap();
        fs::write(&upload, "theirs").unwrap();
        fs::set_permissions(&upload, fs::Permissions::from_mode(0o755)).unwrap();
        let archive = self.path("backup.tar.zst");
        let report = back_up(&Sqlite, &self.path("data"), &archive).unwrap();
        assert_eq!((report.jobs, report.unfinished, report.gone.len()), (2, 1, 0));
        (over, running, archive)
    }
}

fn state(state: JobState) -> NewEvent {
    EventBody::StateChanged { state, code: None, reason: None }.into()
}

#[track_caller]
fn assert_empty(folder: &Path) {
    let left: Vec<_> = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn concurrent_backup_to_the_same_file_is_refused() {
    let host = Host::new();
    host.job(vec![state(JobState::Queued)]).await;
    let archive = host.path("backup.tar.zst");
    let partial = fs::File::create(host.path("backup.tar.zst.partial")).unwrap();
    partial.lock().unwrap();
    let error = back_up(&Sqlite, &host.path("data"), &archive).unwrap_err().to_string();
    assert!(error.contains("another backup to") && error.contains("choose another name"), "{error}");
    assert!(host.path("backup.tar.zst.partial").exists());
    // Leftovers of a killed backup do not get in the way.
    drop(partial);
    back_up(&Sqlite, &host.path("data"), &archive).unwrap();
    assert!(archive.exists() && !host.path("backup.tar.zst.partial").exists());
}

#[tokio::test]
async fn restore_works_while_the_original_server_keeps_running() {
    let host = Host::new();
    let (over, running, archive) = host.backed_up().await;
    host.store
        .append(over, Fence::Anybody, vec![EventBody::Note { text: "later".into() }.into()])
        .await
        .unwrap();
    let target = host.path("restored");
    let report = restore(Arc::new(Sqlite), &archive, &target).await.unwrap();
    assert_eq!((report.jobs, report.unfinished), (2, 1));
    let folder = DataFolder::open(&target).unwrap();
    assert_eq!(fs::read(folder.output(over)).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::read_to_string(folder.agent_log(over)).unwrap(), format!("log of {over}\n"));
    assert_eq!(fs::read_to_string(folder.checkpoint(running, 1)).unwrap(), "saved");
    assert!(!folder.job(running).join("checkpoint-2.partial").exists());
    let upload = folder.upload(running).join("checkpoint-of-the-impartial");
    assert_eq!(fs::metadata(upload).unwrap().permissions().mode() & 0o777, 0o755);
    let store = Sqlite.open(&target).unwrap();
    assert_eq!(store.events(over, 0, 10).await.unwrap().len(), 3, "what came after the backup is not in it");
    let (before, after) = (host.store.job(running).await.unwrap(), store.job(running).await.unwrap());
    assert_eq!(after.state, JobState::Running);
    assert!(after.sandbox.is_some() && after.sandbox != before.sandbox, "it shares a sandbox with the first");
    store.sign_heads().await.unwrap();
    let trusted = TrustedKeys::of_folder(&target);
    let report = verify_audit(&Sqlite, &target, None, &ExternalRecords::default(), &trusted).unwrap();
    assert!(report.is_sound, "what the first server signed is good here: {report:?}");
    assert_eq!(report.jobs.iter().filter(|job| job.heads > 0).count(), 2, "{report:?}");
}

#[tokio::test]
async fn restore_into_a_used_or_nonempty_folder_is_refused() {
    let host = Host::new();
    let (_, _, archive) = host.backed_up().await;
    let error = restore(Arc::new(Sqlite), &archive, &host.path("data")).await.unwrap_err().to_string();
    assert!(error.contains("in use by another caisson server"), "{error}");
    let other = host.path("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("mine"), "").unwrap();
    let error = restore(Arc::new(Sqlite), &archive, &other).await.unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
}

#[tokio::test]
async fn restore_starts_over_after_a_killed_restore() {
    let host = Host::new();
    let (over, _, archive) = host.backed_up().await;
    let folder = host.path("restored");
    // The leftovers of a restore killed while it unpacked, and of one killed while it moved jobs into place.
    for moved in ["", "0197a0e0-0000-7000-8000-000000000000"] {
        fs::create_dir_all(folder.join("restore.partial/jobs")).unwrap();
        fs::write(folder.join("restore.partial/caisson.db"), "half").unwrap();
        fs::create_dir_all(folder.join("jobs").join(moved)).unwrap();
        fs::write(folder.join("lock"), "").unwrap();
        restore(Arc::new(Sqlite), &archive, &folder).await.unwrap();
        assert!(!folder.join("restore.partial").exists());
        assert!(folder.join("jobs").join(over.to_string()).join("output.zip").is_file());
        assert!(moved.is_empty() || !folder.join("jobs").join(moved).exists(), "of the first attempt");
        fs::remove_dir_all(&folder).unwrap();
    }
    // Files that the restore did not create are not touched.
    fs::create_dir_all(folder.join("restore.partial")).unwrap();
    fs::write(folder.join("mine"), "").unwrap();
    let error = restore(Arc::new(Sqlite), &archive, &folder).await.unwrap_err().to_string();
    assert!(error.contains("is not empty") && folder.join("restore.partial").exists(), "{error}");
}

#[tokio::test]
async fn damaged_or_truncated_archive_is_refused_without_leftovers() {
    let host = Host::new();
    let (_, _, archive) = host.backed_up().await;
    let whole = fs::read(&archive).unwrap();
    let target = host.path("restored");
    for (name, bytes) in [
        ("cut", whole[..whole.len() - 40].to_vec()),
        ("foreign", b"no archive".to_vec()),
        ("empty", Vec::new()),
    ] {
        let path = host.path(name);
        fs::write(&path, bytes).unwrap();
        let error = restore(Arc::new(Sqlite), &path, &target).await.unwrap_err().to_string();
        assert!(error.contains("damaged"), "{name}: {error}");
        assert_empty(&target);
    }
}

#[tokio::test]
async fn backups_do_not_contain_the_key_of_the_chosen_model() {
    let host = Host::new();
    let json = r#"{"provider": "openai", "model": "gpt-5", "key": "sk-very-secret"}"#;
    let choice = serde_json::from_str::<model::NewModelChoice>(json).unwrap().check().unwrap();
    ModelChoiceFile::of_folder(host.folder.root()).write(&choice).unwrap();
    let (_, _, archive) = host.backed_up().await;
    let tar = zstd::decode_all(fs::File::open(&archive).unwrap()).unwrap();
    assert!(!tar.windows(14).any(|bytes| bytes == b"sk-very-secret"));
    let target = host.path("restored");
    restore(Arc::new(Sqlite), &archive, &target).await.unwrap();
    assert_eq!(ModelChoiceFile::of_folder(&target).read().unwrap(), None);
}

#[tokio::test]
async fn restore_names_a_modified_file() {
    let host = Host::new();
    let (over, _, archive) = host.backed_up().await;
    let tar = zstd::decode_all(fs::File::open(&archive).unwrap()).unwrap();
    let changed: Vec<u8> = {
        let at = tar.windows(64).position(|window| window == [7; 64]).unwrap();
        let mut changed = tar;
        changed[at + 10] = 8;
        changed
    };
    let path = host.path("changed");
    fs::write(&path, zstd::encode_all(changed.as_slice(), 1).unwrap()).unwrap();
    let error = restore(Arc::new(Sqlite), &path, &host.path("restored")).await.unwrap_err().to_string();
    assert!(error.contains(&format!("jobs/{over}/output.zip is not what was backed up")), "{error}");
}

#[tokio::test]
async fn archive_with_paths_outside_the_folder_is_refused() {
    let root = tempfile::tempdir().unwrap();
    for path in ["../outside", "jobs/x/file", "jobs/file", "etc/passwd"] {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(0);
        header.set_mode(0o600);
        header.set_cksum();
        tar.append(&header, std::io::empty()).unwrap();
        let archive = root.path().join("archive");
        fs::write(&archive, zstd::encode_all(tar.into_inner().unwrap().as_slice(), 1).unwrap()).unwrap();
        let error =
            restore(Arc::new(Sqlite), &archive, &root.path().join("target")).await.unwrap_err().to_string();
        assert!(error.contains("does not belong in it"), "{path}: {error}");
    }
    assert!(!root.path().join("outside").exists());
}

#[test]
fn backup_never_overwrites_and_refuses_foreign_folders() {
    let host = Host::new();
    let archive = host.path("backup");
    fs::write(&archive, "precious").unwrap();
    let error = back_up(&Sqlite, &host.path("data"), &archive).unwrap_err().to_string();
    assert!(error.contains("exists"), "{error}");
    assert_eq!(fs::read_to_string(&archive).unwrap(), "precious");
    let error = back_up(&Sqlite, host.root.path(), &host.path("new")).unwrap_err().to_string();
    assert!(error.contains("is no data folder"), "{error}");
}
