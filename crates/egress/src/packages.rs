//! The hosts that `packages` allows: registries and code hosts from `packages.json`, each group with its reason.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::rule::{Fit, Rule};
use crate::error::EgressError;
use crate::target::Target;

const FILE: &str = "packages.json";

static GROUPS: LazyLock<Result<Vec<PackageGroup>, String>> =
    LazyLock::new(|| serde_json::from_str(include_str!("packages.json")).map_err(|error| error.to_string()));

/// The hosts of one registry or code host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageGroup {
    /// A short name, shown as part of the rule.
    pub name: String,
    /// Which client needs it, and what for.
    pub reason: String,
    pub hosts: Vec<Rule>,
}

/// Everything that `packages` allows.
///
/// # Errors
/// The built-in data cannot be parsed.
pub fn package_groups() -> Result<&'static [PackageGroup], EgressError> {
    GROUPS.as_deref().map_err(|why| EgressError::Data { file: FILE, why: why.clone() })
}

impl Rule {
    /// Matches the rule against a target.
    pub(crate) fn fit(&self, target: &Target) -> Fit {
        if self.is_packages() { fit(target).0 } else { self.fit_host(target) }
    }
}

/// How well the groups match a target, and the best matching group.
pub(crate) fn fit(target: &Target) -> (Fit, Option<&'static PackageGroup>) {
    let mut best = (Fit::None, None);
    for group in GROUPS.as_deref().unwrap_or_default() {
        for rule in &group.hosts {
            match rule.fit_host(target) {
                Fit::Whole => return (Fit::Whole, Some(group)),
                Fit::HostOnly => best = (Fit::HostOnly, Some(group)),
                Fit::None => {}
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_of(host: &str, port: u16) -> Option<&'static str> {
        match fit(&Target { host: host.parse().unwrap(), port }) {
            (Fit::Whole, Some(group)) => Some(&group.name),
            _ => None,
        }
    }

    #[test]
    fn the_built_in_groups_can_be_read_and_each_has_a_reason() {
        let groups = package_groups().unwrap();
        assert!(groups.iter().all(|group| !group.reason.is_empty() && !group.hosts.is_empty()));
        let mut names: Vec<_> = groups.iter().map(|group| &group.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), groups.len());
    }

    #[test]
    fn packages_include_the_registries_of_common_clients() {
        for (host, group) in [
            ("deb.debian.org", "debian"),
            ("de.archive.ubuntu.com", "ubuntu"),
            ("files.pythonhosted.org", "pypi"),
            ("registry.npmjs.org", "npm"),
            ("index.crates.io", "crates"),
            ("sum.golang.org", "go"),
            ("repo1.maven.org", "maven"),
            ("rubygems.org", "rubygems"),
            ("codeload.github.com", "github"),
            ("gitlab.com", "gitlab"),
            ("codeberg.org", "codeberg"),
        ] {
            assert_eq!(group_of(host, 443), Some(group), "{host}");
        }
    }

    #[test]
    fn packages_exclude_other_hosts_and_ports() {
        assert_eq!(group_of("example.org", 443), None);
        assert_eq!(group_of("github.com", 22), None);
        assert_eq!(group_of("github.com.example.org", 443), None);
        assert_eq!(group_of("192.0.2.1", 443), None);
    }
}
