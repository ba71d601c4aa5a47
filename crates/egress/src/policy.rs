//! A job's egress policy: its mode, and the ranges that no job may reach. Pure: does not resolve names.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::{self, Ranges, RefusedAddress};
use crate::error::EgressError;
use crate::packages::{self, package_groups};
use crate::refusal::{ReasonCode, Refusal};
use crate::rule::{Fit, Rule};
use crate::target::{Host, Target};

/// The egress mode as written in the job: `"off"`, `"packages"`, `"open"`, `"learn"` or `{"allow": [...]}`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Package registries and code hosts.
    #[default]
    Packages,
    /// What the rules match.
    List(Vec<Rule>),
    /// Everything outside the refused ranges.
    Open,
    /// Like `Open`, and records which rules would have been sufficient.
    Learn,
}

impl FromStr for Mode {
    type Err = EgressError;

    /// Parses the modes that are a single word.
    fn from_str(text: &str) -> Result<Self, EgressError> {
        match text {
            "off" => Ok(Self::Off),
            "packages" => Ok(Self::Packages),
            "open" => Ok(Self::Open),
            "learn" => Ok(Self::Learn),
            other => Err(EgressError::UnknownMode { mode: other.chars().take(80).collect() }),
        }
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Packages => serializer.serialize_str("packages"),
            Self::Open => serializer.serialize_str("open"),
            Self::Learn => serializer.serialize_str("learn"),
            Self::List(rules) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("allow", rules)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ModeVisitor)
    }
}

struct ModeVisitor;

impl<'de> Visitor<'de> for ModeVisitor {
    type Value = Mode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"off\", \"packages\", \"open\", \"learn\" or {\"allow\": [...]}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Mode, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Mode, A::Error> {
        let mut rules = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "allow" {
                return Err(de::Error::unknown_field(&key, &["allow"]));
            }
            if rules.is_some() {
                return Err(de::Error::duplicate_field("allow"));
            }
            rules = Some(map.next_value()?);
        }
        rules.map(Mode::List).ok_or_else(|| de::Error::missing_field("allow"))
    }
}

/// A permission and the rule that granted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The rule as written in the policy; for packages, `packages:` and the group.
    pub rule: String,
}

/// Prefix of the rule of a one-time permission.
const ONCE: &str = "approved once:";

impl Grant {
    /// A person's permission for one connection or request.
    pub(crate) fn once(rule: &Rule) -> Self {
        Self { rule: format!("{ONCE}{rule}") }
    }

    /// Whether it is a one-time permission.
    pub(crate) fn is_once(&self) -> bool {
        self.once_rule().is_some()
    }

    /// The rule of a one-time permission.
    pub(crate) fn once_rule(&self) -> Option<&str> {
        self.rule.strip_prefix(ONCE)
    }
}

/// How much the proxy can see of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight<'a> {
    /// Opaque bytes: a tunnel.
    Bytes,
    /// The bytes of an established tunnel that does not carry TLS.
    WithoutTls,
    /// Requests, each of which is checked separately: TLS that the proxy terminates.
    Requests,
    /// A single request.
    Request {
        method: &'a str,
        /// The path without the query.
        path: &'a str,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    mode: Mode,
    ranges: Ranges,
    /// A limit that applies to every job.
    ceiling: Option<Mode>,
    /// Rules that were added while the job ran.
    approved: Vec<Rule>,
}

impl Policy {
    /// Creates a policy from a job's mode and the operator's ranges.
    ///
    /// # Errors
    /// The built-in data cannot be parsed.
    pub fn new(mode: Mode, ranges: Ranges) -> Result<Self, EgressError> {
        address::check_data()?;
        package_groups()?;
        Ok(Self { mode, ranges, ceiling: None, approved: Vec::new() })
    }

    /// Applies a ceiling that no rule can exceed.
    ///
    /// # Errors
    /// The job's mode explicitly requests more than the ceiling allows.
    pub fn under(self, ceiling: Mode) -> Result<Self, EgressError> {
        let over = match (&ceiling, &self.mode) {
            (Mode::Off, mode) => *mode != Mode::Off,
            (Mode::Packages, Mode::Open) => true,
            (Mode::List(_), Mode::Open) => true,
            _ => false,
        };
        if over {
            return Err(EgressError::AboveCeiling { mode: name_of(&self.mode), ceiling: name_of(&ceiling) });
        }
        Ok(Self { ceiling: Some(ceiling), ..self })
    }

