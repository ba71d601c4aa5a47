//! Describes the network to the model: what the egress policy allows, and the secrets that it can use without seeing
//! them.

use egress::Mode;
use job::JobSpec;

/// What `packages` allows, in words; the complete list is in the egress crate.
const PACKAGES: &str =
    "package registries (PyPI, npm, crates.io and the like) and code hosts (GitHub, GitLab and the like)";
/// Programs run as an ordinary user on a read-only system, whatever the network allows.
const NO_APT: &str = "`apt-get` cannot install anything: you are not root.";
const HOW_TO_INSTALL: &str = "`pip`, `npm` and `cargo` install into your home.";

/// The lines about the network in the system prompt. `ceiling` is the server's limit for all jobs.
pub(super) fn network_text(spec: &JobSpec, ceiling: Option<&Mode>) -> String {
    let mut text = egress_text(&spec.egress, ceiling);
    for (name, secret) in &spec.egress_settings.secrets {
        let hosts: Vec<String> = secret.hosts.iter().map(ToString::to_string).collect();
        text += &format!(
            " ${name} holds a placeholder of a secret: send it in a header over https to {} and nowhere else, it \
             becomes the real value on its way.",
            hosts.join(", ")
        );
    }
    text
}

fn egress_text(mode: &Mode, ceiling: Option<&Mode>) -> String {
    if is_closed(mode) || ceiling.is_some_and(is_closed) {
        return format!("no connection to the outside is possible. {NO_APT}");
    }
    let reachable = match mode {
        Mode::Open | Mode::Learn => "the internet can be reached, private addresses cannot.".to_owned(),
        _ => format!("{} can be reached, nothing else.", hosts(mode)),
    };
    let limit = match ceiling {
        Some(ceiling @ (Mode::Packages | Mode::List(_))) if ceiling != mode => {
            format!(" Of that, the server lets through only {}.", hosts(ceiling))
        }
        _ => String::new(),
    };
    let has_registries = !matches!(mode, Mode::List(_)) && !matches!(ceiling, Some(Mode::List(_)));
    let install = if has_registries { format!(" {HOW_TO_INSTALL}") } else { String::new() };
    format!("{reachable}{limit} {NO_APT}{install}")
}

/// Whether the policy allows nothing.
fn is_closed(mode: &Mode) -> bool {
    match mode {
        Mode::Off => true,
        Mode::List(rules) => rules.is_empty(),
        Mode::Packages | Mode::Open | Mode::Learn => false,
    }
}

/// The hosts of a policy, in words.
fn hosts(mode: &Mode) -> String {
    match mode {
        Mode::Off => "no host".to_owned(),
        Mode::Packages => PACKAGES.to_owned(),
        Mode::List(rules) => {
            let name = |rule: String| if rule == "packages" { PACKAGES.to_owned() } else { rule };
            rules.iter().map(|rule| name(rule.to_string())).collect::<Vec<_>>().join(", ")
        }
        Mode::Open | Mode::Learn => "the internet".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(json: &str) -> Mode {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn every_mode_is_described_as_it_is_enforced() {
        let packages = format!("{PACKAGES} can be reached, nothing else. {NO_APT} {HOW_TO_INSTALL}");
        let open =
            format!("the internet can be reached, private addresses cannot. {NO_APT} {HOW_TO_INSTALL}");
        let listed = format!("example.org:22, {PACKAGES} can be reached, nothing else. {NO_APT}");
        for (json, text) in [
            (r#""off""#, format!("no connection to the outside is possible. {NO_APT}")),
            (r#""packages""#, packages),
            (r#""open""#, open.clone()),
            (r#""learn""#, open),
            (r#"{"allow": ["example.org:22", "packages"]}"#, listed),
            (r#"{"allow": []}"#, format!("no connection to the outside is possible. {NO_APT}")),
        ] {
            assert_eq!(egress_text(&mode(json), None), text, "{json}");
        }
    }

    #[test]
    fn packages_names_what_the_policy_really_has() {
        let groups = egress::package_groups().unwrap();
        for group in ["pypi", "npm", "crates", "github", "gitlab"] {
            assert!(groups.iter().any(|known| known.name == group), "{group}");
        }
    }

    #[test]
    fn a_ceiling_of_the_server_is_told_where_it_is_narrower() {
        let text = |job: &str, ceiling: &str| egress_text(&mode(job), Some(&mode(ceiling)));
        let list = r#"{"allow": ["example.org"]}"#;
        assert!(text(list, r#""off""#).starts_with("no connection"));
        assert!(
            text(list, r#""packages""#)
                .contains(&format!("Of that, the server lets through only {PACKAGES}."))
        );
        assert!(text(r#""packages""#, list).contains("lets through only example.org."));
        for (job, ceiling) in [(r#""packages""#, r#""packages""#), (list, list), (list, r#""open""#)] {
            assert!(!text(job, ceiling).contains("lets through"), "{job} {ceiling}");
        }
    }
}
