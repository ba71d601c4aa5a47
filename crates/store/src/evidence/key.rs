//! The key that signs heads. It is created in the data folder on first use; its public half lies beside it, readable
//! by everyone.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use job::{Actor, JobId, Sequence};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::clock::now_ms;
use crate::error::StoreError;
use crate::evidence::dropped::{DerivedDigests, DropStatement};
use crate::evidence::head::{SignedHead, from_hex, hex};
use crate::evidence::tombstone::Tombstone;
use crate::evidence::trust::trust_old_keys;

const SECRET_KEY_FILE: &str = "audit.key";
/// File in the data folder that contains the public half, in hexadecimal.
pub const PUBLIC_KEY_FILE: &str = "audit.pub";

pub(crate) struct SigningKey {
    pair: Ed25519KeyPair,
    public: String,
}

impl SigningKey {
    /// Reads the key of a data folder, or creates it.
    pub(crate) fn of(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join(SECRET_KEY_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(folder)?,
            Err(error) => return Err(StoreError::io(format!("reading {}", path.display()))(error)),
        };
        let seed = from_hex(text.trim()).filter(|seed| seed.len() == 32);
        let pair = seed.and_then(|seed| Ed25519KeyPair::from_seed_unchecked(&seed).ok());
        let pair = pair.ok_or_else(|| StoreError::Unreadable {
            what: format!("the key in {}: it must be 64 hexadecimal digits", path.display()),
            source: "no key".into(),
        })?;
        let public = hex(pair.public_key().as_ref());
        let public_path = folder.join(PUBLIC_KEY_FILE);
        let before = fs::read_to_string(&public_path).ok();
        if before.as_deref().map(str::trim) != Some(&public) {
            // Signatures by the replaced key stay valid.
            trust_old_keys(folder, &before.iter().map(|key| key.trim().to_owned()).collect::<Vec<_>>())?;
            fs::write(&public_path, format!("{public}\n"))
                .map_err(StoreError::io(format!("writing {}", public_path.display())))?;
        }
        Ok(Self { pair, public })
    }

    /// Signs the hash of an event; `previous` is the head before.
    pub(crate) fn sign(
        &self,
        job: JobId,
        (sequence, hash): (Sequence, &[u8]),
        previous: Option<&SignedHead>,
    ) -> SignedHead {
        let mut head = SignedHead {
            job,
            sequence,
            hash: hex(hash),
            number: previous.map_or(0, |head| head.number) + 1,
            previous: previous.map(SignedHead::digest),
            time_ms: now_ms(),
            key: self.public.clone(),
            signature: String::new(),
        };
        head.signature = hex(self.pair.sign(&head.message()).as_ref());
        head
    }

    /// Signs that a job was deleted whose log ended with this event.
    pub(crate) fn sign_deletion(
        &self,
        job: JobId,
        (sequence, hash): (Sequence, &[u8]),
        by: &Actor,
    ) -> Tombstone {
        let mut tombstone = Tombstone {
            deleted_job: job,
            sequence,
            hash: hex(hash),
            by: by.name.clone(),
            by_key: by.key.clone(),
            time_ms: now_ms(),
            key: self.public.clone(),
            signature: String::new(),
        };
        tombstone.signature = hex(self.pair.sign(&tombstone.message()).as_ref());
        tombstone
    }

    /// Signs that the payloads of a job were dropped, and the digests of what was derived from them.
    pub(crate) fn sign_drop(&self, job: JobId, derived: DerivedDigests) -> DropStatement {
        let mut statement = DropStatement {
            job,
            time_ms: now_ms(),
            derived,
            key: self.public.clone(),
            signature: String::new(),
        };
        statement.signature = hex(self.pair.sign(&statement.message()).as_ref());
        statement
    }
}

/// Creates a key that only the owner can read. The file is written completely or not at all.
fn make(folder: &Path) -> Result<String, StoreError> {
    let mut seed = [0; 32];
    SystemRandom::new()
        .fill(&mut seed)
        .map_err(|_| StoreError::io("making a key")(std::io::Error::other("no random numbers")))?;
    let text = format!("{}\n", hex(&seed));
    let (path, partial) = (folder.join(SECRET_KEY_FILE), folder.join("audit.key.partial"));
    let write = || {
        let mut file =
            OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, &path)
    };
    write().map_err(StoreError::io(format!("writing {}", path.display())))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signing_key_is_created_once_and_signatures_cover_every_field() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobId::generate();
        let first = SigningKey::of(folder.path()).unwrap().sign(job, (3, b"hash"), None);
        let head = SigningKey::of(folder.path()).unwrap().sign(job, (7, b"hash"), Some(&first));
        assert_eq!((first.number, &first.previous), (1, &None));
        assert_eq!((head.number, &head.previous), (2, &Some(first.digest())));
        assert!(head.is_signed());
        assert_eq!(first.key, head.key);
        let public = fs::read_to_string(folder.path().join(PUBLIC_KEY_FILE)).unwrap();
        assert_eq!(public.trim(), head.key);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &fs::metadata(folder.path().join(SECRET_KEY_FILE)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        for changed in [
            SignedHead { sequence: 8, ..head.clone() },
            SignedHead { job: JobId::generate(), ..head.clone() },
            SignedHead { hash: "00".into(), ..head.clone() },
            SignedHead { number: 3, ..head.clone() },
            SignedHead { number: 0, ..head.clone() },
            SignedHead { previous: None, ..head.clone() },
            SignedHead { time_ms: 0, ..head.clone() },
            SignedHead { key: "00".repeat(32), ..head.clone() },
            SignedHead { signature: "zz".into(), ..head },
        ] {
            assert!(!changed.is_signed(), "{changed:?}");
        }
    }

    #[test]
    fn replaced_signing_keys_stay_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let old = SigningKey::of(folder.path()).unwrap().public;
        fs::remove_file(folder.path().join(SECRET_KEY_FILE)).unwrap();
        let new = SigningKey::of(folder.path()).unwrap().public;
        let trusted = crate::evidence::trust::TrustedKeys::of_folder(folder.path());
        assert!(old != new && trusted.has(&old) && trusted.has(&new));
        assert!(!trusted.has(&"00".repeat(32)));
    }

    #[test]
    fn damaged_signing_key_is_refused_naming_the_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(SECRET_KEY_FILE), "no key").unwrap();
        let error = SigningKey::of(folder.path()).err().unwrap().to_string();
        assert!(error.contains("audit.key"), "{error}");
    }
}
