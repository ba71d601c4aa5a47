//! An entry of an allow list: parsing, formatting and matching. `request_filter` has its restrictions to methods and paths.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::address::Cidr;
use super::request_filter::{RequestFilter, RuleSpec};
use crate::error::EgressError;
use crate::target::{Host, Target};

/// The ports of an entry without a port: HTTP and HTTPS.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// An entry of an allow list.
///
/// `example.org` matches only itself, `*.example.org` its sub-domains but not itself, `192.0.2.0/24` connections to
/// a literal address in that range (never names that resolve into it), and `packages` the built-in package
/// registries and code hosts. An entry without a port means the ports 80 and 443. In object form an entry can also
/// restrict methods and paths: `{"host": "api.example.org", "methods": ["GET"], "paths": ["/v1/*"]}`, or allow
/// tunnels that carry something other than TLS: `{"host": "git.example.org:22", "without_tls": true}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    subject: Subject,
    port: Option<u16>,
    filter: RequestFilter,
    without_tls: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Name(String),
    Subdomains(String),
    Range(Cidr),
    Packages,
}

/// How well a rule matches a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Host and port match.
    Whole,
    /// The host matches, but not the port.
    HostOnly,
    None,
}

impl Rule {
    /// Matches the rule against a target by its own host and port. `packages` has none and matches nothing here; see
    /// [`Rule::fit`].
    pub(super) fn fit_host(&self, target: &Target) -> Fit {
        let fits_host = match (&self.subject, &target.host) {
            (Subject::Name(rule), Host::Name(name)) => rule == name,
            (Subject::Subdomains(parent), Host::Name(name)) => {
                name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (Subject::Range(range), Host::Address(address)) => range.contains(*address),
            _ => false,
        };
        match (fits_host, self.allows_port(target.port)) {
            (true, true) => Fit::Whole,
            (true, false) => Fit::HostOnly,
            (false, _) => Fit::None,
        }
    }

    fn allows_port(&self, port: u16) -> bool {
        self.port.map_or(DEFAULT_PORTS.contains(&port), |only| only == port)
    }

    /// Whether it stands for the built-in package registries and code hosts.
    pub(super) fn is_packages(&self) -> bool {
        self.subject == Subject::Packages
    }

    /// The narrowest rule that allows a target, in the form that a person would write.
    #[must_use]
    pub fn for_target(target: &Target) -> Self {
        let subject = match &target.host {
            Host::Name(name) => Subject::Name(name.clone()),
            Host::Address(address) => Subject::Range(Cidr::single(*address)),
        };
        plain(subject, (!DEFAULT_PORTS.contains(&target.port)).then_some(target.port))
    }

    /// The rule that allows only this request to a target; `None` if its path is too long.
    #[must_use]
    pub(crate) fn for_request(target: &Target, method: &str, path: &str) -> Option<Self> {
        Some(Self { filter: RequestFilter::of_request(method, path)?, ..Self::for_target(target) })
    }

    /// Whether the other rule includes all hosts and ports of this one.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let is_below = |name: &str, parent: &str| {
            name.strip_suffix(parent).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        };
        let fits_host = match (&self.subject, &other.subject) {
            (Subject::Name(name), Subject::Subdomains(parent)) => is_below(name, parent),
            (Subject::Subdomains(inner), Subject::Subdomains(parent)) => {
                inner == parent || is_below(inner, parent)
            }
            (one, other) => one == other,
        };
        let fits_port = match (self.port, other.port) {
            (None, only) => only.is_none(),
            (Some(port), _) => other.allows_port(port),
        };
        fits_host && fits_port && other.filter.is_unrestricted()
    }

    /// Whether it names a host or its sub-domains, as opposed to addresses or groups.
    #[must_use]
    pub fn names_a_host(&self) -> bool {
        matches!(self.subject, Subject::Name(_) | Subject::Subdomains(_))
    }

    /// The domain that contains all its hosts, if it names hosts.
    pub(crate) fn domain(&self) -> Option<String> {
        match &self.subject {
            Subject::Name(name) | Subject::Subdomains(name) => Some(name.clone()),
            Subject::Range(_) | Subject::Packages => None,
        }
    }

    /// Its restrictions to methods and paths.
    pub(crate) fn request_filter(&self) -> &RequestFilter {
        &self.filter
    }

    /// Whether a tunnel may carry something other than TLS.
    #[must_use]
    pub fn allows_without_tls(&self) -> bool {
        self.without_tls
    }

    /// Also allows tunnels that carry something other than TLS.
    pub(crate) fn allowing_without_tls(self) -> Self {
        Self { without_tls: true, ..self }
    }

    /// The host and port, without methods and paths.
    pub(crate) fn host_and_port(&self) -> String {
        let text = match &self.subject {
            Subject::Name(name) => name.clone(),
            Subject::Subdomains(parent) => format!("*.{parent}"),
            Subject::Range(range) => range.to_string(),
            Subject::Packages => "packages".into(),
        };
        match self.port {
            Some(port) if text.contains(':') => format!("[{text}]:{port}"),
            Some(port) => format!("{text}:{port}"),
            None => text,
        }
    }
}

