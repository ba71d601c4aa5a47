//! Plain HTTP: one request to its server, its answer back, both streamed. Every request has a connection of its own.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{
    CONNECTION, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;

use crate::gate::Admitted;
use crate::proxy::ResponseBody;
use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// The most that the head of an answer may take.
const HEAD_LIMIT: usize = 256 * 1024;

/// Headers that concern one connection and not the message.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Sends a request over an admitted connection and returns the answer, whose body is still to come.
pub(crate) async fn forward(
    request: Request<Incoming>,
    target: &Target,
    admitted: Admitted,
    idle_timeout: Duration,
) -> Result<Response<ResponseBody>, Refusal> {
    let request = rewrite_request(request, target)?;
    let Admitted { stream, meter, record } = admitted;
    let failed = |error: &hyper::Error| {
        Refusal::failure(ReasonCode::ConnectFailed, format!("{target} gave no proper answer: {error}"))
    };
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_LIMIT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let counters = record.meter();
    let mut driver = Driver(Some(tokio::spawn(async move {
        let (code, reason) = tokio::select! {
            ended = connection => match ended {
                Ok(()) => (None, "answered".into()),
                Err(error) => (None, format!("broken: {error}")),
            },
            () = counters.idle(idle_timeout) => {
                (Some(ReasonCode::Timeout), format!("ended, no byte passed for {idle_timeout:?}"))
            }
        };
        record.close(code, reason).await;
    })));
    let error = match sender.send_request(request).await {
        Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => {
            return Ok(rewrite_response(response, driver));
        }
        Ok(_) => {
            let reason = format!("{target} changed the protocol without being asked");
            return Err(Refusal::failure(ReasonCode::ConnectFailed, reason));
        }
        Err(error) => error,
    };
    driver.let_go();
    if meter.is_idle(idle_timeout) {
        let reason = format!("{target} did not answer within {idle_timeout:?}");
        return Err(Refusal::failure(ReasonCode::Timeout, reason));
    }
    Err(failed(&error))
}

fn rewrite_request(mut request: Request<Incoming>, target: &Target) -> Result<Request<Incoming>, Refusal> {
    let bad = |what: &str| Refusal::failure(ReasonCode::BadRequest, format!("{target}: {what}"));
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let path: Uri = path.parse().map_err(|_| bad("the path is not valid"))?;
    let host = if target.port == 80 {
        target.to_string().trim_end_matches(":80").to_owned()
    } else {
        target.to_string()
    };
    let host = HeaderValue::try_from(host).map_err(|_| bad("the host is not valid"))?;
    *request.uri_mut() = path;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    strip(headers);
    // The client has had its "100 Continue" from us.
    headers.remove(EXPECT);
    headers.insert(HOST, host);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

fn rewrite_response(response: Response<Incoming>, driver: Driver) -> Response<ResponseBody> {
    let (mut head, body) = response.into_parts();
    head.version = Version::HTTP_11;
    strip(&mut head.headers);
    Response::from_parts(head, Answer { body, driver }.boxed_unsync())
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// The task that moves the bytes of one connection; ends with this value unless it is let go.
struct Driver(Option<JoinHandle<()>>);

impl Driver {
    /// The connection ends by itself now, and tells the log how.
    fn let_go(&mut self) {
        self.0 = None;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

/// The body of an answer. Dropped before its end, it ends the connection to the server.
struct Answer {
    body: Incoming,
    driver: Driver,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.driver.let_go();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.driver.let_go();
        }
    }
}
