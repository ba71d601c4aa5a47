//! Records the files that commands write, for replaying a job: file tools log what they wrote, commands do not.
//!
//! After a call that may have written something, the workspace is listed and compared with its previous state. The
//! changes are logged as an event, with the text of small files. The agent does not wait for this, and calls in quick
//! succession are covered by one scan, so the event shows a file as it was soon after a call, not exactly at its end.
//! Everything is bounded; what is left out is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use job::{EventBody, FileChange, FilesChanged, SKIPPED_FOLDERS};
use protocol::{FileKind, FileOperation, FileReply, GuestClient};
use sandbox::SandboxId;
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::recorder::Recorder;

/// Pause between two scans.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of one scan. What it would have found is found by the scan after the next call, which a job may not have
/// for a long time.
const TIMEOUT: Duration = Duration::from_secs(15);
const MAX_LISTED: u32 = 5_000;
const MAX_DEPTH: u32 = 20;
/// Maximum number of files per event.
const MAX_FILES: usize = 100;
/// Maximum size of a file whose text is kept.
const MAX_TEXT_BYTES: u64 = 64 << 10;
/// Maximum amount of text per event, and per job while one server drives it.
const MAX_EVENT_BYTES: u64 = 256 << 10;
const MAX_JOB_BYTES: u64 = 16 << 20;

/// Size and modification time of a file.
type SizeAndTime = (u64, i64);

/// Scans the workspace of one job.
pub(super) struct FileHistory {
    recorder: Arc<Recorder>,
    guest: watch::Receiver<Option<GuestClient>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Whether changes are currently logged.
    is_open: bool,
    /// The sandbox that `files` belongs to; for another sandbox, all files are reported again.
    sandbox: Option<SandboxId>,
    files: BTreeMap<String, SizeAndTime>,
    /// The number of calls at the last scan.
    calls: u64,
    kept_bytes: u64,
}

impl FileHistory {
    /// Scans after every call until the token is cancelled.
    pub(super) fn start(
        recorder: Arc<Recorder>,
        guest: watch::Receiver<Option<GuestClient>>,
        end: CancellationToken,
    ) -> Arc<Self> {
        let mut calls = recorder.writing_calls();
        let history = Arc::new(Self { recorder, guest, known: Mutex::default() });
        let keeper = Arc::clone(&history);
        tokio::spawn(async move {
            let looking = async {
                while calls.changed().await.is_ok() {
                    let count = *calls.borrow_and_update();
                    keeper.look(count).await;
                    sleep(SCAN_INTERVAL).await;
                }
            };
            tokio::select! {
                () = end.cancelled() => {}
                () = looking => {}
            }
        });
        history
    }

    /// Starts logging changes: the job's work begins.
    pub(super) async fn open(&self) {
        self.known.lock().await.is_open = true;
    }

    /// Scans once more for changes since the last scan, then stops logging: the job's work is over.
    pub(super) async fn close(&self) {
        let count = *self.recorder.writing_calls().borrow();
        self.look(count).await;
        self.known.lock().await.is_open = false;
    }

    async fn look(&self, count: u64) {
        let mut known = self.known.lock().await;
        if !known.is_open || known.calls == count {
            return;
        }
        let Some(client) = self.guest.borrow().clone() else { return };
        known.calls = count;
        let sandbox = self.recorder.with_view(|view| view.sandbox).await;
        let seen_after = self.recorder.last().await;
        let is_whole = known.sandbox != sandbox;
        if is_whole {
            known.files.clear();
            known.sandbox = sandbox;
        }
        // A failed scan must not disturb the job.
        if let Ok(Some((files, left_out))) = timeout(TIMEOUT, compare(&client, &mut known)).await {
            let changed = FilesChanged { is_whole, seen_after, files, left_out };
            let _ = self.recorder.record(EventBody::FilesChanged(changed)).await;
        }
    }
}

/// The changes since the last scan, and how many more were left out.
async fn compare(client: &GuestClient, known: &mut Known) -> Option<(Vec<FileChange>, u64)> {
    let list = FileOperation::List {
        path: String::new(),
        depth: MAX_DEPTH,
        limit: MAX_LISTED,
        skip: SKIPPED_FOLDERS.map(str::to_owned).to_vec(),
    };
    let FileReply::Entries { entries, truncated } = client.file(None, list).await.ok()? else { return None };
    let is_file = |entry: &protocol::FileEntry| entry.stat.kind == FileKind::File;
    let found: BTreeMap<String, SizeAndTime> = entries
        .into_iter()
        .filter(is_file)
        .map(|entry| (entry.path, (entry.stat.size, entry.stat.modified_ms)))
        .collect();
    let differs = |(path, facts): &(&String, &SizeAndTime)| known.files.get(*path) != Some(*facts);
    let written: Vec<(String, u64)> =
        found.iter().filter(differs).map(|(path, facts)| (path.clone(), facts.0)).collect();
    // A truncated list cannot show which files were removed.
    let removed: Vec<String> = match truncated {
        true => Vec::new(),
        false => known.files.keys().filter(|path| !found.contains_key(*path)).cloned().collect(),
    };
    known.files = found;
    let left_out = (written.len() + removed.len()).saturating_sub(MAX_FILES) as u64;
    let mut files: Vec<FileChange> = removed.into_iter().take(MAX_FILES).map(FileChange::removed).collect();
    let mut event_bytes = 0;
    for (path, size) in written.into_iter().take(MAX_FILES - files.len()) {
        let fits = size <= MAX_TEXT_BYTES
            && event_bytes + size <= MAX_EVENT_BYTES
            && known.kept_bytes + size <= MAX_JOB_BYTES;
        let content = if fits { text_of(client, &path).await } else { None };
        if content.is_some() {
            event_bytes += size;
            known.kept_bytes += size;
        }
        files.push(FileChange { path, size, content, is_removed: false });
    }
    (!files.is_empty()).then_some((files, left_out))
}

async fn text_of(client: &GuestClient, path: &str) -> Option<String> {
    let read = FileOperation::Read { path: path.to_owned(), offset: 0, limit_bytes: MAX_TEXT_BYTES };
    match client.file(None, read).await {
        Ok(FileReply::Content { content, base64: false, .. }) => Some(content),
        _ => None,
    }
}
