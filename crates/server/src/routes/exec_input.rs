//! What a client wants a process to read, while it waits for the process: bounded by its bytes, so that a process that
//! reads nothing does not keep what comes after it, such as a signal, from being heard.

use std::sync::Arc;

use bytes::Bytes;
use orchestrator::LiveInput;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many bytes wait for a process that does not read; then the client waits.
const WAITING_BYTES: usize = 16 * 1024 * 1024;
/// What a message costs beside its bytes, so that empty ones are bounded too.
const MESSAGE_BYTES: usize = 64;

/// Takes what the client sends.
pub(super) struct WaitingInput {
    sender: UnboundedSender<Piece>,
    room: Arc<Semaphore>,
}

/// What waits.
pub(super) struct Pieces(UnboundedReceiver<Piece>);

struct Piece {
    input: Input,
    /// Given back once the process has it.
    _room: Option<OwnedSemaphorePermit>,
}

enum Input {
    Bytes(Bytes),
    End,
}

/// The two ends of a queue.
pub(super) fn queue() -> (WaitingInput, Pieces) {
    let (sender, receiver) = unbounded_channel();
    (WaitingInput { sender, room: Arc::new(Semaphore::new(WAITING_BYTES)) }, Pieces(receiver))
}

impl WaitingInput {
    /// Adds bytes; waits while there is no room for them.
    pub(super) async fn add(&self, bytes: Bytes) {
        let cost = u32::try_from(bytes.len() + MESSAGE_BYTES).unwrap_or(u32::MAX).min(WAITING_BYTES as u32);
        // It is never closed.
        let room = Arc::clone(&self.room).acquire_many_owned(cost).await.ok();
        let _ = self.sender.send(Piece { input: Input::Bytes(bytes), _room: room });
    }

    /// Nothing more comes.
    pub(super) fn end(&self) {
        let _ = self.sender.send(Piece { input: Input::End, _room: None });
    }
}

/// Feeds the process. What it does not want to read is thrown away.
pub(super) async fn feed(mut process: LiveInput, Pieces(mut pieces): Pieces) {
    while let Some(piece) = pieces.recv().await {
        let _ = match &piece.input {
            Input::Bytes(bytes) => process.write(bytes).await,
            Input::End => process.close_input().await,
        };
    }
    // The client's side ends first; this side has nothing to say about it.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_small_messages_wait_and_too_many_bytes_make_the_client_wait() {
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
