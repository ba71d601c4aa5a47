//! Forwards one request to a server in a sandbox, and its response back. A WebSocket becomes a tunnel.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use orchestrator::{Gate, PortStream};

use super::cookies;
use super::error_pages::{self, Page};
use super::job_domains::scheme;
use super::target::Target;
use crate::access::{AccessGrant, CloseSignal, takeover_gate};
use crate::extract::Shutdown;
use crate::guard::Transport;
use crate::serve::SlotUse;

/// Hop-by-hop headers.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
];
/// Response headers that a job must not set, because they affect more than its origin: HSTS, alternative services,
/// clearing and reporting.
const STRIPPED_RESPONSE_HEADERS: [HeaderName; 6] = [
    header::STRICT_TRANSPORT_SECURITY,
    header::ALT_SVC,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("reporting-endpoints"),
];
/// Request headers that a job must not receive, because they reveal the client's address. The proxy sets its own.
const STRIPPED_REQUEST_HEADERS: [HeaderName; 4] = [
    header::FORWARDED,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-server"),
];
/// The buffer size of a tunnel per direction.
const TUNNEL_BYTES: usize = 32 * 1024;

/// Forwards a request.
pub(crate) async fn forward(
    stream: PortStream,
    target: Target,
    transport: Transport,
    mut request: Request,
) -> Response {
    let shutdown = request.extensions().get::<Shutdown>().cloned().unwrap_or_default().0;
    let grant = request.extensions().get::<AccessGrant>().cloned();
    let used = request.extensions().get::<SlotUse>().cloned();
    let gate = request.extensions().get::<Gate>().cloned();
    let request_headers = request.headers().clone();
    let upgrade = wants_upgrade(&request_headers).then(|| hyper::upgrade::on(&mut request));
    prepare(&mut request, transport, upgrade.is_some());
    let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let Ok((mut sender, connection)) = connected else {
        return error_pages::answer(&request_headers, &Page::Broken(target));
    };
    tokio::spawn(async move {
        // The request below returns the error.
        let _ = connection.with_upgrades().await;
    });
    let mut response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(_) => return error_pages::answer(&request_headers, &Page::Broken(target)),
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(upgrade) = upgrade
    {
        let answered = hyper::upgrade::on(&mut response);
        tokio::spawn(tunnel(upgrade, answered, CloseSignal::new(grant.clone(), &shutdown), (used, gate)));
    }
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    clean_response(response.headers_mut(), is_upgrade);
    if is_upgrade || response.headers().contains_key(header::CONTENT_LENGTH) {
        return response.map(Body::new);
    }
    // The body may be endless.
    let closing = CloseSignal::new(grant, &shutdown);
    response.map(|body| {
        let ended = async move { closing.token().cancelled().await };
        Body::from_stream(Body::new(body).into_data_stream().take_until(Box::pin(ended)))
    })
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    let asks = |value: &HeaderValue| {
        value
            .to_str()
            .is_ok_and(|text| text.split(',').any(|part| part.trim().eq_ignore_ascii_case("upgrade")))
    };
    headers.contains_key(header::UPGRADE) && headers.get_all(header::CONNECTION).iter().any(asks)
}

fn prepare(request: &mut Request, transport: Transport, is_upgrade: bool) {
    let uri = takeover_gate::without_takeover_token(request.uri());
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    *request.uri_mut() = Uri::try_from(path).unwrap_or_default();
    let headers = request.headers_mut();
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.insert("x-forwarded-host", host);
    }
    headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme(transport)));
    headers.insert("x-forwarded-for", HeaderValue::from_static("127.0.0.1"));
    clean(headers, is_upgrade);
    headers.remove(takeover_gate::HEADER);
    for name in STRIPPED_REQUEST_HEADERS {
        headers.remove(name);
    }
    // A key of this server must not reach a job, whatever it was sent for.
    let is_key = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("caisson_"));
    if headers.get_all(header::AUTHORIZATION).iter().any(is_key) {
        headers.remove(header::AUTHORIZATION);
    }
    let kept = without_own_cookies(headers);
    headers.remove(header::COOKIE);
    if let Some(kept) = kept {
        headers.insert(header::COOKIE, kept);
    }
}

fn clean(headers: &mut HeaderMap, is_upgrade: bool) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    if !is_upgrade {
        headers.remove(header::CONNECTION);
        headers.remove(header::UPGRADE);
    }
}

fn clean_response(headers: &mut HeaderMap, is_upgrade: bool) {
    clean(headers, is_upgrade);
    for name in STRIPPED_RESPONSE_HEADERS {
        headers.remove(name);
    }
    let cookies: Vec<HeaderValue> =
        headers.get_all(header::SET_COOKIE).iter().filter_map(own_origin_only).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// The cookies of a request without the server's own.
fn without_own_cookies(headers: &HeaderMap) -> Option<HeaderValue> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies::without_own(all).and_then(|kept| HeaderValue::from_str(&kept).ok())
}

