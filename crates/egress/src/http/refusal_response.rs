//! A refusal as an HTTP response.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};

use super::response_body::ResponseBody;
use crate::refusal::Refusal;

const REASON_HEADER: HeaderName = HeaderName::from_static("x-caisson-reason");

/// The response of an HTTP server.
pub(crate) fn refusal_response(refusal: &Refusal) -> Response<ResponseBody> {
    let body = Full::new(Bytes::from(refusal.explanation())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = refusal.code.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(REASON_HEADER, HeaderValue::from_static(refusal.code.as_str()));
    // For CONNECT, most clients display only the status line.
    let phrase = format!("{} ({})", refusal.reason, refusal.code.as_str());
    let phrase: String = phrase.chars().filter(|c| *c == ' ' || c.is_ascii_graphic()).collect();
    if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
        response.extensions_mut().insert(phrase);
    }
    response
}

/// The complete response as text, for a connection without an HTTP server.
pub(crate) fn serialized_refusal(refusal: &Refusal) -> String {
    let body = refusal.explanation();
    format!(
        "HTTP/1.1 {}\r\n{CONTENT_TYPE}: text/plain; charset=utf-8\r\n{REASON_HEADER}: {}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        refusal.code.status(),
        refusal.code.as_str(),
        body.len()
    )
}
