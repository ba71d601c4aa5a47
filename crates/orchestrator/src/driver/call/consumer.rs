//! Where the output of a call goes.

use protocol::{Follow, OutputChunk};
use tokio::time::Instant;

use crate::driver::OutputSink;
use crate::error::OrchestratorError;

/// Takes the output of a call. Chunks may arrive again after a broken link, starting with the one that it wants.
pub(crate) trait Consumer: Send {
    /// How the guest sends output: bounded, unless the consumer needs everything.
    const FOLLOW: Follow = Follow::Capped;

    /// The first chunk to send when the call is followed again.
    fn wanted_chunk(&self) -> u64;

    /// The process runs.
    fn started(&mut self) {}

    fn take(&mut self, chunk: OutputChunk) -> impl Future<Output = Result<(), OrchestratorError>> + Send;

    /// The guest does not send the chunks before `next_chunk` that have not been taken.
    fn skip(
        &mut self,
        next_chunk: u64,
        bytes: u64,
    ) -> impl Future<Output = Result<(), OrchestratorError>> + Send;

    /// When to call [`Consumer::flush`] if nothing else happens before.
    fn flush_at(&self) -> Option<Instant> {
        None
    }

    /// Writes what is complete.
    fn flush(&mut self) -> impl Future<Output = Result<(), OrchestratorError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Writes everything. Called after the call was killed.
    fn flush_all(&mut self) -> impl Future<Output = Result<(), OrchestratorError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// For the log. Each method is the one of the same name of [`OutputSink`] itself.
impl Consumer for OutputSink {
    fn wanted_chunk(&self) -> u64 {
        OutputSink::wanted_chunk(self)
    }

    async fn take(&mut self, chunk: OutputChunk) -> Result<(), OrchestratorError> {
        OutputSink::take(self, chunk).await
    }

    async fn skip(&mut self, next_chunk: u64, bytes: u64) -> Result<(), OrchestratorError> {
        OutputSink::skip(self, next_chunk, bytes).await
    }

    fn flush_at(&self) -> Option<Instant> {
        OutputSink::flush_at(self)
    }

    async fn flush(&mut self) -> Result<(), OrchestratorError> {
        OutputSink::flush(self).await
    }

    async fn flush_all(&mut self) -> Result<(), OrchestratorError> {
        OutputSink::flush_all(self).await
    }
}