fn plain(subject: Subject, port: Option<u16>) -> Rule {
    Rule { subject, port, filter: RequestFilter::default(), without_tls: false }
}

impl FromStr for Rule {
    type Err = EgressError;

    fn from_str(text: &str) -> Result<Self, EgressError> {
        let refuse =
            |why: &str| EgressError::Entry { entry: text.chars().take(300).collect(), why: why.into() };
        if text == "packages" {
            return Ok(plain(Subject::Packages, None));
        }
        if text.contains("://") {
            return Err(refuse("a URL; write only the host"));
        }
        if text == "*" {
            return Err(refuse("everything; write \"egress\": \"open\" instead"));
        }
        let (host, port) =
            split_port(text).ok_or_else(|| refuse("the port is not a number from 1 to 65535"))?;
        if let Some(parent) = host.strip_prefix("*.") {
            return match parent.parse() {
                Ok(Host::Name(name)) => Ok(plain(Subject::Subdomains(name), port)),
                Ok(Host::Address(_)) => Err(refuse("an address has no sub-domains")),
                Err(_) => Err(refuse("not a valid name")),
            };
        }
        if host.contains('*') {
            return Err(refuse("a star is only allowed at the front, followed by a dot"));
        }
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if bare.contains('/') {
            let range = bare.parse::<Cidr>().map_err(|error| match error {
                EgressError::Range { why, .. } => refuse(&why),
                other => other,
            })?;
            return Ok(plain(Subject::Range(range), port));
        }
        match host.parse() {
            // `PACKAGES` or `packages.`: the formatted rule would be the keyword, so it is parsed as the keyword.
            Ok(Host::Name(name)) if name == "packages" && port.is_none() => {
                Ok(plain(Subject::Packages, None))
            }
            Ok(Host::Name(name)) => Ok(plain(Subject::Name(name), port)),
            Ok(Host::Address(address)) => Ok(plain(Subject::Range(Cidr::single(address)), port)),
            Err(EgressError::Host { why, .. }) => Err(refuse(&why)),
            Err(other) => Err(other),
        }
    }
}

/// Splits a port off the end; `None` if the text after the colon is not a port.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        // More colons and no bracket before the last one: an IPv6 address without a port.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => return Some((text, None)),
        Some((host, port)) => (host, port),
        None => return Some((text, None)),
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(number) if number > 0 && digits => Some((host, Some(number))),
        _ => None,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host_and_port())?;
        self.filter.fmt(f)?;
        if self.without_tls { f.write_str(" [without TLS]") } else { Ok(()) }
    }
}

impl Serialize for Rule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.filter.is_unrestricted() && !self.without_tls {
            return serializer.collect_str(self);
        }
        let object = self.filter.object(self.host_and_port());
        RuleSpec { without_tls: self.without_tls, ..object }.serialize(serializer)
    }
}