    /// Applies a ceiling without an error: connections above it are refused when they are attempted. For a job that
    /// was accepted under a different ceiling and continues.
    #[must_use]
    pub fn capped(self, ceiling: Mode) -> Self {
        Self { ceiling: Some(ceiling), ..self }
    }

    /// The limit that no rule can exceed.
    #[must_use]
    pub fn ceiling(&self) -> Option<&Mode> {
        self.ceiling.as_ref()
    }

    /// Adds a rule.
    #[must_use]
    pub fn with_approved(mut self, rule: Rule) -> Self {
        if !self.approved.contains(&rule) {
            self.approved.push(rule);
        }
        self
    }

    #[must_use]
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Checks whether a connection to this target may be attempted. [`Policy::check_address`] checks the addresses
    /// that it resolves to.
    ///
    /// # Errors
    /// The refusal.
    pub fn check(&self, target: &Target, sight: Sight<'_>) -> Result<Grant, Refusal> {
        if let Some(ceiling) = &self.ceiling
            && let Err(refusal) = check_mode(ceiling, target, sight)
        {
            return Err(above_ceiling(target, &refusal));
        }
        // A person who approves a host and port also approves the protocol that the connection uses.
        let approved = if sight == Sight::WithoutTls { Sight::Bytes } else { sight };
        if let Ok(grant) = check_list(&self.approved, target, approved) {
            return Ok(Grant { rule: format!("approved:{}", grant.rule) });
        }
        check_mode(&self.mode, target, sight).map_err(|refusal| self.range_first(target, refusal))
    }

    /// Neither a job's rule nor a person's approval opens a refused range. For a target that is known to be in one,
    /// the refusal therefore names the range: nobody is asked, and the remedy names the operator's setting.
    fn range_first(&self, target: &Target, refusal: Refusal) -> Refusal {
        if !refusal.code.may_be_approved() {
            return refusal;
        }
        let known = address::well_known(&target.host);
        let mut refused = None;
        for address in known {
            match self.check_address(target, address) {
                Ok(()) => return refusal,
                Err(of_range) => refused = refused.or(Some(of_range)),
            }
        }
        refused.unwrap_or(refusal)
    }

    /// Checks whether this address, which is the one actually used, may be connected to.
    ///
    /// # Errors
    /// The refusal.
    pub fn check_address(&self, target: &Target, address: IpAddr) -> Result<(), Refusal> {
        let Some(RefusedAddress { range, reason, remedy }) = self.ranges.refusal(address) else {
            return Ok(());
        };
        let what = match &target.host {
            Host::Address(_) => format!("{target} was refused, it"),
            Host::Name(_) => format!("{target} was refused, its address {address}"),
        };
        Err(Refusal {
            code: ReasonCode::RefusedRange,
            rule: range.to_string(),
            reason: format!("{what} lies in {range}: {reason}"),
            remedy,
        })
    }
}

fn check_mode(mode: &Mode, target: &Target, sight: Sight<'_>) -> Result<Grant, Refusal> {
    match mode {
        Mode::Off => Err(Refusal {
            code: ReasonCode::EgressOff,
            rule: "off".into(),
            reason: format!("{target} was refused, this job may not connect anywhere"),
            remedy: remedy(&[Rule::for_target(target)]),
        }),
        Mode::Packages => check_packages(target, sight),
        Mode::List(rules) => check_list(rules, target, sight),
        Mode::Open | Mode::Learn => match address::port_refusal(target.port) {
            None => Ok(Grant { rule: name_of(mode) }),
            Some(why) => Err(Refusal {
                code: ReasonCode::PortNotAllowed,
                rule: name_of(mode),
                reason: format!("{target} was refused, port {} is closed: {why}", target.port),
                remedy: remedy(&[Rule::for_target(target)]),
            }),
        },
    }
}

fn name_of(mode: &Mode) -> String {
    match mode {
        Mode::Off => "off",
        Mode::Packages => "packages",
        Mode::List(_) => "list",
        Mode::Open => "open",
        Mode::Learn => "learn",
    }
    .to_owned()
}

fn above_ceiling(target: &Target, refusal: &Refusal) -> Refusal {
    Refusal {
        code: ReasonCode::AboveCeiling,
        rule: format!("ceiling:{}", refusal.rule),
        reason: format!("{target} was refused, no job of this server may reach it"),
        remedy: "only the operator of this server can, by `ceiling` in the section [egress]".into(),
    }
}

