//! A response body on its way into the sandbox: counts and hashes it and masks secret values.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use sha2::{Digest, Sha256};

use crate::event::{EgressEvent, EventSender, Fetch, now_ms};
use crate::redact::RedactedStream;

/// A resource that must live as long as the body.
pub(crate) trait Companion: Send + Unpin {
    /// The body has ended.
    fn let_go(&mut self);
}

/// A response body. Logs its end, also if it is dropped early.
pub(crate) struct AnswerBody<C: Companion> {
    body: Incoming,
    companion: C,
    cover: RedactedStream,
    fetch: Option<Fetch>,
    hash: Sha256,
    events: EventSender,
    finished: bool,
}

impl<C: Companion> AnswerBody<C> {
    pub(crate) fn new(
        body: Incoming,
        companion: C,
        cover: RedactedStream,
        fetch: Fetch,
        events: EventSender,
    ) -> Self {
        Self { body, companion, cover, fetch: Some(fetch), hash: Sha256::new(), events, finished: false }
    }

    fn take(&mut self, data: &Bytes) {
        self.hash.update(data);
        if let Some(fetch) = &mut self.fetch {
            fetch.bytes += data.len() as u64;
        }
    }

    /// Logs the end of the body. Only complete bodies get a digest.
    fn tell(&mut self) {
        let Some(mut fetch) = self.fetch.take() else { return };
        fetch.time_ms = now_ms();
        if self.finished || self.body.is_end_stream() {
            self.companion.let_go();
            fetch.sha256 = Some(hex(&std::mem::take(&mut self.hash).finalize()));
        }
        if let Err(tokio::sync::mpsc::error::TrySendError::Full(event)) =
            self.events.try_send(EgressEvent::Fetched(fetch))
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let events = self.events.clone();
            drop(runtime.spawn(async move { events.send(event).await }));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<C: Companion> Body for AnswerBody<C> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            if self.finished {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.take(&data);
                        let shown = self.cover.push(data);
                        if !shown.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(shown))));
                        }
                    }
                    // Trailers could contain a value and would overtake the bytes that are held back.
                    Err(_) if !self.cover.is_idle() => {}
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Some(Err(error)) => {
                    self.tell();
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.finished = true;
                    self.tell();
                    let rest = self.cover.finish();
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // Bytes that are held back still follow.
        self.body.is_end_stream() && self.cover.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<C: Companion> Drop for AnswerBody<C> {
    fn drop(&mut self) {
        self.tell();
    }
}
