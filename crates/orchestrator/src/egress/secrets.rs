//! The values of a job's secrets, and the CA that signs for their hosts. Values are fetched when a job starts and
//! only kept in memory; the CA's key is in the job's folder for as long as the job may continue.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use egress::{Authority, EgressError, Rule, Secret, SecretString, Secrets};
use tokio::process::Command;
use tokio::time::timeout;

use crate::core::Core;
use crate::error::OrchestratorError;
use crate::ids::JobId;
use crate::request::JobSpec;

/// Timeout of a command that prints a value.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_VALUE_BYTES: usize = 64 * 1024;
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

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

/// Secrets and CA of a job.
pub(super) struct JobSecrets {
    pub(super) secrets: Secrets,
    pub(super) authority: Arc<Authority>,
}

/// Fetches the values, and loads the CA or creates it.
pub(super) async fn open(core: &Core, job: JobId, spec: &JobSpec) -> Result<JobSecrets, OrchestratorError> {
    let settings = core.settings();
    let mut secrets = Vec::new();
    let mut hosts = Vec::new();
    for (name, wanted) in &spec.egress_settings.secrets {
        let refuse = |why: String| OrchestratorError::Secret { secret: name.clone(), why };
        let kept = settings.secrets.get(name).ok_or_else(|| refuse("this server has none".into()))?;
        let value = kept.source.fetch().await.map_err(refuse)?;
        // The operator may have removed hosts since the job was accepted; the job continues without them.
        let allowed: Vec<Rule> = wanted.hosts.iter().filter(|rule| kept.allows(rule)).cloned().collect();
        hosts.extend(allowed.iter().cloned());
        let secret = Secret::new(name, wanted.placeholder.clone(), value, allowed);
        secrets.push(secret.map_err(unavailable)?);
    }
    let folder = core.folder.authority(job);
    let authority = load_or_create_ca(&folder, &job.to_string(), &hosts)?;
    Ok(JobSecrets { secrets: Secrets::new(secrets), authority: Arc::new(authority) })
}

pub(super) fn unavailable(error: EgressError) -> OrchestratorError {
    match error {
        EgressError::Secret { secret, why } => OrchestratorError::Secret { secret, why },
        other => OrchestratorError::Secret { secret: "authority".into(), why: other.to_string() },
    }
}

impl SecretSource {
    /// Fetches the value. Errors never contain any part of it.
    async fn fetch(&self) -> Result<SecretString, String> {
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

fn load_or_create_ca(folder: &Path, name: &str, hosts: &[Rule]) -> Result<Authority, OrchestratorError> {
    let failed = || OrchestratorError::io(format!("keeping the certificates in {}", folder.display()));
    // The key is written last: if it exists, so does the certificate.
    if let Some(key) = read_if_there(&folder.join(KEY)).map_err(failed())? {
        let certificate = fs::read_to_string(folder.join(CERTIFICATE)).map_err(failed())?;
        return Authority::from_pem(name, certificate, SecretString::new(key)).map_err(unavailable);
    }
    let made = Authority::generate(name, hosts).map_err(unavailable)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed())?;
    write_private(&folder.join(CERTIFICATE), made.certificate()).map_err(failed())?;
    write_private(&folder.join(KEY), made.key().reveal()).map_err(failed())?;
    Ok(made)
}

fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Writes a file that only the server can read, completely or not at all.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("partial");
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn ca_key_is_reused_and_readable_by_the_server_only() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("authority");
        let hosts = vec!["api.example.org".parse().unwrap()];
        let made = load_or_create_ca(&place, "job", &hosts).unwrap();
        let kept = load_or_create_ca(&place, "job", &hosts).unwrap();
        assert_eq!(made.certificate(), kept.certificate());
        assert_eq!(fs::metadata(place.join(KEY)).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