/// The two forms of a rule.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "must be a string such as \"example.org\", or an object with `host`, `methods`, `paths` and `without_tls`"
)]
enum RuleForm {
    Text(String),
    Object(RuleSpec),
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match RuleForm::deserialize(deserializer)? {
            RuleForm::Text(text) => text.parse().map_err(D::Error::custom),
            RuleForm::Object(object) => {
                let rule: Self = object.host.parse().map_err(D::Error::custom)?;
                let without_tls = object.without_tls;
                let filter = RequestFilter::check(object).map_err(D::Error::custom)?;
                if rule.is_packages() && (!filter.is_unrestricted() || without_tls) {
                    return Err(D::Error::custom("`packages` allows no `methods`, `paths` or `without_tls`"));
                }
                if without_tls && !filter.is_unrestricted() {
                    return Err(D::Error::custom(format!(
                        "\"{rule}\" combines `without_tls` with methods or paths, which are not visible in a tunnel; write two rules"
                    )));
                }
                Ok(Self { filter, without_tls, ..rule })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fit(rule: &str, host: &str, port: u16) -> Fit {
        rule.parse::<Rule>().unwrap().fit(&Target { host: host.parse().unwrap(), port })
    }

    #[test]
    fn a_name_matches_itself_and_a_star_its_subdomains() {
        assert_eq!(fit("example.org", "EXAMPLE.org.", 443), Fit::Whole);
        assert_eq!(fit("example.org", "www.example.org", 443), Fit::None);
        assert_eq!(fit("*.example.org", "a.b.example.org", 80), Fit::Whole);
        assert_eq!(fit("*.example.org", "example.org", 80), Fit::None);
        assert_eq!(fit("*.example.org", "badexample.org", 80), Fit::None);
        assert_eq!(fit("*.Bücher.example", "www.xn--bcher-kva.example", 80), Fit::Whole);
    }

    #[test]
    fn rule_display_round_trips() {
        for text in ["packages", "Packages", "packages.", "packages:443", "*.packages", "example.org"] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule, "{text}");
        }
    }

    #[test]
    fn ports_default_to_the_web() {
        assert_eq!(fit("example.org", "example.org", 22), Fit::HostOnly);
        assert_eq!(fit("example.org:22", "example.org", 22), Fit::Whole);
        assert_eq!(fit("example.org:22", "example.org", 443), Fit::HostOnly);
    }

    #[test]
    fn ranges_match_addresses_and_never_names() {
        assert_eq!(fit("192.0.2.0/24", "192.0.2.7", 443), Fit::Whole);
        assert_eq!(fit("192.0.2.0/24", "::ffff:192.0.2.7", 443), Fit::Whole);
        assert_eq!(fit("192.0.2.7", "192.0.2.7", 443), Fit::Whole);
        assert_eq!(fit("[2001:db8::/32]:8443", "2001:db8::1", 8443), Fit::Whole);
        assert_eq!(fit("2001:db8::/32", "2001:db9::1", 443), Fit::None);
        assert_eq!(fit("0.0.0.0/0", "example.org", 443), Fit::None);
    }

    #[test]
    fn a_wrong_entry_is_named_with_what_is_allowed() {
        for entry in [
            "",
            "*",
            "a.*.b",
            "https://example.org/",
            "example.org:0",
            "example.org:x",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "*.10.0.0.1",
            "example.org:70000",
            "a b",
            "example.org:+80",
        ] {
            let message = entry.parse::<Rule>().unwrap_err().to_string();
            assert!(
                message.contains(&format!("{entry:?}")) && message.contains("*.example.org"),
                "{message}"
            );
        }
    }

    proptest! {
        #[test]
        fn parsing_a_rule_never_panics_and_round_trips(text in "\\PC{0,60}|[a-z0-9.*:/\\[\\]-]{0,40}") {
            if let Ok(rule) = text.parse::<Rule>() {
                prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
            }
        }

        #[test]
        fn rule_for_target_allows_the_target(name in "[a-z][a-z0-9]{0,9}(\\.[a-z][a-z0-9]{0,9}){0,3}", port in 1u16..) {
            let target = Target { host: name.parse().unwrap(), port };
            let rule = Rule::for_target(&target);
            prop_assert_eq!(rule.fit(&target), Fit::Whole);
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }

        #[test]
        fn a_star_matches_exactly_what_ends_in_a_dot_and_the_parent(
            parent in "[ab]{1,2}(\\.[ab]{1,2}){0,2}", name in "[ab]{1,2}(\\.[ab]{1,2}){0,4}",
        ) {
            let rule: Rule = format!("*.{parent}").parse().unwrap();
            let target = Target { host: name.parse().unwrap(), port: 443 };
            let labels: Vec<&str> = name.split('.').collect();
            let parents: Vec<&str> = parent.split('.').collect();
            let expected = labels.len() > parents.len() && labels.ends_with(&parents);
            prop_assert_eq!(rule.fit(&target) == Fit::Whole, expected);
        }
    }
}
