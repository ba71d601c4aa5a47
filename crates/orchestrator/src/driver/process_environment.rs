//! The environment variables of processes in a sandbox.

use std::collections::BTreeMap;

use egress::TrustStores;
use job::{CallRef, JobSpec};

use crate::driver::desktop::is_announced;

/// Port of the egress proxy in the sandbox.
pub(crate) const EGRESS_PORT: u16 = 3128;
/// Paths of the CA certificates in every sandbox.
const TRUST_STORES: TrustStores<'_> =
    TrustStores { bundle: "/etc/ssl/certs/ca-certificates.crt", java: "/etc/ssl/certs/java/cacerts" };

/// The environment of everything that runs in a job.
pub(crate) fn environment(spec: &JobSpec, call: &CallRef) -> BTreeMap<String, String> {
    let mut variables = plain_environment();
    let user = format!("{}.{}", call.id, call.attempt);
    variables.extend(egress::environment(&user, EGRESS_PORT, TRUST_STORES));
    if is_announced(spec) {
        variables.insert("DISPLAY".to_owned(), protocol::DISPLAY.to_owned());
    }
    let secrets = spec.egress_settings.secrets.iter();
    variables.extend(secrets.map(|(name, secret)| (name.clone(), secret.placeholder.clone())));
    variables.extend(spec.environment.clone());
    variables
}

/// The variables that are the same for every job.
pub(crate) fn plain_environment() -> BTreeMap<String, String> {
    [
        ("HOME", "/home/agent"),
        ("USER", "agent"),
        ("LOGNAME", "agent"),
        ("SHELL", "/bin/bash"),
        ("PATH", "/home/agent/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        // The only category that differs from the C locale. As `LANG`, it would make each program open eleven more
        // files at startup.
        ("LC_CTYPE", "C.UTF-8"),
        ("TERM", "dumb"),
        // Show output as soon as it is printed.
        ("PYTHONUNBUFFERED", "1"),
        // The sandbox takes the place of a virtual environment, so installing packages globally is fine.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("npm_config_prefix", "/home/agent/.local"),
        ("npm_config_update_notifier", "false"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}
