//! Parses hosts in `Host` headers, `Origin` headers and URLs. Invalid hosts are rejected.

use std::net::IpAddr;

/// A host and its port. Without an explicit port it is the default port of the scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostAndPort {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A host with an optional port, as in a URL or a `Host` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    /// In lowercase.
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
}

impl Authority {
    /// Parses `name`, `name:port`, `1.2.3.4:port` or `[::1]:port`. Returns `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, after) = rest.split_once(']')?;
                address.parse::<std::net::Ipv6Addr>().ok()?;
                (address, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if host.is_empty() || host.ends_with('.') || !host.bytes().all(is_name) {
            return None;
        }
        let port = match port {
            None | Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
            Some(_) => return None,
        };
        Some(Self { host, port })
    }

    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    pub(crate) fn with_default_port(self, default_port: u16) -> HostAndPort {
        HostAndPort { port: self.port.unwrap_or(default_port), host: self.host }
    }
}

/// Parses an origin or URL such as `http://host:port` and returns the host with the default port of the scheme.
pub(crate) fn parse_origin(origin: &str) -> Option<(Authority, u16)> {
    let (rest, port) = match origin.split_once("://")? {
        ("http", rest) => (rest, 80),
        ("https", rest) => (rest, 443),
        _ => return None,
    };
    let authority = rest.split_once('/').map_or(rest, |(authority, _)| authority);
    Some((Authority::parse(authority)?, port))
}
