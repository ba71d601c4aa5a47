//! The values of a job's secrets and the authority that speaks for their hosts. Values are fetched when a job starts
//! and live in memory alone; the authority's key lies in the job's folder for as long as the job may go on.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use egress::{Authority, EgressError, Hidden, Rule, Secret, Secrets};
use tokio::process::Command;
use tokio::time::timeout;

use crate::core::Core;
use crate::error::OrchestratorError;
use crate::ids::JobId;
use crate::request::JobSpec;

/// How long a command may take to print a value.
const COMMAND_PATIENCE: Duration = Duration::from_secs(30);
/// The longest value.
const MAX_VALUE_BYTES: usize = 64 * 1024;
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

/// Where the server has a value from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// It was given with the settings.
    Value(Hidden),
    /// It is in this file, read for each job.
    File(PathBuf),
    /// This program prints it, run for each job.
    Command(Vec<String>),
}

/// A secret that the server keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSecret {
    /// Where its value is.
    pub source: SecretSource,
    /// The hosts to which a job may have it sent; `None`: to any that the job names.
    pub hosts: Option<Vec<Rule>>,
}

impl ServerSecret {
    /// Whether a job may have it sent to these hosts.
    pub(crate) fn allows(&self, asked: &Rule) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|allowed| asked.lies_within(allowed)))
    }

    /// Refuses a job that wants it sent elsewhere, by the number of the host and with what is allowed.
    pub(crate) fn refusal(&self, asked: &[Rule]) -> Option<(usize, String)> {
        let (number, rule) = asked.iter().enumerate().find(|(_, rule)| !self.allows(rule))?;
        let hosts: Vec<String> = self.hosts.iter().flatten().map(ToString::to_string).collect();
        Some((number, format!("this server sends it to {} only, and not to {rule}", hosts.join(", "))))
    }
}

/// What a job with secrets needs.
pub(super) struct Kept {
    pub(super) secrets: Secrets,
    pub(super) authority: Arc<Authority>,
}

/// Fetches the values and makes the authority, or finds it where it was made before.
pub(super) async fn open(core: &Core, job: JobId, spec: &JobSpec) -> Result<Kept, OrchestratorError> {
    let settings = core.settings();
    let mut secrets = Vec::new();
    let mut hosts = Vec::new();
    for (name, wanted) in &spec.outward.secrets {
        let refuse = |why: String| OrchestratorError::Secret { secret: name.clone(), why };
        let kept = settings.secrets.get(name).ok_or_else(|| refuse("this server has none".into()))?;
        let value = kept.source.fetch().await.map_err(refuse)?;
        // The operator may have taken hosts away since the job was taken: it goes on without them.
        let allowed: Vec<Rule> = wanted.hosts.iter().filter(|rule| kept.allows(rule)).cloned().collect();
        hosts.extend(allowed.iter().cloned());
        let secret = Secret::new(name, wanted.placeholder.clone(), value, allowed);
        secrets.push(secret.map_err(unavailable)?);
    }
    let folder = core.folder.authority(job);
    let authority = keep_authority(&folder, &job.to_string(), &hosts)?;
    Ok(Kept { secrets: Secrets::new(secrets), authority: Arc::new(authority) })
}

pub(super) fn unavailable(error: EgressError) -> OrchestratorError {
    match error {
        EgressError::Secret { secret, why } => OrchestratorError::Secret { secret, why },
        other => OrchestratorError::Secret { secret: "authority".into(), why: other.to_string() },
    }
}

impl SecretSource {
    /// The value; an error never has a part of it.
    async fn fetch(&self) -> Result<Hidden, String> {
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
        Ok(Hidden::new(text))
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
    let output = match timeout(COMMAND_PATIENCE, running).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("its command {program} cannot be run: {error}")),
        Err(_) => return Err(format!("its command {program} took longer than {COMMAND_PATIENCE:?}")),
    };
    if !output.status.success() {
        return Err(format!("its command {program} failed: {}", output.status));
    }
    Ok(output.stdout)
}

fn keep_authority(folder: &Path, name: &str, hosts: &[Rule]) -> Result<Authority, OrchestratorError> {
    let failed = || OrchestratorError::io(format!("keeping the certificates in {}", folder.display()));
    // The key is written last: who has it has both.
    if let Some(key) = read_if_there(&folder.join(KEY)).map_err(failed())? {
        let certificate = fs::read_to_string(folder.join(CERTIFICATE)).map_err(failed())?;
        return Authority::from_pem(name, certificate, Hidden::new(key)).map_err(unavailable);
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

/// Whole or not at all, for the server alone.
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
    async fn a_value_comes_from_a_file_or_a_command_and_errors_do_not_have_it() {
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
    fn a_secret_goes_only_where_the_operator_lets_it_go() {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Rule>>();
        let source = SecretSource::Value(Hidden::new("the-value"));
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
    fn an_authority_is_kept_for_the_server_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("authority");
        let hosts = vec!["api.example.org".parse().unwrap()];
        let made = keep_authority(&place, "job", &hosts).unwrap();
        let kept = keep_authority(&place, "job", &hosts).unwrap();
        assert_eq!(made.certificate(), kept.certificate());
        assert_eq!(fs::metadata(place.join(KEY)).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
