//! Converts the output of a call to events: a batch every 50 ms or 64 KiB, as text if it is valid UTF-8.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use egress::Redactor;
use job::{CallEnd, CallRef, Event, EventBody, NewEvent, Shown};
use protocol::{OutputChunk, OutputStream};
use tokio::time::Instant;

use super::display_chunks::{DisplayChunks, DisplayedRecords};
use super::limit_hints::{LimitHintScanner, LimitHints};
use crate::error::OrchestratorError;
use crate::recorder::Recorder;
use crate::recorder::redact::redact_all;

/// A batch is written when it is this old ...
const BATCH_AGE: Duration = Duration::from_millis(50);
/// ... or this large.
const BATCH_BYTES: usize = 64 * 1024;
/// More than the guest ever sends for one call. Output beyond it comes from a faulty or malicious guest and is not
/// logged.
const MAX_CALL_BYTES: u64 = 20 * 1024 * 1024;

/// Maximum size of the displayed data in an API response.
const MAX_SHOWN_BYTES: usize = 16 * 1024 * 1024;

/// Output that is kept in memory for the caller.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    /// Up to `limit`.
    pub(crate) stdout: Vec<u8>,
    /// Up to `limit`.
    pub(crate) stderr: Vec<u8>,
    /// Displayed data, up to a limit of its own.
    pub(crate) shown: Vec<Shown>,
    shown_bytes: usize,
    /// Whether something did not fit.
    pub(crate) truncated: bool,
    limit: usize,
}

impl Captured {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    fn show(&mut self, shown: Shown) {
        let bytes = serde_json::to_vec(&shown).map_or(0, |json| json.len());
        let limit = if self.limit == 0 { 0 } else { MAX_SHOWN_BYTES };
        if self.shown_bytes + bytes <= limit {
            self.shown_bytes += bytes;
            self.shown.push(shown);
        } else {
            self.truncated = true;
        }
    }

