//! The egress settings of a job other than the policy: network limits, how long a refused connection waits for a
//! user, and secrets that are put into requests.

use std::collections::BTreeMap;
use std::time::Duration;

use egress::{Allowance, Rule, Secret, SecretGrant};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::invalid::{InvalidField, invalid};
use crate::spec::{JobDefaults, NewJob};

pub const MOST_SECRETS: usize = 32;
/// The maximum length of the name of a secret.
pub const MAX_SECRET_NAME: usize = 100;
/// The maximum of each part of an allowance.
pub const MAX_ALLOWANCE: u64 = 1_000_000_000_000_000;
/// Maximum time that a connection waits for a user.
pub const LONGEST_WAIT_S: f64 = 3600.0;

/// Where a secret may be sent, as a caller writes it. The value is the server's.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSecret {
    /// Hosts as in an allow list: `api.example.org`, `*.example.org`, `example.org:8443`.
    pub hosts: Vec<String>,
}

/// What a job may use of the network in all, as a caller writes it.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAllowance {
    /// Bytes sent and received together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Connections; each request of plain HTTP counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Bytes in a second, sent and received together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

/// Egress settings of a job other than the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressSettings {
    /// Limits on total network use.
    pub allowance: Allowance,
    /// How long a refused connection waits for a user to decide.
    pub wait: Duration,
    /// Secrets by the names of their variables.
    pub secrets: BTreeMap<String, JobSecret>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSecret {
    /// The value that the sandbox sees.
    pub placeholder: String,
    /// The hosts that receive the real value.
    pub hosts: Vec<Rule>,
}

pub fn check_egress(job: &mut NewJob, defaults: &JobDefaults) -> Result<EgressSettings, InvalidField> {
    let wait = match job.egress_wait_s {
        None => defaults.egress_wait,
        Some(seconds) if (0.0..=LONGEST_WAIT_S).contains(&seconds) => Duration::from_secs_f64(seconds),
        Some(seconds) => {
            return Err(invalid(
                "egress_wait_s",
                format!("{seconds} is not between 0 and {LONGEST_WAIT_S} seconds"),
            ));
        }
    };
    let allowance = check_allowance(job.network.unwrap_or_default(), defaults.allowance)?;
    let secrets = check_secrets(std::mem::take(&mut job.secrets), &job.environment)?;
    Ok(EgressSettings { allowance, wait, secrets })
}

fn check_allowance(asked: NewAllowance, most: Allowance) -> Result<Allowance, InvalidField> {
    let pick = |name: &str, asked: Option<u64>, most: Option<u64>| match (asked, most) {
        (Some(0), _) => Err(invalid(
            format!("network.{name}"),
            "must be at least 1; for no network say `\"egress\": \"off\"`",
        )),
        (Some(asked), _) if asked > MAX_ALLOWANCE => Err(invalid(
            format!("network.{name}"),
            format!("{asked} is more than {MAX_ALLOWANCE}; leave it out for no limit"),
        )),
        (Some(asked), Some(most)) if asked > most => Err(invalid(
            format!("network.{name}"),
            format!("{asked} is more than the {most} that this server allows"),
        )),
        (asked, most) => Ok(asked.or(most)),
    };
    Ok(Allowance {
        bytes: pick("bytes", asked.bytes, most.bytes)?,
        connections: pick("connections", asked.connections, most.connections)?,
        bytes_per_second: pick("bytes_per_second", asked.bytes_per_second, most.bytes_per_second)?,
    })
}

/// Lowers the limits of a job to the current maximum, which may have shrunk since the job was accepted.
pub fn within(allowance: Allowance, most: Allowance) -> Allowance {
    let lower = |own: Option<u64>, most: Option<u64>| match (own, most) {
        (Some(own), Some(most)) => Some(own.min(most)),
        (own, most) => own.or(most),
    };
    Allowance {
        bytes: lower(allowance.bytes, most.bytes),
        connections: lower(allowance.connections, most.connections),
        bytes_per_second: lower(allowance.bytes_per_second, most.bytes_per_second),
    }
}

