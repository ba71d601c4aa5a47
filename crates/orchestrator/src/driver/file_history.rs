//! The files that commands write, for whoever plays a job back: file tools tell what they wrote, commands do not.
//!
//! After a call that may have written something the workspace is listed and compared with how it was before; what changed is
//! an event, with the text of small files. The agent does not wait for it, and calls that follow quickly are looked at
//! together, so this is what a file was like soon after a call, not at its very end. Bounded in every direction; what is
//! left out is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::{FileKind, FileOperation, FileReply, GuestClient};
use sandbox::SandboxId;
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::event::{EventBody, FileChange, FilesChanged};
use crate::recorder::Recorder;
use crate::workspace_path::UNLISTED;

/// Between two looks.
const REST: Duration = Duration::from_secs(1);
/// For one look; a sandbox that is busy is looked at the next time.
const PATIENCE: Duration = Duration::from_secs(3);
const MOST_LISTED: u32 = 5_000;
const MOST_DEPTH: u32 = 20;
/// The most files of one event.
const MOST_FILES: usize = 100;
/// The largest file whose text is kept.
const MOST_TEXT_BYTES: u64 = 64 << 10;
/// The most text of one event, and of one job while a server drives it.
const MOST_EVENT_BYTES: u64 = 256 << 10;
const MOST_JOB_BYTES: u64 = 16 << 20;

/// Size and time of a file.
type Facts = (u64, i64);

/// Looks at the workspace of one job.
pub(super) struct FileHistory {
    recorder: Arc<Recorder>,
    guest: watch::Receiver<Option<GuestClient>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Whether anything may be written to the log.
    is_open: bool,
    /// The sandbox whose files these are; of another one everything is told anew.
    sandbox: Option<SandboxId>,
    files: BTreeMap<String, Facts>,
    /// The number of calls that the last look has seen.
    calls: u64,
    kept_bytes: u64,
}

impl FileHistory {
    /// Looks after every call until the token is cancelled.
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
                    sleep(REST).await;
                }
            };
            tokio::select! {
                () = end.cancelled() => {}
                () = looking => {}
            }
        });
        history
    }

    /// The job works: from now on looks are worth something.
    pub(super) async fn open(&self) {
        self.known.lock().await.is_open = true;
    }

    /// The work is over. What was not looked at yet is looked at now, and nothing more is written.
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
        let sandbox = self.recorder.look(|view| view.sandbox).await;
        let seen_after = self.recorder.last().await;
        let is_whole = known.sandbox != sandbox;
        if is_whole {
            known.files.clear();
            known.sandbox = sandbox;
        }
        // A look that fails is no reason to trouble the job.
        if let Ok(Some((files, left_out))) = timeout(PATIENCE, compare(&client, &mut known)).await {
            let changed = FilesChanged { is_whole, seen_after, files, left_out };
            let _ = self.recorder.record(EventBody::FilesChanged(changed)).await;
        }
    }
}

/// What has changed since the last look, and how much more.
async fn compare(client: &GuestClient, known: &mut Known) -> Option<(Vec<FileChange>, u64)> {
    let list = FileOperation::List {
        path: String::new(),
        depth: MOST_DEPTH,
        limit: MOST_LISTED,
        skip: UNLISTED.map(str::to_owned).to_vec(),
    };
    let FileReply::Entries { entries, truncated } = client.file(None, list).await.ok()? else { return None };
    let is_file = |entry: &protocol::FileEntry| entry.stat.kind == FileKind::File;
    let found: BTreeMap<String, Facts> = entries
        .into_iter()
        .filter(is_file)
        .map(|entry| (entry.path, (entry.stat.size, entry.stat.modified_ms)))
        .collect();
    let differs = |(path, facts): &(&String, &Facts)| known.files.get(*path) != Some(*facts);
    let written: Vec<(String, u64)> =
        found.iter().filter(differs).map(|(path, facts)| (path.clone(), facts.0)).collect();
    // Of a list that was cut nobody knows what is missing.
    let removed: Vec<String> = match truncated {
        true => Vec::new(),
        false => known.files.keys().filter(|path| !found.contains_key(*path)).cloned().collect(),
    };
    known.files = found;
    let left_out = (written.len() + removed.len()).saturating_sub(MOST_FILES) as u64;
    let mut files: Vec<FileChange> = removed.into_iter().take(MOST_FILES).map(FileChange::removed).collect();
    let mut event_bytes = 0;
    for (path, size) in written.into_iter().take(MOST_FILES - files.len()) {
        let fits = size <= MOST_TEXT_BYTES
            && event_bytes + size <= MOST_EVENT_BYTES
            && known.kept_bytes + size <= MOST_JOB_BYTES;
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
    let read = FileOperation::Read { path: path.to_owned(), offset: 0, limit_bytes: MOST_TEXT_BYTES };
    match client.file(None, read).await {
        Ok(FileReply::Content { content, base64: false, .. }) => Some(content),
        _ => None,
    }
}
