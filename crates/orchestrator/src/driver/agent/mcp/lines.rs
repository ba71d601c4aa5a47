//! Splits the output of an MCP server process into lines, and keeps the end of its stderr.

use mcp::Line;
use protocol::{Follow, OutputChunk, OutputStream};
use tokio::sync::{mpsc, watch};

use crate::driver::call::Consumer;
use crate::error::OrchestratorError;

/// Maximum length of a line, and how much of stderr is kept.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;
const STDERR_BYTES: usize = 2000;
/// Maximum length of the line that explains why a process exited.
const MAX_ERROR_CHARS: usize = 300;

pub(super) struct Lines {
    next_chunk: u64,
    is_old_before: u64,
    buffer: Vec<u8>,
    stderr: Vec<u8>,
    started: watch::Sender<bool>,
    client: mpsc::Sender<Line>,
}

impl Lines {
    /// Sends each line of stdout to `client`. Lines that end in a chunk before `is_old_before` are old.
    pub(super) fn new(is_old_before: u64, started: watch::Sender<bool>, client: mpsc::Sender<Line>) -> Self {
        Self { next_chunk: 0, is_old_before, buffer: Vec::new(), stderr: Vec::new(), started, client }
    }

    /// Returns when the client has dropped its end.
    pub(super) fn client_left(&self) -> impl Future<Output = ()> + Send + use<> {
        let client = self.client.clone();
        async move { client.closed().await }
    }

    /// The last line of stderr.
    pub(super) fn last_error_line(&self) -> Option<String> {
        let said = String::from_utf8_lossy(&self.stderr);
        said.trim().lines().last().map(|line| line.chars().take(MAX_ERROR_CHARS).collect())
    }

    async fn take_lines(&mut self, bytes: &[u8], is_old: bool) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.buffer.len() + piece.len() > MAX_LINE_BYTES {
                self.buffer.clear();
                continue;
            }
            self.buffer.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = Line { bytes: std::mem::take(&mut self.buffer), is_old };
                // A dropped receiver ends the connection, see `client_left`.
                let _ = self.client.send(line).await;
            }
        }
    }

    fn take_stderr(&mut self, bytes: &[u8]) {
        self.stderr.extend_from_slice(bytes);
        let excess = self.stderr.len().saturating_sub(STDERR_BYTES);
        self.stderr.drain(..excess);
    }
}

impl Consumer for Lines {
    const FOLLOW: Follow = Follow::Live;

    fn wanted_chunk(&self) -> u64 {
        self.next_chunk
    }

    fn started(&mut self) {
        self.started.send_replace(true);
    }

    async fn take(&mut self, chunk: OutputChunk) -> Result<(), OrchestratorError> {
        self.next_chunk = chunk.sequence.saturating_add(1);
        let is_old = chunk.sequence < self.is_old_before;
        match chunk.stream {
            OutputStream::Stdout => self.take_lines(&chunk.bytes, is_old).await,
            _ => self.take_stderr(&chunk.bytes),
        }
        Ok(())
    }

    async fn skip(&mut self, next_chunk: u64, _: u64) -> Result<(), OrchestratorError> {
        // The current line has lost its middle.
        self.buffer.clear();
        self.next_chunk = next_chunk;
        Ok(())
    }
}