fn check_secrets(
    asked: BTreeMap<String, NewSecret>,
    environment: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, JobSecret>, InvalidField> {
    if asked.len() > MOST_SECRETS {
        return Err(invalid(
            "secrets",
            format!("has {} entries, at most {MOST_SECRETS} are allowed", asked.len()),
        ));
    }
    let mut secrets = BTreeMap::new();
    for (name, secret) in asked {
        let field = format!("secrets.{}", name.chars().take(80).collect::<String>());
        if !is_secret_name(&name) {
            return Err(invalid(field, "is no name for a variable: use A-Z, 0-9 and _, a letter first"));
        }
        if environment.contains_key(&name) {
            return Err(invalid(field, "is in `environment` too; a variable has one value"));
        }
        let mut hosts = Vec::new();
        for (index, host) in secret.hosts.iter().enumerate() {
            let rule: Rule = host
                .parse()
                .map_err(|error| invalid(format!("{field}.hosts[{index}]"), format!("{error}")))?;
            hosts.push(rule);
        }
        let grant = SecretGrant { hosts };
        grant.check(&name).map_err(|error| invalid(format!("{field}.hosts"), error.to_string()))?;
        let placeholder = Secret::placeholder(*uuid::Uuid::now_v7().as_bytes());
        secrets.insert(name, JobSecret { placeholder, hosts: grant.hosts });
    }
    Ok(secrets)
}

/// Whether a secret can have this name: an upper-case variable name that does not change the behavior of programs.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    const TAKEN: [&str; 11] = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LC_CTYPE",
        "TERM",
        "DISPLAY",
        "SSL_CERT_FILE",
        "JAVA_TOOL_OPTIONS",
    ];
    let is_plain =
        name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let leads = ["_PROXY", "_CA_BUNDLE", "_CAINFO", "_CA_CERTS"].iter().any(|end| name.ends_with(end));
    (1..=MAX_SECRET_NAME).contains(&name.len())
        && name.as_bytes()[0].is_ascii_uppercase()
        && is_plain
        && !leads
        && !name.starts_with("LD_")
        && !TAKEN.contains(&name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(job: serde_json::Value, defaults: &JobDefaults) -> Result<EgressSettings, InvalidField> {
        let mut job: NewJob = serde_json::from_value(job).unwrap();
        check_egress(&mut job, defaults)
    }

    #[test]
    fn a_secret_becomes_a_placeholder_with_hosts() {
        let job = json!({"secrets": {"API_TOKEN": {"hosts": ["api.example.org"]}}});
        let settings = check(job, &JobDefaults::default()).unwrap();
        let secret = &settings.secrets["API_TOKEN"];
        assert!(secret.placeholder.starts_with("caisson-placeholder-"), "{secret:?}");
        assert_eq!(secret.hosts[0].to_string(), "api.example.org");
    }

    #[test]
    fn invalid_requests_are_refused_by_field_name() {
        let defaults = JobDefaults {
            allowance: Allowance { bytes: Some(1000), ..Allowance::default() },
            ..JobDefaults::default()
        };
        for (job, field) in [
            (json!({"secrets": {"lower": {"hosts": ["a.org"]}}}), "secrets.lower"),
            (json!({"secrets": {"HTTP_PROXY": {"hosts": ["a.org"]}}}), "secrets.HTTP_PROXY"),
            (json!({"secrets": {"T": {"hosts": []}}}), "secrets.T.hosts"),
            (json!({"secrets": {"T": {"hosts": ["10.0.0.0/8"]}}}), "secrets.T.hosts"),
            (json!({"secrets": {"T": {"hosts": ["http://a"]}}}), "secrets.T.hosts[0]"),
            (json!({"secrets": {"T": {"hosts": ["a.org"]}}, "environment": {"T": "x"}}), "secrets.T"),
            (json!({"network": {"bytes": 1001}}), "network.bytes"),
            (json!({"network": {"connections": 0}}), "network.connections"),
            (json!({"egress_wait_s": -1}), "egress_wait_s"),
        ] {
            assert_eq!(check(job.clone(), &defaults).unwrap_err().field, field, "{job}");
        }
        let settings = check(json!({"network": {"connections": 5}}), &defaults).unwrap();
        assert_eq!((settings.allowance.bytes, settings.allowance.connections), (Some(1000), Some(5)));
    }
}
