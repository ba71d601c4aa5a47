//! A job's egress policy: its mode, and the ranges that no job may reach. Pure: does not resolve names.

#[cfg(test)]
mod tests;

mod address;
mod learned;
mod mode;
#[path = "../packages.rs"]
mod packages;
mod request_filter;
mod rule;

use std::net::IpAddr;

use crate::error::EgressError;
use crate::refusal::{ReasonCode, Refusal};
use crate::target::{Host, Target};

use self::address::RefusedAddress;

pub use self::address::{Cidr, Ranges};
pub use self::learned::LearnedPolicy;
pub use self::mode::Mode;
pub use self::packages::{PackageGroup, package_groups};
pub use self::rule::Rule;

pub(crate) use self::rule::Fit;

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
pub enum Visibility<'a> {
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
            return Err(EgressError::AboveCeiling {
                mode: self.mode.name().to_owned(),
                ceiling: ceiling.name().to_owned(),
            });
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
    pub fn check(&self, target: &Target, visibility: Visibility<'_>) -> Result<Grant, Refusal> {
        if let Some(ceiling) = &self.ceiling
            && let Err(refusal) = check_mode(ceiling, target, visibility)
        {
            return Err(above_ceiling(target, &refusal));
        }
        // A person who approves a host and port also approves the protocol that the connection uses.
        let approved = if visibility == Visibility::WithoutTls { Visibility::Bytes } else { visibility };
        if let Ok(grant) = check_list(&self.approved, target, approved) {
            return Ok(Grant { rule: format!("approved:{}", grant.rule) });
        }
        check_mode(&self.mode, target, visibility)
            .map_err(|refusal| self.prefer_range_refusal(target, refusal))
    }

    /// Neither a job's rule nor a person's approval opens a refused range. For a target that is known to be in one,
    /// the refusal therefore names the range: nobody is asked, and the remedy names the operator's setting.
    fn prefer_range_refusal(&self, target: &Target, refusal: Refusal) -> Refusal {
        if !refusal.code.may_be_approved() {
            return refusal;
        }
        let known = address::addresses_without_dns(&target.host);
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
            Host::Address(_) => format!("{target} refused: it"),
            Host::Name(_) => format!("{target} refused: its address {address}"),
        };
        Err(Refusal {
            code: ReasonCode::RefusedRange,
            rule: range.to_string(),
            reason: format!("{what} is in {range}: {reason}"),
            remedy,
        })
    }
}

fn check_mode(mode: &Mode, target: &Target, visibility: Visibility<'_>) -> Result<Grant, Refusal> {
    match mode {
        Mode::Off => Err(Refusal {
            code: ReasonCode::EgressOff,
            rule: "off".into(),
            reason: format!("{target} refused: the egress policy is off"),
            remedy: remedy(&[Rule::for_target(target)]),
        }),
        Mode::Packages => check_packages(target, visibility),
        Mode::List(rules) => check_list(rules, target, visibility),
        Mode::Open | Mode::Learn => match address::port_refusal(target.port) {
            None => Ok(Grant { rule: mode.name().to_owned() }),
            Some(why) => Err(Refusal {
                code: ReasonCode::PortNotAllowed,
                rule: mode.name().to_owned(),
                reason: format!("{target} refused: port {} is closed: {why}", target.port),
                remedy: remedy(&[Rule::for_target(target)]),
            }),
        },
    }
}

fn above_ceiling(target: &Target, refusal: &Refusal) -> Refusal {
    Refusal {
        code: ReasonCode::AboveCeiling,
        rule: format!("ceiling:{}", refusal.rule),
        reason: format!("{target} refused: the server's egress ceiling does not allow it"),
        remedy: "ask the operator of this server to change `ceiling` in the section [egress]".into(),
    }
}

