//! What a job may reach: the mode it asked for, and the ranges that no job reaches. Pure: no name is resolved here.

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

/// What a job may reach, as it is written in the job: `"off"`, `"packages"`, `"open"`, `"learn"` or `{"allow": [...]}`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// Package registries and code hosts.
    #[default]
    Packages,
    /// What these rules match.
    List(Vec<Rule>),
    /// Everything outside the refused ranges.
    Open,
    /// The same, to find out which rules would have sufficed.
    Learn,
}

impl FromStr for Mode {
    type Err = EgressError;

    /// Reads the modes that are a single word.
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

/// A permission, with the rule that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The rule as it is written; for packages `packages:` and the group.
    pub rule: String,
}

/// How the rule of what was allowed once begins.
const ONCE: &str = "approved once:";

impl Grant {
    /// By a person, for one connection or request.
    pub(crate) fn once(rule: &Rule) -> Self {
        Self { rule: format!("{ONCE}{rule}") }
    }

    /// Whether a person gave it for this one connection or request.
    pub(crate) fn is_once(&self) -> bool {
        self.once_rule().is_some()
    }

    /// The rule that a person let be used once.
    pub(crate) fn once_rule(&self) -> Option<&str> {
        self.rule.strip_prefix(ONCE)
    }
}

/// How much of a connection the proxy will see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight<'a> {
    /// Bytes that mean nothing here: a tunnel.
    Bytes,
    /// The bytes of a tunnel that stands, which are not TLS.
    WithoutTls,
    /// Requests, each of which is asked about when it comes: TLS that ends here.
    Requests,
    /// This request.
    Request {
        /// Its method.
        method: &'a str,
        /// Its path, without the query.
        path: &'a str,
    },
}

/// Decides what may be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    mode: Mode,
    ranges: Ranges,
    /// What no job may exceed.
    ceiling: Option<Mode>,
    /// Rules that were added while the job ran.
    approved: Vec<Rule>,
}

impl Policy {
    /// A policy of a job's mode and the operator's ranges.
    ///
    /// # Errors
    /// The built-in data cannot be read.
    pub fn new(mode: Mode, ranges: Ranges) -> Result<Self, EgressError> {
        address::check_data()?;
        package_groups()?;
        Ok(Self { mode, ranges, ceiling: None, approved: Vec::new() })
    }

    /// The same policy under a ceiling that no rule exceeds.
    ///
    /// # Errors
    /// The job asks in so many words for more than the ceiling allows.
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

    /// The same policy under a ceiling, whatever it asks for: what lies above is refused when it is tried. For a job that
    /// was taken under another ceiling and goes on.
    #[must_use]
    pub fn capped(self, ceiling: Mode) -> Self {
        Self { ceiling: Some(ceiling), ..self }
    }

    /// What no rule of it exceeds.
    #[must_use]
    pub fn ceiling(&self) -> Option<&Mode> {
        self.ceiling.as_ref()
    }

    /// The same policy with one more rule.
    #[must_use]
    pub fn with_approved(mut self, rule: Rule) -> Self {
        if !self.approved.contains(&rule) {
            self.approved.push(rule);
        }
        self
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// May this target be tried? The addresses that it resolves to are judged by [`Policy::check_address`].
    ///
    /// # Errors
    /// It may not, and why.
    pub fn check(&self, target: &Target, sight: Sight<'_>) -> Result<Grant, Refusal> {
        if let Some(ceiling) = &self.ceiling
            && let Err(refusal) = check_mode(ceiling, target, sight)
        {
            return Err(above_ceiling(target, &refusal));
        }
        // Who approves a host and port at the time they are asked for approves what the connection is for.
        let approved = if sight == Sight::WithoutTls { Sight::Bytes } else { sight };
        if let Ok(grant) = check_list(&self.approved, target, approved) {
            return Ok(Grant { rule: format!("approved:{}", grant.rule) });
        }
        check_mode(&self.mode, target, sight).map_err(|refusal| self.range_first(target, refusal))
    }

    /// A job's rule and a person's approval open no refused range. So a target that is known to lie in one is refused for
    /// that: nobody is asked about it, and the remedy names what the operator can set.
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

    /// May this address be connected to? Asked for the very address that is used.
    ///
    /// # Errors
    /// It may not, and why.
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

/// Why the nearest rule does not fit.
enum Miss {
    Port,
    Request,
    Unseen,
    Tls,
}

/// Why a tunnel is refused after it was opened.
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
