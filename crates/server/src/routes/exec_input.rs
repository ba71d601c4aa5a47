//! Buffers the input for a process. The buffer is limited in bytes, and a process that reads nothing does not block
//! later messages, such as a signal.

use std::sync::Arc;

use bytes::Bytes;
use orchestrator::LiveInput;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The limit in bytes. Once it is reached, the client has to wait.
const MAX_BUFFERED_BYTES: usize = 16 * 1024 * 1024;
/// The overhead counted per message, so that empty messages are limited too.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// The sending end of the buffer.
pub(super) struct InputSender {
    sender: UnboundedSender<QueuedInput>,
    capacity: Arc<Semaphore>,
}

/// The receiving end of the buffer.
pub(super) struct InputReceiver(UnboundedReceiver<QueuedInput>);

struct QueuedInput {
    input: Input,
    /// Released once the process has read the input.
    _room: Option<OwnedSemaphorePermit>,
}

enum Input {
    Bytes(Bytes),
    End,
}

/// Creates both ends of a buffer.
pub(super) fn queue() -> (InputSender, InputReceiver) {
    let (sender, receiver) = unbounded_channel();
    (InputSender { sender, capacity: Arc::new(Semaphore::new(MAX_BUFFERED_BYTES)) }, InputReceiver(receiver))
}

impl InputSender {
    /// Adds bytes. Waits while the buffer is full.
    pub(super) async fn add(&self, bytes: Bytes) {
        let cost = u32::try_from(bytes.len() + MESSAGE_OVERHEAD_BYTES)
            .unwrap_or(u32::MAX)
            .min(MAX_BUFFERED_BYTES as u32);
        // The semaphore is never closed.
        let capacity = Arc::clone(&self.capacity).acquire_many_owned(cost).await.ok();
        let _ = self.sender.send(QueuedInput { input: Input::Bytes(bytes), _room: capacity });
    }

    /// Marks the end of the input.
    pub(super) fn end(&self) {
        let _ = self.sender.send(QueuedInput { input: Input::End, _room: None });
    }
}

/// Feeds the process. Input that it does not accept is discarded.
pub(super) async fn feed(mut process: LiveInput, InputReceiver(mut pieces): InputReceiver) {
    while let Some(piece) = pieces.recv().await {
        let _ = match &piece.input {
            Input::Bytes(bytes) => process.write(bytes).await,
            Input::End => process.close_input().await,
        };
    }
    // The session ends when the client or the process ends, never here.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn input_buffer_is_limited_by_bytes() {
        let (input, mut pieces) = queue();
        for _ in 0..1000 {
            input.add(Bytes::from_static(&[0; 100])).await;
        }
        let large = Bytes::from(vec![0; 1 << 20]);
        for _ in 0..15 {
            input.add(large.clone()).await;
        }
        let mut too_much = Box::pin(input.add(large.clone()));
        assert!(futures::poll!(&mut too_much).is_pending());
        for _ in 0..1001 {
            pieces.0.recv().await.unwrap();
        }
        too_much.await;
    }
}
