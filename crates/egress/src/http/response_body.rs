//! A response body on its way into the sandbox: counts and hashes it and masks secret values.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use sha2::{Digest, Sha256};

use crate::event::{EgressEvent, EventSender, Fetch, now_ms};
use crate::secrets::RedactedStream;

/// A response body: the proxy's own text, or the server's response.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// A resource that must live as long as the body.
pub(crate) trait BodyGuard: Send + Unpin {
    /// The body has ended.
    fn on_body_end(&mut self);
}

/// A response body. Logs its end, also if it is dropped early.
pub(crate) struct AuditedBody<C: BodyGuard> {
    body: Incoming,
    guard: C,
    redactor: RedactedStream,
    fetch: Option<Fetch>,
    hash: Sha256,
    events: EventSender,
    finished: bool,
}

impl<C: BodyGuard> AuditedBody<C> {
    pub(crate) fn new(
        body: Incoming,
        guard: C,
        redactor: RedactedStream,
        fetch: Fetch,
        events: EventSender,
    ) -> Self {
        Self { body, guard, redactor, fetch: Some(fetch), hash: Sha256::new(), events, finished: false }
    }

    fn take(&mut self, data: &Bytes) {
        self.hash.update(data);
        if let Some(fetch) = &mut self.fetch {
            fetch.bytes += data.len() as u64;
        }
    }

    /// Logs the end of the body. Only complete bodies get a digest.
    fn log_end(&mut self) {
        let Some(mut fetch) = self.fetch.take() else { return };
        fetch.time_ms = now_ms();
        if self.finished || self.body.is_end_stream() {
            self.guard.on_body_end();
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

impl<C: BodyGuard> Body for AuditedBody<C> {
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
                        let ready_data = self.redactor.push(data);
                        if !ready_data.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(ready_data))));
                        }
                    }
                    // Trailers could contain a value and would overtake the bytes that are held back.
                    Err(_) if !self.redactor.is_idle() => {}
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Some(Err(error)) => {
                    self.log_end();
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.finished = true;
                    self.log_end();
                    let rest = self.redactor.finish();
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // Bytes that are held back still follow.
        self.body.is_end_stream() && self.redactor.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<C: BodyGuard> Drop for AuditedBody<C> {
    fn drop(&mut self) {
        self.log_end();
    }
}
