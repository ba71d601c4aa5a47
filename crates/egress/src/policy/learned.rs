//! Derives the policy that would have been sufficient from what a job has actually reached.

use std::collections::{BTreeMap, BTreeSet};

use super::mode::Mode;
use super::packages;
use super::rule::{Fit, Rule};
use crate::event::{Connection, EgressEvent, Verdict};
use crate::target::Target;

/// Collects the targets that a job reaches.
#[derive(Debug, Clone, Default)]
pub struct LearnedPolicy {
    reached: BTreeMap<(String, u16), Target>,
    /// Targets whose tunnels carried something other than TLS.
    without_tls: BTreeSet<(String, u16)>,
}

impl LearnedPolicy {
    /// Processes one egress event.
    pub fn learn(&mut self, event: &EgressEvent) {
        if let EgressEvent::Opened(Connection { host, port, verdict: Verdict::Allowed, .. }) = event
            && let Ok(parsed) = host.parse()
        {
            self.reached.insert((host.clone(), *port), Target { host: parsed, port: *port });
        }
        if let EgressEvent::Closed(Connection { host, port, without_tls: true, .. }) = event {
            self.without_tls.insert((host.clone(), *port));
        }
    }

    /// The narrowest policy that allows everything reached. Package registries and code hosts become `packages`;
    /// every other host is listed by name.
    #[must_use]
    pub fn policy(&self) -> Mode {
        let any_protocol =
            |target: &Target| self.without_tls.contains(&(target.host.to_string(), target.port));
        let (packages, others): (Vec<&Target>, Vec<&Target>) = self
            .reached
            .values()
            .partition(|target| packages::fit(target).0 == Fit::Whole && !any_protocol(target));
        let mut rules: Vec<Rule> = Vec::new();
        if !packages.is_empty() {
            rules.extend("packages".parse::<Rule>());
        }
        // Every host by its name: who owns other names below the same domain is unknown here.
        rules.extend(others.into_iter().map(|target| match any_protocol(target) {
            true => Rule::for_target(target).allowing_without_tls(),
            false => Rule::for_target(target),
        }));
        rules.dedup();
        match rules.as_slice() {
            [] => Mode::Off,
            [only] if only.to_string() == "packages" => Mode::Packages,
            _ => Mode::List(rules),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Policy, Ranges, Visibility};

    fn opened(host: &str, port: u16) -> EgressEvent {
        let mut connection = Connection::numbered(1);
        connection.host = host.to_owned();
        connection.port = port;
        EgressEvent::Opened(connection)
    }

    fn learned_policy(reached: &[(&str, u16)]) -> String {
        let mut learned = LearnedPolicy::default();
        for (host, port) in reached {
            learned.learn(&opened(host, *port));
        }
        serde_json::to_string(&learned.policy()).unwrap()
    }

    #[test]
    fn learned_policy_covers_reached_targets() {
        assert_eq!(learned_policy(&[]), r#""off""#);
        assert_eq!(learned_policy(&[("pypi.org", 443)]), r#""packages""#);
        assert_eq!(
            learned_policy(&[
                ("pypi.org", 443),
                ("example.org", 80),
                ("example.org", 443),
                ("192.0.2.1", 8443)
            ]),
            r#"{"allow":["packages","192.0.2.1:8443","example.org"]}"#
        );
        let many: Vec<String> = (0..6).map(|number| format!("shop{number}.co.uk")).collect();
        let many: Vec<(&str, u16)> = many.iter().map(|host| (host.as_str(), 443)).collect();
        assert!(!learned_policy(&many).contains('*'), "names below the same domain may be anybody's");
    }

    #[test]
    fn a_tunnel_without_tls_is_learned_as_one() {
        let mut learned = LearnedPolicy::default();
        for (host, port, without_tls) in [("db.example", 5432, true), ("api.example", 443, false)] {
            let EgressEvent::Opened(mut connection) = opened(host, port) else { continue };
            learned.learn(&EgressEvent::Opened(connection.clone()));
            connection.without_tls = without_tls;
            learned.learn(&EgressEvent::Closed(connection));
        }
        assert_eq!(
            serde_json::to_string(&learned.policy()).unwrap(),
            r#"{"allow":["api.example",{"host":"db.example:5432","without_tls":true}]}"#
        );
    }

    proptest! {
        #[test]
        fn learned_policy_allows_everything_reached(
            reached in proptest::collection::vec(("[a-c]{1,2}(\\.[a-c]{1,2}){1,3}", prop_oneof![Just(80u16), Just(443), Just(8443)]), 0..20),
        ) {
            let mut learned = LearnedPolicy::default();
            for (host, port) in &reached {
                learned.learn(&opened(host, *port));
            }
            let policy = Policy::new(learned.policy(), Ranges::default()).unwrap();
            for (host, port) in reached {
                let target = Target { host: host.parse().unwrap(), port };
                prop_assert!(policy.check(&target, Visibility::Bytes).is_ok());
            }
        }
    }
}