/// A job's cookie limited to its own origin. `None` for one of the server's own.
fn own_origin_only(cookie: &HeaderValue) -> Option<HeaderValue> {
    let kept = cookies::own_origin_only(cookie.to_str().ok()?)?;
    HeaderValue::from_str(&kept).ok()
}

/// Copies in both directions until one side ends, the server shuts down, or the lease ends.
async fn tunnel(
    asked: hyper::upgrade::OnUpgrade,
    answered: hyper::upgrade::OnUpgrade,
    closing: CloseSignal,
    (used, gate): (Option<SlotUse>, Option<Gate>),
) {
    // Once a user takes the notebook over, other tunnels to it end.
    let taken = async {
        match &gate {
            Some(gate) => gate.closed().await,
            None => std::future::pending().await,
        }
    };
    let copying = async {
        let (asked, answered) = tokio::join!(asked, answered);
        if let (Ok(asked), Ok(answered)) = (asked, answered) {
            let (mut client, mut job) = (TokioIo::new(asked), TokioIo::new(answered));
            let _ =
                tokio::io::copy_bidirectional_with_sizes(&mut client, &mut job, TUNNEL_BYTES, TUNNEL_BYTES)
                    .await;
        }
    };
    tokio::select! {
        () = copying => {}
        () = closing.token().cancelled() => {}
        () = taken => {}
    }
    drop(used);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_cookies_are_filtered_in_both_directions() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=1; caisson_session=x; b=2"));
        headers.append(header::COOKIE, HeaderValue::from_static("__Host-caisson=y; Caisson-x=1"));
        assert_eq!(without_own_cookies(&headers).unwrap(), "a=1; b=2");
        let set = |text: &'static str| own_origin_only(&HeaderValue::from_static(text));
        assert_eq!(set("caisson_session=evil; Path=/"), None);
        assert_eq!(set("a=1; Domain=localhost; Path=/; HttpOnly").unwrap(), "a=1; Path=/; HttpOnly");
        assert_eq!(set("a=1").unwrap(), "a=1");
        assert_eq!(
            set("=caisson_session=evil"),
            None,
            "browsers send a cookie without a name back as its value"
        );
        assert_eq!(set("__hOST-caisson_session=evil"), None);
    }

    #[test]
    fn hop_by_hop_and_address_headers_are_not_forwarded() {
        let mut request = Request::builder()
            .uri("http://x.localhost/a?b=c")
            .header("host", "x.localhost:8000")
            .header("connection", "keep-alive")
            .header("te", "trailers")
            .header("accept", "*/*")
            .header("forwarded", "for=203.0.113.9")
            .header("x-real-ip", "203.0.113.9")
            .header("x-forwarded-for", "203.0.113.9")
            .body(Body::empty())
            .unwrap();
        assert!(!wants_upgrade(request.headers()));
        prepare(&mut request, Transport::Encrypted, false);
        assert_eq!(request.uri(), "/a?b=c");
        assert!(!request.headers().contains_key("connection") && !request.headers().contains_key("te"));
        assert_eq!(request.headers()["x-forwarded-host"], "x.localhost:8000");
        assert_eq!(request.headers()["x-forwarded-proto"], "https");
        assert!(
            !format!("{:?}", request.headers()).contains("203.0.113.9"),
            "where somebody is, is not told"
        );
    }

    #[test]
    fn site_wide_response_headers_are_stripped() {
        let mut headers = HeaderMap::new();
        for name in [
            "Strict-Transport-Security",
            "Alt-Svc",
            "Clear-Site-Data",
            "NEL",
            "Report-To",
            "Reporting-Endpoints",
        ] {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("x"));
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("y"));
        }
        headers.append("x-own", HeaderValue::from_static("z"));
        clean_response(&mut headers, false);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-own"]);
    }

    #[test]
    fn takeover_token_is_not_forwarded_to_jobs() {
        let prepared = |uri: &str| {
            let request = Request::builder().uri(uri).header("x-caisson-takeover", "takeover-1f");
            let mut request = request.header("host", "x.localhost").body(Body::empty()).unwrap();
            prepare(&mut request, Transport::Plain, false);
            assert!(!request.headers().contains_key("x-caisson-takeover"));
            request.uri().to_string()
        };
        assert_eq!(prepared("/a?b=c&takeover=takeover-1f&d"), "/a?b=c&d");
        assert_eq!(prepared("/a?takeover=takeover-1f"), "/a");
        assert_eq!(
            prepared("/a?takeover=yes&b=c"),
            "/a?takeover=yes&b=c",
            "what is the app's own reaches it"
        );
    }
}
