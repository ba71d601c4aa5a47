//! The destination of a connection: a normalized host, and a port.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::EgressError;

/// The maximum length of a name in DNS.
const NAME_LIMIT: usize = 253;
/// The maximum length of a label of a name.
const LABEL_LIMIT: usize = 63;

/// A host in normalized form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name: ASCII (punycode), lowercase, without a trailing dot.
    Name(String),
    /// An address; an IPv4-mapped IPv6 address is converted to IPv4.
    Address(IpAddr),
}

impl FromStr for Host {
    type Err = EgressError;

    /// Parses a name or an address, the latter with or without brackets.
    fn from_str(text: &str) -> Result<Self, EgressError> {
        let refuse = |why: &str| Err(EgressError::Host { host: shorten(text), why: why.into() });
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        if text.len() > 4 * NAME_LIMIT {
            return refuse("longer than the 253 characters that a name may have");
        }
        let Ok(ascii) = idna::domain_to_ascii(text) else {
            return refuse("not a valid name");
        };
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        if name.is_empty() {
            return refuse("empty");
        }
        if name.len() > NAME_LIMIT {
            return refuse("longer than the 253 characters that a name may have");
        }
        if !name.split('.').all(is_label) {
            return refuse("not a valid name");
        }
        // The C library accepts 2130706433, 0x7f.1 and 127.1 as addresses, but people do not recognize them as such.
        if name.rsplit('.').next().is_some_and(is_number) {
            return refuse("an unsupported form of an address; write it as four decimal numbers");
        }
        Ok(Self::Name(name.to_owned()))
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= LABEL_LIMIT
        && label
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
}

fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(80).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl Serialize for Host {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

impl Target {
    /// Parses `host:port` as in a request. Credentials before an `@` are ignored.
    ///
    /// # Errors
    /// The host or the port is invalid, or there is neither a port nor a default.
    pub(crate) fn from_authority(text: &str, default_port: Option<u16>) -> Result<Self, EgressError> {
        let refuse = |why: &str| EgressError::Host { host: shorten(text), why: why.into() };
        let authority = text.rsplit_once('@').map_or(text, |(_, authority)| authority);
        let end = if authority.starts_with('[') {
            authority.find(']').map(|at| at + 1)
        } else {
            authority.find(':')
        };
        let (host, rest) = authority.split_at(end.unwrap_or(authority.len()));
        let port = match (rest.strip_prefix(':'), default_port) {
            (Some(""), Some(port)) => port,
            (None, Some(port)) if rest.is_empty() => port,
            (None, None) => return Err(refuse("the port is missing")),
            (Some(digits), _) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().unwrap_or(0)
            }
            _ => 0,
        };
        if port == 0 {
            return Err(refuse("the port is not a number from 1 to 65535"));
        }
        Ok(Self { host: host.parse()?, port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address @ IpAddr::V6(_)) => write!(f, "[{address}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn host(text: &str) -> String {
        text.parse::<Host>().map(|host| host.to_string()).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn hosts_are_compared_in_one_form() {
        assert_eq!(host("Example.ORG."), "example.org");
        assert_eq!(host("Bücher.example"), "xn--bcher-kva.example");
        assert_eq!(host("xn--bcher-kva.example"), "xn--bcher-kva.example");
        assert_eq!(host("[2001:DB8::1]"), "2001:db8::1");
        assert_eq!(host("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(host("_service.example.org"), "_service.example.org");
    }

    #[test]
    fn unusual_address_forms_are_not_names() {
        for text in ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "0x7f000001", "1.2.3.4.5", "10.0.0.256"] {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
    }

    #[test]
    fn broken_names_are_refused() {
        let long_label = "a".repeat(64);
        let long_name = "a.".repeat(5000);
        let names =
            ["", ".", "..", "a..b", "a b", "a/b", "a@b", "a:b", "[::1", "fe80::1%eth0", "a\0b", "a\r\nb"];
        for text in names.into_iter().chain([long_label.as_str(), long_name.as_str()]) {
            assert!(text.parse::<Host>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_authority_has_a_host_and_a_port() {
        let read = |text, port| Target::from_authority(text, port).map(|target| target.to_string()).ok();
        assert_eq!(read("Example.org:8443", None).as_deref(), Some("example.org:8443"));
        assert_eq!(read("example.org", Some(80)).as_deref(), Some("example.org:80"));
        assert_eq!(read("example.org:", Some(80)).as_deref(), Some("example.org:80"));
        assert_eq!(read("me:secret@example.org", Some(80)).as_deref(), Some("example.org:80"));
        assert_eq!(read("[2001:db8::1]:443", None).as_deref(), Some("[2001:db8::1]:443"));
        for text in [
            "example.org",
            "example.org:",
            "example.org:0",
            "example.org:99999",
            "example.org:+1",
            "[::1",
            "",
        ] {
            assert_eq!(read(text, None), None, "{text}");
        }
        for text in ["example.org:99999", "example.org:x", "[::1]x", ":80"] {
            assert_eq!(read(text, Some(80)), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn reading_an_authority_never_panics(text in "\\PC{0,60}|[a-z0-9.:@\\[\\]-]{0,30}", port: Option<u16>) {
            if let Ok(target) = Target::from_authority(&text, port) {
                prop_assert_eq!(Target::from_authority(&target.to_string(), None), Ok(target));
            }
        }

        #[test]
        fn parsing_a_host_never_panics_and_round_trips(text in "\\PC{0,80}|[a-z0-9.*:\\[\\]%-]{0,40}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert!(host.to_string().len() <= NAME_LIMIT);
                prop_assert_eq!(host.to_string().parse::<Host>(), Ok(host));
            }
        }
    }
}
