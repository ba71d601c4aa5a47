//! Rejects requests whose headers are ambiguous about the destination or the end of the body.

use hyper::Request;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TRANSFER_ENCODING};
use hyper::http::uri::Authority;

use crate::refusal::{ReasonCode, Refusal};
use crate::target::Target;

/// Headers that must be unique, because servers differ in whether they use the first, the last or all of them.
const ONCE: [HeaderName; 4] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONTENT_ENCODING];

/// Refuses a request that repeats a unique header, or whose body encoding would not be forwarded.
pub(crate) fn check_unique_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    if let Some(name) = ONCE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        return Err(Refusal {
            remedy: format!("send `{name}` once"),
            ..Refusal::failure(
                ReasonCode::DuplicateHeader,
                format!("request refused: it has the header `{name}` more than once"),
            )
        });
    }
    match headers.get(TRANSFER_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Err(Refusal {
            remedy: "send the body with `content-length` or `transfer-encoding: chunked`".into(),
            ..Refusal::failure(
                ReasonCode::BadRequest,
                "request refused: its `transfer-encoding` is not just `chunked`",
            )
        }),
        _ => Ok(()),
    }
}

/// A client that requested one host must not talk to another one at the same address. Every part of the request that
/// names a host must name this one: the `Host` header and an absolute URL.
pub(crate) fn check_host<B>(request: &Request<B>, target: &Target) -> Result<(), Refusal> {
    let header = request.headers().get(HOST).map(|host| host.to_str().unwrap_or("something unreadable"));
    let authority = request.uri().authority().map(Authority::as_str);
    let names = |host: &str| {
        !host.contains('@')
            && Target::from_authority(host, Some(target.port)).is_ok_and(|named| named == *target)
    };
    let stated: Vec<&str> = header.into_iter().chain(authority).collect();
    let wrong = stated.iter().find(|host| !names(host)).copied();
    let wrong = if stated.is_empty() { Some("nothing") } else { wrong };
    wrong.map_or(Ok(()), |host| {
        let host: String = host.chars().take(80).collect();
        Err(Refusal::failure(
            ReasonCode::BadRequest,
            format!("a request on the connection to {target} has the host {host}"),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn routing_and_framing_headers_must_be_unique() {
        for name in ["Host", "Content-Length", "Transfer-Encoding", "Content-Encoding"] {
            let one = if name == "Transfer-Encoding" { "chunked" } else { "1" };
            assert!(check_unique_headers(request("/", &[(name, one)]).headers()).is_ok());
            let refusal =
                check_unique_headers(request("/", &[(name, one), (name, one)]).headers()).unwrap_err();
            assert_eq!(refusal.code, ReasonCode::DuplicateHeader);
            assert!(refusal.reason.contains(&name.to_lowercase()), "{}", refusal.reason);
        }
        for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity"] {
            let refusal =
                check_unique_headers(request("/", &[("transfer-encoding", coding)]).headers()).unwrap_err();
            assert_eq!(refusal.code, ReasonCode::BadRequest, "{coding}");
        }
    }

    #[test]
    fn request_hosts_must_match_the_connection() {
        let target = Target { host: "api.example.org".parse().unwrap(), port: 8443 };
        let check = |uri: &str, host: &str| check_host(&request(uri, &[("host", host)]), &target).is_ok();
        assert!(check("/", "API.example.org:8443") && check("/", "api.example.org"));
        assert!(check("https://api.example.org:8443/", "api.example.org:8443"));
        for host in [
            "evil.example",
            "api.example.org:443",
            "evil@api.example.org",
            "api.example.org, evil.example",
            "",
        ] {
            assert!(!check("/", host), "{host}");
        }
        assert!(!check("https://evil.example/", "api.example.org:8443"));
        assert!(check_host(&request("/", &[]), &target).is_err());
    }
}