fn check_packages(target: &Target, visibility: Visibility<'_>) -> Result<Grant, Refusal> {
    let (fit, group) = packages::fit(target);
    match (fit, group) {
        (Fit::Whole, Some(group)) if visibility == Visibility::WithoutTls => Err(Refusal {
            code: ReasonCode::WithoutTls,
            rule: format!("packages:{}", group.name),
            reason: format!("{target} refused: {NO_TLS}"),
            remedy: packages_remedy(Rule::for_target(target).allowing_without_tls()),
        }),
        (Fit::Whole, Some(group)) => Ok(Grant { rule: format!("packages:{}", group.name) }),
        (Fit::HostOnly, Some(group)) => Err(Refusal {
            code: ReasonCode::PortNotAllowed,
            rule: format!("packages:{}", group.name),
            reason: format!("{target} refused: this host is allowed only on the ports 80 and 443"),
            remedy: packages_remedy(Rule::for_target(target)),
        }),
        _ => Err(Refusal {
            code: ReasonCode::NotInPackages,
            rule: "packages".into(),
            reason: format!(
                "{target} refused: it is not one of the package registries and code hosts of the policy `packages`"
            ),
            remedy: packages_remedy(Rule::for_target(target)),
        }),
    }
}

fn check_list(rules: &[Rule], target: &Target, visibility: Visibility<'_>) -> Result<Grant, Refusal> {
    let mut nearest = None;
    for rule in rules {
        match rule.fit(target) {
            Fit::Whole => match (rule.request_filter(), visibility) {
                (filter, Visibility::WithoutTls)
                    if !filter.is_unrestricted() || !rule.allows_without_tls() =>
                {
                    nearest = Some((rule, Mismatch::Tls));
                }
                (filter, _) if filter.is_unrestricted() => return Ok(Grant { rule: rule.to_string() }),
                (_, Visibility::Requests) => return Ok(Grant { rule: rule.to_string() }),
                (filter, Visibility::Request { method, path }) if filter.allows(method, path) => {
                    return Ok(Grant { rule: rule.to_string() });
                }
                (_, Visibility::Request { .. }) => nearest = Some((rule, Mismatch::Request)),
                (_, Visibility::Bytes | Visibility::WithoutTls) => {
                    nearest = Some((rule, Mismatch::NotVisible))
                }
            },
            Fit::HostOnly if nearest.is_none() => nearest = Some((rule, Mismatch::Port)),
            Fit::HostOnly | Fit::None => {}
        }
    }
    let mut suggested = rules.to_vec();
    suggested.push(match visibility {
        Visibility::WithoutTls => Rule::for_target(target).allowing_without_tls(),
        _ => Rule::for_target(target),
    });
    let (code, rule, why) = match nearest {
        Some((rule, Mismatch::Port)) => {
            (ReasonCode::PortNotAllowed, rule.to_string(), "this host is allowed only on other ports")
        }
        Some((rule, Mismatch::Request)) => (
            ReasonCode::RequestNotAllowed,
            rule.to_string(),
            "this host is allowed only for other methods or paths",
        ),
        Some((rule, Mismatch::NotVisible)) => (
            ReasonCode::RequestNotAllowed,
            rule.to_string(),
            "its rule has methods or paths, which are not visible inside TLS unless a secret names the host",
        ),
        Some((rule, Mismatch::Tls)) => (ReasonCode::WithoutTls, rule.to_string(), NO_TLS),
        None => (ReasonCode::NotInList, "list".into(), "it is not in the list of allowed hosts"),
    };
    Err(Refusal {
        code,
        rule,
        reason: format!("{target} refused: {why}"),
        remedy: remedy(if suggested.len() > 8 { &suggested[suggested.len() - 1..] } else { &suggested }),
    })
}

/// Why the nearest rule does not match.
enum Mismatch {
    Port,
    Request,
    NotVisible,
    Tls,
}

/// Why an established tunnel is refused.
const NO_TLS: &str = "the tunnel does not start with TLS, and no rule allows that";

fn packages_remedy(rule: Rule) -> String {
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