fn check_packages(target: &Target, sight: Sight<'_>) -> Result<Grant, Refusal> {
    let (fit, group) = packages::fit(target);
    match (fit, group) {
        (Fit::Whole, Some(group)) if sight == Sight::WithoutTls => Err(Refusal {
            code: ReasonCode::WithoutTls,
            rule: format!("packages:{}", group.name),
            reason: format!("{target} was refused, {NO_TLS}"),
            remedy: remedy_beside_packages(Rule::for_target(target).with_any_protocol()),
        }),
        (Fit::Whole, Some(group)) => Ok(Grant { rule: format!("packages:{}", group.name) }),
        (Fit::HostOnly, Some(group)) => Err(Refusal {
            code: ReasonCode::PortNotAllowed,
            rule: format!("packages:{}", group.name),
            reason: format!("{target} was refused, this host is allowed on the ports 80 and 443 only"),
            remedy: remedy_beside_packages(Rule::for_target(target)),
        }),
        _ => Err(Refusal {
            code: ReasonCode::NotInPackages,
            rule: "packages".into(),
            reason: format!(
                "{target} was refused, it is none of the package registries and code hosts that this job may reach"
            ),
            remedy: remedy_beside_packages(Rule::for_target(target)),
        }),
    }
}

fn check_list(rules: &[Rule], target: &Target, sight: Sight<'_>) -> Result<Grant, Refusal> {
    let mut nearest = None;
    for rule in rules {
        match rule.fit(target) {
            Fit::Whole => match (rule.narrow(), sight) {
                (narrow, Sight::WithoutTls) if !narrow.is_wide() || !rule.allows_without_tls() => {
                    nearest = Some((rule, Miss::Tls));
                }
                (narrow, _) if narrow.is_wide() => return Ok(Grant { rule: rule.to_string() }),
                (_, Sight::Requests) => return Ok(Grant { rule: rule.to_string() }),
                (narrow, Sight::Request { method, path }) if narrow.allows(method, path) => {
                    return Ok(Grant { rule: rule.to_string() });
                }
                (_, Sight::Request { .. }) => nearest = Some((rule, Miss::Request)),
                (_, Sight::Bytes | Sight::WithoutTls) => nearest = Some((rule, Miss::Unseen)),
            },
            Fit::HostOnly if nearest.is_none() => nearest = Some((rule, Miss::Port)),
            Fit::HostOnly | Fit::None => {}
        }
    }
    let mut wanted = rules.to_vec();
    wanted.push(match sight {
        Sight::WithoutTls => Rule::for_target(target).with_any_protocol(),
        _ => Rule::for_target(target),
    });
    let (code, rule, why) = match nearest {
        Some((rule, Miss::Port)) => {
            (ReasonCode::PortNotAllowed, rule.to_string(), "this host is allowed on other ports only")
        }
        Some((rule, Miss::Request)) => (
            ReasonCode::RequestNotAllowed,
            rule.to_string(),
            "this host is allowed for other methods or paths only",
        ),
        Some((rule, Miss::Unseen)) => (
            ReasonCode::RequestNotAllowed,
            rule.to_string(),
            "its rule names methods or paths, which cannot be seen inside TLS unless a secret names the host",
        ),
        Some((rule, Miss::Tls)) => (ReasonCode::WithoutTls, rule.to_string(), NO_TLS),
        None => (ReasonCode::NotInList, "list".into(), "it is not in the list of what this job may reach"),
    };
    Err(Refusal {
        code,
        rule,
        reason: format!("{target} was refused, {why}"),
        remedy: remedy(if wanted.len() > 8 { &wanted[wanted.len() - 1..] } else { &wanted }),
    })
}

/// Why the nearest rule does not match.
enum Miss {
    Port,
    Request,
    Unseen,
    Tls,
}

/// Why an established tunnel is refused.
const NO_TLS: &str = "the tunnel does not begin with TLS, and no rule allows it without";

fn remedy_beside_packages(rule: Rule) -> String {
    match "packages".parse::<Rule>() {
        Ok(packages) => remedy(&[packages, rule]),
        Err(_) => remedy(&[rule]),
    }
}

fn remedy(rules: &[Rule]) -> String {
    let entries: Vec<String> =
        rules.iter().map(|rule| serde_json::to_string(rule).unwrap_or_default()).collect();
    format!("write \"egress\": {{\"allow\": [{}]}} in the job", entries.join(", "))
}
