//! The head of an answer on its way into the sandbox: the values of secrets do not stand in it, neither in its status line
//! nor in names and values of headers.

use hyper::HeaderMap;
use hyper::ext::ReasonPhrase;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::response::Parts;

use crate::redact::Redactor;
use crate::secret::Secrets;

/// Covers values wherever they stand in a head.
pub(crate) fn cover_head(head: &mut Parts, redactor: &Redactor) {
    let phrase = head.extensions.get::<ReasonPhrase>();
    if phrase.is_some_and(|phrase| redactor.finds_in_any_case(phrase.as_bytes())) {
        head.extensions.remove::<ReasonPhrase>();
    }
    let is_telling = |name: &&HeaderName| redactor.finds_in_any_case(name.as_str().as_bytes());
    let telling: Vec<HeaderName> = head.headers.keys().filter(is_telling).cloned().collect();
    for name in telling {
        head.headers.remove(name);
    }
    for value in head.headers.values_mut().filter(|value| redactor.finds(value.as_bytes())) {
        let mut bytes = value.as_bytes().to_vec();
        redactor.cover(&mut bytes);
        *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("***"));
    }
}

/// Puts placeholders where a server repeats the values: a client that named a protocol with its token in it knows its own
/// words again.
pub(crate) fn put_placeholders_back(headers: &mut HeaderMap, secrets: &Secrets) {
    for value in headers.values_mut() {
        let new = value.to_str().ok().and_then(|text| secrets.put_back(text));
        if let Some(new) = new.and_then(|new| HeaderValue::from_str(&new).ok()) {
            *value = new;
        }
    }
}
