//! HMAC-sealed texts: login sessions and shared links; and secrets that are derived from the same key.
//!
//! The HMAC of a text covers the purpose, the text and the expiry. Its key is created once and stored in the data folder.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ring::hmac;
use sandbox::SandboxId;
use uuid::Uuid;

use crate::error::OrchestratorError;

const FILE: &str = "seal.key";
const KEY_BYTES: usize = 32;

/// What a sealed text is for. A text sealed for another purpose is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealPurpose {
    /// A logged-in user: the text is the id of the login and the user it belongs to.
    Session,
    /// A login through OIDC in progress: the text is what the browser must send back.
    Login,
    /// A shared link: the text names a job and one view of it.
    Link,
}

impl SealPurpose {
    /// The name that the HMAC covers. A changed name ends every login and link that exists.
    fn name(self) -> &'static str {
        match self {
            Self::Session => "Session",
            Self::Login => "Login",
            Self::Link => "Link",
        }
    }
}

/// What the HMAC of a sandbox's secret covers before its id. A sealed text always has three lines, so neither can be
/// taken for the other.
const LINK_SECRET: &str = "SandboxLink";

pub(crate) struct Seal(hmac::Key);

impl Seal {
    /// Reads the key from the folder, or creates it.
    pub(crate) fn open(folder: &Path) -> Result<Self, OrchestratorError> {
        let path = folder.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) if bytes.len() == KEY_BYTES => bytes,
            Ok(_) => make(&path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path)?,
            Err(error) => return Err(OrchestratorError::io(format!("reading {}", path.display()))(error)),
        };
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    pub(crate) fn write(&self, purpose: SealPurpose, text: &str, until_ms: i64) -> String {
        let tag = hmac::sign(&self.0, covered(purpose, text, until_ms).as_bytes());
        format!("{text}.{until_ms}.{}", hex(tag.as_ref()))
    }

    /// The secret that this server presents to the guest of a sandbox. Derived, so that a restarted server knows it and
    /// nothing has to be stored.
    pub(crate) fn link_secret(&self, sandbox: SandboxId) -> String {
        hex(hmac::sign(&self.0, format!("{LINK_SECRET}\n{sandbox}").as_bytes()).as_ref())
    }

    pub(crate) fn read(&self, purpose: SealPurpose, sealed: &str, now_ms: i64) -> Option<(String, i64)> {
        let (rest, tag) = sealed.rsplit_once('.')?;
        let (text, until) = rest.rsplit_once('.')?;
        let until_ms: i64 = until.parse().ok()?;
        let covered = covered(purpose, text, until_ms);
        hmac::verify(&self.0, covered.as_bytes(), &unhex(tag)?).ok()?;
        (now_ms < until_ms).then(|| (text.to_owned(), until_ms))
    }
}

fn covered(purpose: SealPurpose, text: &str, until_ms: i64) -> String {
    format!("{}\n{until_ms}\n{text}", purpose.name())
}

fn make(path: &Path) -> Result<Vec<u8>, OrchestratorError> {
    let bytes: Vec<u8> = [Uuid::new_v4(), Uuid::new_v4()].iter().flat_map(|part| *part.as_bytes()).collect();
    let written = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
    written.map_err(OrchestratorError::io(format!("writing {}", path.display())))?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_text_is_valid_until_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let sealed = Seal::open(folder.path()).unwrap().write(SealPurpose::Session, "some.key", 1000);
        let again = Seal::open(folder.path()).unwrap();
        assert_eq!(again.read(SealPurpose::Session, &sealed, 999), Some(("some.key".into(), 1000)));
        assert_eq!(again.read(SealPurpose::Session, &sealed, 1000), None, "its time is over");
        assert_eq!(again.read(SealPurpose::Link, &sealed, 999), None, "it was made for something else");
    }

    #[test]
    fn link_secret_survives_a_restart_and_differs_between_sandboxes_and_servers() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (sandbox, another) = (SandboxId::generate(), SandboxId::generate());
        let secret = Seal::open(one.path()).unwrap().link_secret(sandbox);
        assert_eq!(secret.len(), 64);
        assert_eq!(Seal::open(one.path()).unwrap().link_secret(sandbox), secret);
        assert_ne!(Seal::open(one.path()).unwrap().link_secret(another), secret);
        assert_ne!(Seal::open(other.path()).unwrap().link_secret(sandbox), secret);
    }

    #[test]
    fn covered_bytes_stay_the_same_in_every_version() {
        assert_eq!(covered(SealPurpose::Session, "a.b", 1000), "Session\n1000\na.b");
        assert_eq!(covered(SealPurpose::Login, "a.b", 1000), "Login\n1000\na.b");
        assert_eq!(covered(SealPurpose::Link, "a.b", 1000), "Link\n1000\na.b");
    }

    #[test]
    fn forged_or_tampered_seals_are_refused() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let seal = Seal::open(one.path()).unwrap();
        let sealed = seal.write(SealPurpose::Link, "job/desktop", 1000);
        for changed in [sealed.replace("desktop", "jupyter"), sealed.replace(".1000.", ".9999."), "x".into()]
        {
            assert_eq!(seal.read(SealPurpose::Link, &changed, 0), None, "{changed}");
        }
        assert_eq!(Seal::open(other.path()).unwrap().read(SealPurpose::Link, &sealed, 0), None);
        assert_eq!(seal.read(SealPurpose::Link, "a.1.0é", 0), None);
    }
}
