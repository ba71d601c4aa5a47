//! A response head on its way into the sandbox. Removes secret values from the status line and from header names and
//! values, and ensures that the body can be searched for them.

use hyper::body::Body;
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, HeaderName, HeaderValue, IF_RANGE, RANGE, TRANSFER_ENCODING,
};
use hyper::http::response::Parts;
use hyper::{HeaderMap, Response, StatusCode};

use crate::refusal::{ReasonCode, Refusal};
use crate::secrets::{Redactor, Secrets};
use crate::target::Target;

/// Requests a delta against an earlier response (RFC 3229).
const A_IM: HeaderName = HeaderName::from_static("a-im");

/// Makes the server send the complete response uncompressed: neither compressed data nor partial content can be
/// searched for a value.
pub(crate) fn ask_for_searchable(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for name in [RANGE, IF_RANGE, A_IM] {
        headers.remove(name);
    }
}

/// Refuses a response whose encoding prevents the search for values. Call it before the hop-by-hop headers are
/// removed.
pub(crate) fn check_searchable<B: Body>(answer: &Response<B>, target: &Target) -> Result<(), Refusal> {
    let is_coded = |name: HeaderName, plain: &str| {
        let values = answer.headers().get_all(name).into_iter();
        let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        words.any(|word| !word.trim_ascii().eq_ignore_ascii_case(plain.as_bytes()))
    };
    let why = match answer.status() {
        StatusCode::PARTIAL_CONTENT => "it is partial, but the request was for the whole",
        StatusCode::IM_USED => "it is a delta, but the request was for the whole",
        _ if answer.body().is_end_stream() => return Ok(()),
        _ if is_coded(CONTENT_ENCODING, "identity") => "it is compressed, but the request did not allow that",
        _ if is_coded(TRANSFER_ENCODING, "chunked") => "its `transfer-encoding` is not just `chunked`",
        _ => return Ok(()),
    };
    Err(Refusal::failure(
        ReasonCode::UnscannableResponse,
        format!("response of {target} refused: {why}, so it cannot be searched for secrets"),
    ))
}

/// Masks values anywhere in the head.
pub(crate) fn redact_head(head: &mut Parts, redactor: &Redactor) {
    let phrase = head.extensions.get::<ReasonPhrase>();
    if phrase.is_some_and(|phrase| redactor.finds_in_any_case(phrase.as_bytes())) {
        head.extensions.remove::<ReasonPhrase>();
    }
    let has_value = |name: &&HeaderName| redactor.finds_in_any_case(name.as_str().as_bytes());
    let leaking: Vec<HeaderName> = head.headers.keys().filter(has_value).cloned().collect();
    for name in leaking {
        head.headers.remove(name);
    }
    for value in head.headers.values_mut().filter(|value| redactor.finds(value.as_bytes())) {
        let mut bytes = value.as_bytes().to_vec();
        redactor.cover(&mut bytes);
        *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("***"));
    }
}

/// Replaces values that the server echoes by their placeholders: a client that requested a subprotocol containing
/// its token must recognize it in the response.
pub(crate) fn restore_placeholders(headers: &mut HeaderMap, secrets: &Secrets) {
    for value in headers.values_mut() {
        let new = value.to_str().ok().and_then(|text| secrets.placeholders_restored(text));
        if let Some(new) = new.and_then(|new| HeaderValue::from_str(&new).ok()) {
            *value = new;
        }
    }
}
