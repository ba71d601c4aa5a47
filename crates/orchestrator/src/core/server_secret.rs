//! Secrets that the operator has configured: where each value comes from, and which hosts may receive it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use egress::{Rule, SecretString};
use tokio::process::Command;
use tokio::time::timeout;

/// Timeout of a command that prints a value.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

const MAX_VALUE_BYTES: usize = 64 * 1024;

/// Where the server gets a value from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// Given in the settings.
    Value(SecretString),
    /// A file, read for each job.
    File(PathBuf),
    /// A command whose stdout is the value, run for each job.
    Command(Vec<String>),
}

/// A secret configured on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSecret {
    pub source: SecretSource,
    /// The hosts that jobs may send it to; `None` allows any host that the job names.
    pub hosts: Option<Vec<Rule>>,
}

impl ServerSecret {
    /// Whether a job may send it to these hosts.
    pub(crate) fn allows(&self, asked: &Rule) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|allowed| asked.is_within(allowed)))
    }

    /// Checks the hosts that a job names. Returns the index of the first one that is not allowed, and the reason.
    pub(crate) fn refusal(&self, asked: &[Rule]) -> Option<(usize, String)> {
        let (number, rule) = asked.iter().enumerate().find(|(_, rule)| !self.allows(rule))?;
        let hosts: Vec<String> = self.hosts.iter().flatten().map(ToString::to_string).collect();
        Some((number, format!("this server sends it to {} only, and not to {rule}", hosts.join(", "))))
    }
}

impl SecretSource {
    /// Fetches the value. Errors never contain any part of it.
    pub(crate) async fn fetch(&self) -> Result<SecretString, String> {
        let text = match self {
            Self::Value(value) => return Ok(value.clone()),
            Self::File(path) => tokio::fs::read(path)
                .await
                .map_err(|error| format!("its file {} cannot be read: {error}", path.display()))?,
            Self::Command(words) => run(words).await?,
        };
        let text = String::from_utf8(text).map_err(|_| "its value is not text".to_owned())?;
        let text = text.trim_end_matches(['\n', '\r']);
        if text.len() > MAX_VALUE_BYTES {
            return Err(format!("its value has more than {MAX_VALUE_BYTES} bytes"));
        }
        Ok(SecretString::new(text))
    }
}

async fn run(words: &[String]) -> Result<Vec<u8>, String> {
    let Some((program, arguments)) = words.split_first() else { return Err("its command is empty".into()) };
    let running = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match timeout(COMMAND_TIMEOUT, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("its command {program} cannot be run: {error}")),
        Err(_) => return Err(format!("its command {program} took longer than {COMMAND_TIMEOUT:?}")),
    };
    if !output.status.success() {
        return Err(format!("its command {program} failed: {}", output.status));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use egress::{Rule, SecretString};

    use super::*;

    #[tokio::test]
    async fn secret_values_come_from_files_or_commands_and_errors_do_not_leak_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "the-value\n").unwrap();
        assert_eq!(SecretSource::File(file).fetch().await.unwrap().reveal(), "the-value");
        let words = |text: &str| SecretSource::Command(["sh", "-c", text].map(str::to_owned).to_vec());
        assert_eq!(words("echo the-value").fetch().await.unwrap().reveal(), "the-value");
        let error = words("echo the-value; exit 3").fetch().await.unwrap_err();
        assert!(error.contains("exit status: 3") && !error.contains("the-value"), "{error}");
        let error = SecretSource::File("/does/not/exist".into()).fetch().await.unwrap_err();
        assert!(error.contains("/does/not/exist"), "{error}");
    }

    #[test]
    fn secrets_are_limited_to_the_hosts_the_operator_allows() {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Rule>>();
        let source = SecretSource::Value(SecretString::new("the-value"));
        let any = ServerSecret { source: source.clone(), hosts: None };
        assert!(any.refusal(&rules(&["evil.example"])).is_none());
        let hosts = rules(&["api.example.org", "*.git.example", "b.example:8443"]);
        let bound = ServerSecret { source, hosts: Some(hosts) };
        let fine =
            ["api.example.org", "a.git.example:443", "*.git.example", "*.x.git.example", "b.example:8443"];
        assert_eq!(bound.refusal(&rules(&fine)), None);
        for asked in [
            "evil.example",
            "*.example.org",
            "git.example",
            "notgit.example",
            "api.example.org:22",
            "b.example",
            "*.example",
        ] {
            let (number, why) = bound.refusal(&rules(&["api.example.org", asked])).unwrap();
            assert!(number == 1 && why.contains("api.example.org") && why.ends_with(asked), "{why}");
        }
    }
}
