//! What a proxy request says about its target and its call.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::PROXY_AUTHORIZATION;
use hyper::{HeaderMap, Method, Request};

use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// The maximum length of a call id.
const CALL_LIMIT: usize = 128;

/// The target of a request to a proxy.
pub(super) fn read_target<B>(request: &Request<B>) -> Result<Target, Refusal> {
    let bad = |reason: String| Refusal::failure(ReasonCode::BadRequest, reason);
    let uri = request.uri();
    let Some(authority) = uri.authority() else {
        return Err(bad("this is a proxy; it serves CONNECT and requests with an absolute URL".into()));
    };
    let default_port = match (request.method() == Method::CONNECT, uri.scheme_str()) {
        (true, _) => None,
        (false, Some("http")) => Some(80),
        (false, _) => {
            return Err(bad(format!("only http:// works as plain HTTP; use CONNECT for {uri:.80}")));
        }
    };
    Target::from_authority(authority.as_str(), default_port).map_err(|error| bad(error.to_string()))
}

/// The call that a client belongs to: the user name of its proxy setting. Code in the sandbox sets it, so it is only
/// a hint, and only plain words are accepted.
pub(super) fn read_call(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(PROXY_AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    plain_call(decoded.split_once(':').map_or(decoded.as_str(), |(user, _)| user))
}

/// The call, if it is a plain word.
pub(super) fn plain_call(call: &str) -> Option<String> {
    let plain = call.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (plain && !call.is_empty() && call.len() <= CALL_LIMIT).then(|| call.to_owned())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn call_of(value: &[u8]) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(PROXY_AUTHORIZATION, HeaderValue::from_bytes(value).ok()?);
        read_call(&headers)
    }

    #[test]
    fn the_call_is_the_user_name() {
        assert_eq!(call_of(b"Basic Y2FsbC0xOng=").as_deref(), Some("call-1"));
        assert_eq!(call_of(b"basic Y2FsbC0xOg==").as_deref(), Some("call-1"));
        for value in ["Bearer Y2FsbC0xOng=", "Basic", "Basic !!!", "Basic Og=="] {
            assert_eq!(call_of(value.as_bytes()), None, "{value}");
        }
        assert_eq!(call_of(format!("Basic {}", STANDARD.encode("a b\r\n:x")).as_bytes()), None);
        assert_eq!(call_of(format!("Basic {}", STANDARD.encode("a".repeat(129))).as_bytes()), None);
    }

    proptest! {
        #[test]
        fn reading_a_call_never_panics(value in proptest::collection::vec(any::<u8>(), 0..80), text in "\\PC{0,40}") {
            call_of(&value);
            let mut basic = b"Basic ".to_vec();
            basic.extend(value);
            call_of(&basic);
            let call = call_of(format!("Basic {}", STANDARD.encode(&text)).as_bytes());
            prop_assert!(call.is_none_or(|call| text.starts_with(&call)));
        }
    }
}
