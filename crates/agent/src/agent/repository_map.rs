//! The map of the repository in the workspace. It is built when work begins and updated after each epoch. The number
//! of files and bytes is limited, and only changed files are read again.

use std::collections::HashMap;
use std::sync::Arc;

use context::EntryBody;
use context::map::{self, SourceFile};
use futures::StreamExt as _;
use protocol::{FileKind, FileOperation, FileReply};

use crate::conversation::Conversation;
use crate::event::AgentEvent;
use crate::host::{Host, Stopped};
use crate::tools::is_generated;

/// Limits of one scan.
const MAX_ENTRIES: u32 = 20_000;
const MAX_DEPTH: u32 = 12;
const MAX_FILES: usize = 500;
const MAX_FILE_BYTES: u64 = 128 * 1024;
const MAX_BYTES: u64 = 6 * 1024 * 1024;
/// Maximum number of parallel reads.
const MAX_PARALLEL_READS: usize = 8;
/// If the workspace had no code, look again after this many turns.
const RESCAN_TURNS: u64 = 8;
/// The heading of the map takes at most this much of its room.
const HEADING_TOKENS: u32 = 24;
/// A map with a smaller token budget is not useful.
const MIN_TOKENS: u32 = 100;

#[derive(Default)]
pub(super) struct Mapper {
    /// The files read so far, by path, with their size and modification time.
    read: HashMap<String, (u64, i64, Arc<str>)>,
    shown: Option<String>,
    next_turn: u64,
}

impl Mapper {
    /// Builds a map if the engine wants one. Returns `None` if it equals the previous map.
    pub(super) async fn refresh(
        &mut self,
        host: &dyn Host,
        conversation: &Conversation,
    ) -> Result<Option<AgentEvent>, Stopped> {
        let engine = conversation.engine();
        let most_tokens = engine.policy().map_tokens.saturating_sub(HEADING_TOKENS);
        if !engine.wants_map() || most_tokens < MIN_TOKENS || conversation.turn() < self.next_turn {
            return Ok(None);
        }
        self.next_turn = conversation.turn() + RESCAN_TURNS;
        self.read_changed(host).await?;
        let focus: String =
            conversation.records().first().map(|record| record.text.clone()).unwrap_or_default();
        let files: Vec<(String, Arc<str>)> =
            self.read.iter().map(|(path, (_, _, text))| (path.clone(), Arc::clone(text))).collect();
        let made = tokio::task::spawn_blocking(move || {
            let files: Vec<SourceFile<'_>> =
                files.iter().map(|(path, text)| SourceFile { path, text }).collect();
            map::map(&files, &focus, most_tokens)
        });
        let Some(text) = made.await.ok().flatten().filter(|text| self.shown.as_ref() != Some(text)) else {
            return Ok(None);
        };
        self.shown = Some(text.clone());
        Ok(Some(AgentEvent::ContextChanged(EntryBody::Map { text })))
    }

    async fn read_changed(&mut self, host: &dyn Host) -> Result<(), Stopped> {
        let listing = FileOperation::List {
            path: String::new(),
            depth: MAX_DEPTH,
            limit: MAX_ENTRIES,
            skip: Vec::new(),
        };
        let Ok(FileReply::Entries { entries, .. }) = host.file(None, listing).await? else { return Ok(()) };
        let mut left = MAX_BYTES;
        let mut wanted: Vec<(String, u64, i64)> = entries
            .into_iter()
            .filter(|entry| entry.stat.kind == FileKind::File && entry.stat.size <= MAX_FILE_BYTES)
            .filter(|entry| map::is_code(&entry.path) && !is_generated(&entry.path))
            .map(|entry| (entry.path, entry.stat.size, entry.stat.modified_ms))
            .collect();
        // Files near the root are more informative than deeply nested ones.
        wanted.sort_by_key(|(path, ..)| (path.matches('/').count(), path.clone()));
        wanted.truncate(MAX_FILES);
        wanted.retain(|(_, size, _)| {
            let fits = *size <= left;
            left = left.saturating_sub(*size);
            fits
        });
        self.read.retain(|path, (size, modified, _)| {
            wanted.iter().any(|known| known.0 == *path && known.1 == *size && known.2 == *modified)
        });
        let missing: Vec<_> = wanted.into_iter().filter(|(path, ..)| !self.read.contains_key(path)).collect();
        let reading = futures::stream::iter(missing).map(|(path, size, modified)| async move {
            let operation =
                FileOperation::Read { path: path.clone(), offset: 0, limit_bytes: MAX_FILE_BYTES };
            let reply = host.file(None, operation).await?;
            Ok::<_, Stopped>((path, size, modified, reply))
        });
        let mut reading = reading.buffer_unordered(MAX_PARALLEL_READS);
        while let Some(read) = reading.next().await {
            let (path, size, modified, reply) = read?;
            if let Ok(FileReply::Content { content, base64: false, .. }) = reply {
                self.read.insert(path, (size, modified, content.into()));
            }
        }
        Ok(())
    }
}