    fn take(&mut self, stream: OutputStream, bytes: &[u8]) {
        let target = if stream == OutputStream::Stderr { &mut self.stderr } else { &mut self.stdout };
        let room = self.limit.saturating_sub(target.len());
        self.truncated |= bytes.len() > room;
        target.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Searches stdout for a text as it arrives.
#[derive(Debug)]
struct Search {
    wanted: Vec<u8>,
    tail: Vec<u8>,
    found: bool,
}

impl Search {
    fn take(&mut self, bytes: &[u8]) {
        if self.found {
            return;
        }
        self.tail.extend_from_slice(bytes);
        self.found = self.wanted.is_empty()
            || self.tail.windows(self.wanted.len()).any(|window| window == self.wanted);
        let keep = self.wanted.len().saturating_sub(1).min(self.tail.len());
        self.tail.drain(..self.tail.len() - keep);
    }
}

/// Writes the output of one call to the log.
pub(crate) struct OutputSink {
    recorder: Arc<Recorder>,
    call: CallRef,
    stream: OutputStream,
    batch: Vec<u8>,
    /// When the oldest bytes of the batch arrived.
    oldest: Option<Instant>,
    next_chunk: u64,
    /// How many bytes at the end of the chunk before `next_chunk` are still to be written; used once after a restart.
    held_from_past: usize,
    written_bytes: u64,
    search: Option<Search>,
    captured: Captured,
    hints: LimitHintScanner,
    displays: DisplayChunks,
    /// Events to write together with the next batch, and their approximate size.
    waiting: Vec<NewEvent>,
    waiting_bytes: usize,
    redactor: Redactor,
}

impl OutputSink {
    pub(crate) fn new(
        recorder: Arc<Recorder>,
        call: CallRef,
        wanted: Option<&str>,
        captured: Captured,
    ) -> Self {
        let search =
            wanted.map(|text| Search { wanted: text.as_bytes().to_vec(), tail: Vec::new(), found: false });
        let redactor = recorder.redactor();
        Self {
            redactor,
            recorder,
            call,
            stream: OutputStream::Stdout,
            batch: Vec::new(),
            oldest: None,
            next_chunk: 0,
            held_from_past: 0,
            written_bytes: 0,
            search,
            captured,
            hints: LimitHintScanner::default(),
            displays: DisplayChunks::default(),
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    /// Starts at this chunk: the caller has already seen the earlier ones.
    pub(crate) fn start_at(&mut self, chunk: u64) {
        self.next_chunk = chunk;
    }

    /// Restores the state from the call's events in the log, after a restart.
    pub(crate) fn resume(&mut self, past: &[Event]) {
        let call = self.call.clone();
        for event in past.iter().filter(|event| event.call.as_ref() == Some(&call)) {
            match &event.body {
                EventBody::CallOutput { stream, next_chunk, text, base64, held_bytes } => {
                    self.next_chunk = *next_chunk;
                    self.held_from_past = *held_bytes;
                    let bytes = if *base64 {
                        STANDARD.decode(text).unwrap_or_default()
                    } else {
                        text.clone().into_bytes()
                    };
                    self.written_bytes += bytes.len() as u64;
                    let stream = if stream == "stderr" { OutputStream::Stderr } else { OutputStream::Stdout };
                    self.look(stream, &bytes);
                }
                EventBody::CallDisplay { shown, next_chunk } => {
                    self.next_chunk = *next_chunk;
                    self.held_from_past = 0;
                    self.captured.show(shown.clone());
                }
                EventBody::CallOutputDropped { next_chunk, .. } => {
                    self.next_chunk = *next_chunk;
                    self.held_from_past = 0;
                }
                _ => {}
            }
        }
    }

    /// The chunk to request: all earlier ones are in the log.
    pub(crate) fn wanted_chunk(&self) -> u64 {
        if self.held_from_past > 0 { self.next_chunk.saturating_sub(1) } else { self.next_chunk }
    }

    /// Whether the wanted text was found; `true` if none is wanted.
    pub(crate) fn found(&self) -> bool {
        self.search.as_ref().is_none_or(|search| search.found)
    }

    /// Limits that the messages on stderr refer to.
    pub(crate) fn limit_hints(&mut self) -> LimitHints {
        self.hints.hints()
    }

    /// The captured output, with the values of secrets redacted.
    pub(crate) fn into_captured(mut self) -> Captured {
        let shown = std::mem::take(&mut self.captured.shown);
        self.captured.shown =
            shown.into_iter().filter_map(|shown| redact_all(shown, &self.redactor)).collect();
        for text in [&mut self.captured.stdout, &mut self.captured.stderr] {
            self.redactor.cover(text);
            if self.captured.truncated {
                // The end may be the first half of a value.
                text.truncate(text.len() - self.redactor.unfinished(text));
            }
        }
        self.captured
    }

    /// When the batch should be written.
    pub(crate) fn flush_at(&self) -> Option<Instant> {
        self.oldest.map(|oldest| oldest + BATCH_AGE)
    }

    pub(crate) async fn take(&mut self, chunk: OutputChunk) -> Result<(), OrchestratorError> {
        let mut bytes = chunk.bytes;
        if chunk.sequence < self.next_chunk {
            // A known chunk; only the bytes that were held back from the last one are new.
            let held = std::mem::take(&mut self.held_from_past);
            if chunk.sequence.saturating_add(1) != self.next_chunk || held == 0 {
                return Ok(());
            }
            bytes = bytes.slice(bytes.len().saturating_sub(held)..);
        }
        if chunk.stream == OutputStream::Display {
            return self.take_display(chunk.sequence, &bytes).await;
        }
        self.look(chunk.stream, &bytes);
        if self.stream != chunk.stream {
            self.flush_all().await?;
            self.stream = chunk.stream;
        }
        self.next_chunk = self.next_chunk.max(chunk.sequence.saturating_add(1));
        if self.written_bytes < MAX_CALL_BYTES {
            self.batch.extend_from_slice(&bytes);
            self.oldest.get_or_insert_with(Instant::now);
        }
        if self.batch.len() >= BATCH_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Takes a piece of what a cell displays. While a record is incomplete, its chunks count as not seen, so that
    /// they are requested again after a link failure.
    async fn take_display(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), OrchestratorError> {
        // Keep the order relative to the printed output.
        let printed = self.batch_event(0);
        self.waiting.extend(printed);
        let Some(DisplayedRecords { records, bytes }) = self.displays.take(sequence, bytes) else {
            return Ok(());
        };
        self.next_chunk = sequence.saturating_add(1);
        if self.written_bytes < MAX_CALL_BYTES {
            self.written_bytes += bytes as u64;
            self.waiting_bytes += bytes;
            for display in records {
                let shown = Shown::from(display);
                self.captured.show(shown.clone());
                let event = EventBody::CallDisplay { shown, next_chunk: self.next_chunk };
                self.waiting.push(event.of(&self.call));
            }
        }
        self.oldest.get_or_insert_with(Instant::now);
        if self.waiting_bytes >= BATCH_BYTES { self.flush_all().await } else { Ok(()) }
    }

    /// Records that the chunks before `next_chunk` were dropped.
    pub(crate) async fn skip(&mut self, next_chunk: u64, bytes: u64) -> Result<(), OrchestratorError> {
        self.flush_all().await?;
        self.next_chunk = self.next_chunk.max(next_chunk);
        self.captured.truncated = true;
        self.displays.skip();
        let event = EventBody::CallOutputDropped { bytes, next_chunk: self.next_chunk };
        self.recorder.record(event.of(&self.call)).await
    }

    fn look(&mut self, stream: OutputStream, bytes: &[u8]) {
        if let Some(search) = &mut self.search
            && stream != OutputStream::Stderr
        {
            search.take(bytes);
        }
        if stream == OutputStream::Stderr {
            self.hints.take(bytes);
        }
        self.captured.take(stream, bytes);
    }

    /// Writes the batch, except for an incomplete character or an incomplete secret at its end.
    pub(crate) async fn flush(&mut self) -> Result<(), OrchestratorError> {
        let held = unfinished_bytes(&self.batch).max(self.redactor.unfinished(&self.batch));
        self.write(held).await
    }

    /// Writes everything and the end of the call in one append.
    pub(crate) async fn finish(&mut self, end: CallEnd) -> Result<(), OrchestratorError> {
        let mut events = std::mem::take(&mut self.waiting);
        events.extend(self.batch_event(0));
        events.push(EventBody::CallEnded(end).of(&self.call));
        self.oldest = None;
        self.recorder.append(events).await.map(drop)
    }

    /// Writes everything.
    pub(crate) async fn flush_all(&mut self) -> Result<(), OrchestratorError> {
        self.write(0).await
    }

    async fn write(&mut self, held_bytes: usize) -> Result<(), OrchestratorError> {
        self.oldest = None;
        self.waiting_bytes = 0;
        let mut events = std::mem::take(&mut self.waiting);
        events.extend(self.batch_event(held_bytes));
        if events.is_empty() { Ok(()) } else { self.recorder.append(events).await.map(drop) }
    }

    /// Takes the batch as an event; `None` if it is empty.
    fn batch_event(&mut self, held_bytes: usize) -> Option<NewEvent> {
        // Redact the whole batch before splitting off its end.
        self.redactor.cover(&mut self.batch);
        let held = self.batch.split_off(self.batch.len() - held_bytes);
        let bytes = std::mem::replace(&mut self.batch, held);
        if bytes.is_empty() {
            return None;
        }
        self.written_bytes += bytes.len() as u64;
        let (text, base64) = match String::from_utf8(bytes) {
            Ok(text) => (text, false),
            Err(error) => (STANDARD.encode(error.as_bytes()), true),
        };
        let stream = match self.stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
            OutputStream::Terminal => "terminal",
            OutputStream::Display => "display",
        };
        let event = EventBody::CallOutput {
            stream: stream.to_owned(),
            next_chunk: self.next_chunk,
            text,
            base64,
            held_bytes,
        };
        Some(event.of(&self.call))
    }
}

/// The length of the incomplete character at the end: at most 3.
fn unfinished_bytes(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_characters_are_held_back_but_invalid_bytes_are_not() {
        assert_eq!(unfinished_bytes("héllo".as_bytes()), 0);
        assert_eq!(unfinished_bytes(&"hé".as_bytes()[..2]), 1);
        assert_eq!(unfinished_bytes(&"€".as_bytes()[..2]), 2);
        assert_eq!(unfinished_bytes(&[0xff, 0xfe]), 0);
    }

    #[test]
    fn expected_text_is_found_across_chunks() {
        let mut search = Search { wanted: b"needle".to_vec(), tail: Vec::new(), found: false };
        for part in ["hay nee", "d", "le hay"] {
            assert!(!search.found);
            search.take(part.as_bytes());
        }
        assert!(search.found);
    }
}
