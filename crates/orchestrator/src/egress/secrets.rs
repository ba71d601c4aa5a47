//! The values of a job's secrets, and the CA that signs for their hosts. Values are fetched when a job starts and
//! only kept in memory; the CA's key is in the job's folder for as long as the job may continue.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use egress::{Authority, EgressError, Rule, Secret, SecretString, Secrets};
use job::{JobId, JobSpec};

use crate::core::Core;
use crate::error::OrchestratorError;

const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

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
