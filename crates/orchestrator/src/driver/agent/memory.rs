//! `context.txt` (what the model last saw) and `memory.json` (the history so far), in the job's folder and, for the
//! agent itself, in its sandbox. Both can be rebuilt from the log, so they are written in the background.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use agent::Conversation;
use egress::Redactor;
use job::JobId;
use model::ModelRequest;
use protocol::{FileOperation, GuestClient};

use super::Shared;
use crate::data_folder::result_files::{CONTEXT, MEMORY};

/// Folder in the workspace where the agent finds them.
const FOLDER: &str = ".caisson";
/// Minimum time between two writes while the agent works.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long the guest may take to write one of them.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a file that the guest accepts in one message.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Writes the memory files of one job.
pub(super) struct Memory {
    folder: PathBuf,
    redactor: Redactor,
    state: Shared<State>,
    /// Held while the files are being written.
    writing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    request: Option<Arc<ModelRequest>>,
    memory: Option<String>,
    written: Option<Instant>,
}

impl Memory {
    /// Writes into `folder`, and masks what `redactor` finds.
    pub(super) fn new(folder: &Path, redactor: Redactor) -> Self {
        Self { folder: folder.to_owned(), redactor, state: Arc::default(), writing: Arc::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next request to the model; writes the files if the last write is long enough ago.
    pub(super) fn show(
        &self,
        request: Arc<ModelRequest>,
        conversation: &Conversation,
        client: Option<GuestClient>,
    ) {
        let mut state = self.lock();
        state.request = Some(request);
        let is_due = state.written.is_none_or(|written| written.elapsed() >= INTERVAL);
        if !is_due {
            return;
        }
        // Lock here and not in the task, so that a later writer has newer content.
        let Ok(turn) = Arc::clone(&self.writing).try_lock_owned() else { return };
        state.written = Some(Instant::now());
        state.memory = Some(text_of(conversation));
        let (request, memory) = (state.request.clone(), state.memory.take());
        drop(state);
        let (folder, redactor) = (self.folder.clone(), self.redactor.clone());
        tokio::spawn(async move {
            write(folder, &redactor, request, memory, client).await;
            drop(turn);
        });
    }

    /// Takes the current history.
    pub(super) fn keep(&self, conversation: &Conversation) {
        self.lock().memory = Some(text_of(conversation));
    }

    /// Writes both files and waits until they are written.
    pub(super) async fn save(&self, client: Option<GuestClient>) {
        let _turn = self.writing.lock().await;
        let (request, memory) = {
            let mut state = self.lock();
            (state.request.clone(), state.memory.take())
        };
        write(self.folder.clone(), &self.redactor, request, memory, client).await;
    }
}

fn text_of(conversation: &Conversation) -> String {
    let document = serde_json::json!({
        "plan": conversation.plan(),
        "spent": conversation.spent(),
        "budget": conversation.budget(),
        "history": conversation.records(),
    });
    serde_json::to_string_pretty(&document).unwrap_or_default()
}

async fn write(
    folder: PathBuf,
    redactor: &Redactor,
    request: Option<Arc<ModelRequest>>,
    memory: Option<String>,
    client: Option<GuestClient>,
) {
    let context = request.map(|request| agent::context_text(&request));
    for (name, content) in [(CONTEXT, context), (MEMORY, memory)] {
        let Some(content) = content.map(|content| redactor.redact_text(&content)) else { continue };
        let target = folder.join(name);
        let copy = content.clone();
        let written = tokio::task::spawn_blocking(move || {
            let partial = target.with_extension("partial");
            std::fs::write(&partial, copy).and_then(|()| std::fs::rename(&partial, &target))
        });
        if let Ok(Err(error)) = written.await {
            // The folder is named after the job.
            let job = folder.ancestors().find_map(|part| part.file_name()?.to_str()?.parse::<JobId>().ok());
            tracing::warn!(job = job.map(tracing::field::display), %error, name, "the file cannot be written");
        }
        if let Some(client) = &client
            && content.len() < MAX_BYTES
        {
            let path = format!("{FOLDER}/{name}");
            let operation = FileOperation::Write { path, content, mode: None };
            // A full disk or a lost sandbox is reported elsewhere.
            let _ = tokio::time::timeout(TIMEOUT, client.file(None, operation)).await;
        }
    }
}
