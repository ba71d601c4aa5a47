//! Turns a future that emits events into a stream. The future runs only while the stream is polled, and stops when
//! the stream is dropped.

use std::future::Future;
use std::task::Poll;

use futures::StreamExt;
use tokio::sync::mpsc;

use crate::error::ModelError;
use crate::output::{Answer, ModelEvent, ModelStream};

/// The number of events that may wait for the reader.
const WAITING_EVENTS: usize = 64;

/// Sends events to the reader of the stream.
#[derive(Debug, Clone)]
pub(crate) struct Emitter(mpsc::Sender<ModelEvent>);

impl Emitter {
    /// Sends an event; waits while the reader is behind.
    pub(crate) async fn emit(&self, event: ModelEvent) {
        // The receiver is part of the same stream as the future that calls this, so it still exists.
        let _ = self.0.send(event).await;
    }
}

/// Creates a stream that ends with the result of the future. Dropping the stream drops the future.
pub(crate) fn generate<F>(make: impl FnOnce(Emitter) -> F) -> ModelStream
where
    F: Future<Output = Result<Answer, ModelError>> + Send + 'static,
{
    let (sender, mut receiver) = mpsc::channel(WAITING_EVENTS);
    let mut future = Some(Box::pin(make(Emitter(sender))));
    let mut end = None;
    futures::stream::poll_fn(move |context| {
        if let Some(running) = &mut future
            && let Poll::Ready(result) = running.as_mut().poll(context)
        {
            future = None;
            end = Some(result.map(|answer| ModelEvent::Answer(Box::new(answer))));
        }
        match receiver.poll_recv(context) {
            Poll::Ready(Some(event)) => Poll::Ready(Some(Ok(event))),
            // All senders are gone: the future is done and every event has been read.
            Poll::Ready(None) => Poll::Ready(end.take()),
            Poll::Pending => Poll::Pending,
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_come_in_order_and_the_error_last() {
        let stream = generate(|emitter| async move {
            for number in 0..200 {
                emitter.emit(ModelEvent::Text(number.to_string())).await;
            }
            Err(ModelError::NoModel { advice: "end".into() })
        });
        let events: Vec<_> = stream.collect().await;
        assert_eq!(events.len(), 201);
        assert_eq!(events[199], Ok(ModelEvent::Text("199".into())));
        assert!(events[200].is_err());
    }

    #[tokio::test]
    async fn a_dropped_stream_drops_its_future() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut stream = generate(|emitter| async move {
            let _kept: tokio::sync::oneshot::Sender<()> = sender;
            emitter.emit(ModelEvent::Text("a".into())).await;
            std::future::pending().await
        });
        assert!(stream.next().await.is_some());
        drop(stream);
        assert!(receiver.await.is_err());
    }
}
