//! The sections `[egress]` and `[secrets]`: the ceiling, the approval timeout and allowances of all jobs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use egress::Rule;
use job::is_secret_name;
use orchestrator::{SecretSource, ServerSecret, Settings};
use serde::Deserialize;

use super::environment::variable;

/// The maximum time that a connection may wait for approval.
const LONGEST_WAIT_S: u64 = 3600;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawEgress {
    pub(crate) default: Option<egress::Mode>,
    pub(crate) extra_ca: Option<Vec<PathBuf>>,
    pub(crate) deny_ranges: Option<Vec<egress::Cidr>>,
    pub(crate) allow_ranges: Option<Vec<egress::Cidr>>,
    pub(crate) ceiling: Option<egress::Mode>,
    pub(crate) wait_s: Option<u64>,
    pub(crate) bytes: Option<u64>,
    pub(crate) connections: Option<u64>,
    pub(crate) bytes_per_second: Option<u64>,
}

/// A secret: one of three sources for its value, and the hosts that may receive it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSecret {
    file: Option<PathBuf>,
    environment: Option<String>,
    command: Option<Vec<String>>,
    hosts: Option<Vec<Rule>>,
}

/// Applies the settings for all jobs.
pub(crate) fn apply(
    settings: &mut Settings,
    egress: &RawEgress,
    secrets: BTreeMap<String, RawSecret>,
) -> Result<()> {
    settings.egress_ceiling.clone_from(&egress.ceiling);
    if let Some(seconds) = egress.wait_s {
        ensure!(seconds <= LONGEST_WAIT_S, "egress.wait_s: {seconds} is not between 0 and {LONGEST_WAIT_S}");
        settings.defaults.egress_wait = Duration::from_secs(seconds);
    }
    let limits = [
        ("bytes", egress.bytes),
        ("connections", egress.connections),
        ("bytes_per_second", egress.bytes_per_second),
    ];
    if let Some((name, _)) = limits.iter().find(|(_, value)| *value == Some(0)) {
        bail!("egress.{name}: must be at least 1; omit it for no limit");
    }
    settings.defaults.allowance = egress::Allowance {
        bytes: egress.bytes,
        connections: egress.connections,
        bytes_per_second: egress.bytes_per_second,
    };
    if let Some(ceiling) = &egress.ceiling {
        egress::Policy::new(settings.defaults.egress.clone(), settings.egress_ranges.clone())
            .and_then(|policy| policy.under(ceiling.clone()))
            .context("egress.default")?;
    }
    for (name, raw) in secrets {
        let secret = secret(&name, raw)?;
        settings.secrets.insert(name, secret);
    }
    Ok(())
}

fn secret(name: &str, mut raw: RawSecret) -> Result<ServerSecret> {
    let hosts = raw.hosts.take();
    let source = source(name, raw)?;
    if let Some(hosts) = &hosts {
        ensure!(
            !hosts.is_empty(),
            "secrets.{name}.hosts: is empty; list the hosts that may receive the secret, or omit `hosts` to allow any"
        );
        if let Some(rule) = hosts.iter().find(|rule| !rule.names_a_host()) {
            bail!("secrets.{name}.hosts: \"{rule}\" is not a host name or *.name");
        }
    }
    Ok(ServerSecret { source, hosts })
}

fn source(name: &str, raw: RawSecret) -> Result<SecretSource> {
    ensure!(
        is_secret_name(name),
        "secrets.{name}: is not a valid name; use A-Z, 0-9 and _, start with a letter, and avoid variables that \
         control programs, such as PATH or HTTP_PROXY"
    );
    match (raw.file, raw.environment, raw.command) {
        (Some(file), None, None) => {
            // The file is read for each job; opening it now detects a missing or unreadable file early.
            std::fs::File::open(&file)
                .with_context(|| format!("secrets.{name}.file: reading {}", file.display()))?;
            Ok(SecretSource::File(file))
        }
        (None, Some(from), None) => match variable(&from) {
            Some(value) => Ok(SecretSource::Value(egress::SecretString::new(value))),
            None => bail!("secrets.{name}.environment: the variable {from} is not set"),
        },
        (None, None, Some(command)) => {
            ensure!(
                command.first().is_some_and(|word| !word.is_empty()),
                "secrets.{name}.command: is empty; set a program and its arguments"
            );
            Ok(SecretSource::Command(command))
        }
        _ => bail!("secrets.{name}: set exactly one of file, environment and command"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        egress: RawEgress,
        #[serde(default)]
        secrets: BTreeMap<String, RawSecret>,
    }

    fn read(text: &str) -> Result<Settings> {
        let file: File = toml::from_str(text)?;
        let mut settings = Settings::default();
        apply(&mut settings, &file.egress, file.secrets)?;
        Ok(settings)
    }

    #[test]
    fn secret_has_name_and_source() {
        let settings = read("[secrets.TOKEN]\ncommand = [\"pass\", \"show\", \"token\"]\n").unwrap();
        assert!(
            matches!(&settings.secrets["TOKEN"].source, SecretSource::Command(words) if words.len() == 3)
        );
        assert_eq!(settings.secrets["TOKEN"].hosts, None);
        let settings =
            read("[secrets.TOKEN]\ncommand = [\"pass\"]\nhosts = [\"api.example.org\"]\n").unwrap();
        assert_eq!(settings.secrets["TOKEN"].hosts.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        for (text, words) in [
            ("[secrets.token]\nfile = \"/etc/hostname\"", "secrets.token: is not a valid name"),
            ("[secrets.T]", "secrets.T: set exactly one of"),
            ("[secrets.T]\nfile = \"/a\"\ncommand = [\"b\"]", "secrets.T: set exactly one of"),
            ("[secrets.T]\nfile = \"/does/not/exist\"", "secrets.T.file: reading /does/not/exist"),
            ("[secrets.T]\nenvironment = \"NO_SUCH_VARIABLE_HERE\"", "secrets.T.environment"),
            ("[secrets.T]\ncommand = []", "secrets.T.command"),
            ("[secrets.T]\ncommand = [\"x\"]\nhosts = []", "secrets.T.hosts: is empty"),
            ("[secrets.T]\ncommand = [\"x\"]\nhosts = [\"10.0.0.0/8\"]", "secrets.T.hosts: \"10.0.0.0/8\""),
            ("[secrets.T]\ncommand = [\"x\"]\nhosts = [\"http://a\"]", "a URL"),
            ("[secrets.T]\nvalue = \"x\"", "unknown field `value`"),
            ("[egress]\nwait_s = 3601", "egress.wait_s"),
            ("[egress]\nbytes = 0", "egress.bytes"),
            ("[egress]\nceiling = \"off\"", "egress.default"),
            ("[egress]\nceiling = \"sky\"", "allowed are"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
