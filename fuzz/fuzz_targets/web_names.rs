//! Hosts and origins of requests, and cookies set by jobs. A host accepted as this machine's is one of its names. An
//! accepted cookie is not one of the server's and has no domain, when parsed as a browser does.
#![cfg_attr(fuzzing, no_main)]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/server/src/origins/cookies.rs"]
mod cookies;
#[allow(dead_code)]
#[path = "../../crates/server/src/guard/host_header.rs"]
mod host_header;

use host_header::{Authority, parse_origin};

fuzz_target!(|text: &str| {
    if let Some(authority) = Authority::parse(text) {
        check_host(text, &authority);
    }
    if let Some((authority, port)) = parse_origin(text) {
        assert!(text.starts_with(if port == 80 { "http://" } else { "https://" }), "{text:?}");
        let named = text.split("://").nth(1).and_then(|rest| rest.split('/').next()).expect("a host");
        check_host(named, &authority);
    }
    if let Some(kept) = cookies::own_origin_only(text) {
        check_cookie(&kept);
    }
    if let Some(kept) = cookies::without_own(text.lines()) {
        kept.split("; ").for_each(check_cookie);
    }
});

/// An accepted host is normalized and equivalent to its input.
fn check_host(text: &str, authority: &Authority) {
    let Authority { host, port } = authority;
    let is_six = text.starts_with('[');
    let shown = if is_six { format!("[{host}]") } else { host.clone() };
    let whole = port.map_or(shown.clone(), |port| format!("{shown}:{port}"));
    assert_eq!(Authority::parse(&whole).as_ref(), Some(authority), "{text:?}");
    assert!(!host.contains(['/', '@', '?', '#', '\\', ' ', '%']), "{text:?}");
    assert!(text.to_ascii_lowercase().starts_with(shown.trim_end_matches(']')), "{text:?}");
    if authority.is_loopback() {
        let is_address = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        assert!(is_address || host == "localhost", "{text:?}");
    }
}

/// As browsers parse it: name and value up to the first semicolon, then attributes.
fn check_cookie(cookie: &str) {
    let mut parts = cookie.split(';');
    let pair = parts.next().unwrap_or_default();
    let (name, value) = pair.split_once('=').unwrap_or(("", pair));
    let sent = if name.trim().is_empty() { value.trim() } else { name.trim() };
    let mut sent = sent.to_ascii_lowercase();
    for prefix in ["__host-", "__secure-"] {
        sent = sent.strip_prefix(prefix).unwrap_or(&sent).to_owned();
    }
    assert!(!sent.starts_with("caisson"), "{cookie:?}");
    for attribute in parts {
        let name = attribute.split('=').next().unwrap_or_default().trim();
        assert!(!name.eq_ignore_ascii_case("domain"), "{cookie:?}");
    }
}
