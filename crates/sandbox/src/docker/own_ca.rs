//! A certificate that only one container trusts: files of the server that are mounted over the image's own.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bollard::models::{Mount, MountType};

use super::image_files::{self, BUNDLE};
use super::{Inner, image};
use crate::error::{SandboxError, failed};
use crate::host::certificates::browser_policy;
use crate::host::java_store::{STORE, java_store};
use crate::spec::SandboxId;

/// The browser's policy file in the container.
const POLICY: &str = "/etc/chromium/policies/managed/caisson-certificates.json";
const BUNDLE_FILE: &str = "ca-certificates.crt";
const STORE_FILE: &str = "cacerts";
const POLICY_FILE: &str = "browser-policy.json";

/// Writes the files of a sandbox whose directory exists.
pub(super) fn write(
    inner: &Inner,
    id: SandboxId,
    prepared: &image::Prepared,
    own: &str,
) -> Result<(), SandboxError> {
    let directory = inner.layout.sandbox(id);
    let write = || -> io::Result<()> {
        let trusted = fs::read_to_string(&prepared.bundle)?;
        let bundle = image_files::with_certificates(&trusted, &[own.to_owned()]);
        write_readable(&directory.join(BUNDLE_FILE), bundle.as_bytes())?;
        write_readable(&directory.join(STORE_FILE), &java_store(&bundle))?;
        write_readable(&directory.join(POLICY_FILE), browser_policy(own).as_bytes())
    };
    write().map_err(|source| failed("writing certificates to", &directory, source))
}

fn write_readable(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// The mounts that expose them in the container.
pub(super) fn mounts(inner: &Inner, id: SandboxId) -> Vec<Mount> {
    let directory = inner.layout.sandbox(id);
    let store = format!("/{STORE}");
    [(BUNDLE_FILE, BUNDLE), (STORE_FILE, &store), (POLICY_FILE, POLICY)]
        .map(|(file, path)| Mount {
            typ: Some(MountType::BIND),
            source: Some(directory.join(file).display().to_string()),
            target: Some(path.into()),
            read_only: Some(true),
            ..Mount::default()
        })
        .to_vec()
}
