//! Where a request comes from: the client's address, and whether its connection is encrypted.
//!
//! `X-Forwarded-*` headers count only if they come from a proxy that the operator lists in `trusted_proxies`.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use crate::settings::ServerSettings;

/// Whether the connection to the client is encrypted. If it is, cookies are marked `Secure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Plain,
    Encrypted,
}

/// The connection of a request, and what the request's headers say about the hops before it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientInfo {
    /// The address of the peer. `None` if the server runs inside another command.
    pub(crate) peer: Option<IpAddr>,
    pub(crate) is_tls: bool,
    forwarded_proto: Option<String>,
    forwarded_for: Vec<IpAddr>,
}

/// What is known about a connection before its first request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionInfo {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) is_tls: bool,
}

impl ClientInfo {
    pub(crate) fn new(connected: Option<ConnectionInfo>, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let all = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
        Self {
            peer: connected.and_then(|connected| connected.peer),
            is_tls: connected.is_some_and(|connected| connected.is_tls),
            forwarded_proto: text("x-forwarded-proto").map(ToOwned::to_owned),
            forwarded_for: all
                .flat_map(|line| line.split(','))
                .filter_map(|part| part.trim().parse().ok())
                .collect(),
        }
    }

    fn is_by_proxy(&self, settings: &ServerSettings) -> bool {
        self.peer.is_some_and(|peer| settings.trusted_proxies.contains(&peer))
    }

    /// Whether the client's connection is encrypted.
    pub(crate) fn transport(&self, settings: &ServerSettings) -> Transport {
        let says_https =
            self.forwarded_proto.as_deref().is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
        let is_encrypted = self.is_tls
            || (says_https && self.is_by_proxy(settings))
            || settings.public_url.as_deref().is_some_and(|url| url.starts_with("https://"));
        if is_encrypted { Transport::Encrypted } else { Transport::Plain }
    }

    /// The client's address: the last address in the chain that does not belong to a trusted proxy.
    pub(crate) fn client(&self, settings: &ServerSettings) -> Option<IpAddr> {
        if !self.is_by_proxy(settings) {
            return self.peer;
        }
        let is_proxy = |address: &IpAddr| settings.trusted_proxies.contains(address);
        self.forwarded_for.iter().rev().find(|address| !is_proxy(address)).copied().or(self.peer)
    }
}

impl<S: Sync> FromRequestParts<S> for ClientInfo {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::new(parts.extensions.get::<ConnectionInfo>().copied(), &parts.headers))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn client_info(peer: &str, forwarded_for: &str, proto: &str) -> ClientInfo {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_str(forwarded_for).unwrap());
        headers.insert("x-forwarded-proto", HeaderValue::from_str(proto).unwrap());
        ClientInfo::new(Some(ConnectionInfo { peer: peer.parse().ok(), is_tls: false }), &headers)
    }

    #[test]
    fn forwarded_headers_count_only_from_trusted_proxies() {
        let plain = ServerSettings::default();
        let behind = ServerSettings {
            trusted_proxies: vec!["10.0.0.1".parse().unwrap()],
            ..ServerSettings::default()
        };
        let from_proxy = client_info("10.0.0.1", "6.6.6.6, 1.2.3.4", "https");
        assert_eq!(from_proxy.transport(&plain), Transport::Plain);
        assert_eq!(from_proxy.client(&plain), "10.0.0.1".parse().ok());
        assert_eq!(from_proxy.transport(&behind), Transport::Encrypted);
        assert_eq!(
            from_proxy.client(&behind),
            "1.2.3.4".parse().ok(),
            "what stands before was said by the client"
        );
        let untrusted_peer = client_info("1.2.3.4", "10.0.0.9", "https");
        assert_eq!(
            (untrusted_peer.transport(&behind), untrusted_peer.client(&behind)),
            (Transport::Plain, "1.2.3.4".parse().ok())
        );
        let silent = ClientInfo::new(
            Some(ConnectionInfo { peer: "10.0.0.1".parse().ok(), is_tls: false }),
            &HeaderMap::new(),
        );
        assert_eq!(silent.client(&behind), "10.0.0.1".parse().ok());
    }

    #[test]
    fn tls_and_https_public_url_count_as_encrypted() {
        let tls = ClientInfo::new(Some(ConnectionInfo { peer: None, is_tls: true }), &HeaderMap::new());
        assert_eq!(tls.transport(&ServerSettings::default()), Transport::Encrypted);
        let public =
            ServerSettings { public_url: Some("https://x.example".into()), ..ServerSettings::default() };
        assert_eq!(ClientInfo::default().transport(&public), Transport::Encrypted);
    }
}
