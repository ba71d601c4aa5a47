//! Whose signatures count. Anyone who can write to the database can sign heads with their own key, so the trusted
//! keys are named outside of it: in the data folder, or by the caller of the check.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::error::StoreError;
use crate::evidence::head::from_hex;
use crate::evidence::key::PUBLIC_KEY_FILE;

/// Former public keys, one per line: of the server that a backup was made of, and of a replaced `audit.key`.
const OLD_KEYS_FILE: &str = "audit.pub.old";

/// The public keys whose signatures count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedKeys(BTreeSet<String>);

impl TrustedKeys {
    /// The keys named in a data folder: `audit.pub` and `audit.pub.old`.
    #[must_use]
    pub fn of_folder(data: &Path) -> Self {
        let files = [PUBLIC_KEY_FILE, OLD_KEYS_FILE].map(|name| fs::read_to_string(data.join(name)));
        let lines = files.iter().flatten().flat_map(|text| text.lines());
        Self(lines.map(|line| line.trim().to_ascii_lowercase()).filter(|line| is_key(line)).collect())
    }

    /// Trusts only these keys, in hexadecimal.
    ///
    /// # Errors
    /// The first text that is not a key.
    pub fn only(keys: &[String]) -> Result<Self, String> {
        let keys = keys.iter().map(|key| key.trim().to_ascii_lowercase());
        let keys = keys.map(|key| if is_key(&key) { Ok(key) } else { Err(key) });
        keys.collect::<Result<_, _>>().map(Self)
    }

    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.0.contains(key)
    }

    /// All keys, in hexadecimal.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

fn is_key(text: &str) -> bool {
    from_hex(text).is_some_and(|bytes| bytes.len() == 32)
}

/// Trusts further keys in a data folder from now on, in addition to its own.
///
/// # Errors
/// The file with the former keys cannot be written.
pub fn trust_old_keys(data: &Path, keys: &[String]) -> Result<(), StoreError> {
    let path = data.join(OLD_KEYS_FILE);
    let known = fs::read_to_string(&path).unwrap_or_default();
    let text: String = keys
        .iter()
        .filter(|key| is_key(key) && !known.contains(key.as_str()))
        .map(|key| format!("{key}\n"))
        .collect();
    if text.is_empty() {
        return Ok(());
    }
    let written = OpenOptions::new().create(true).append(true).open(&path);
    written
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(StoreError::io(format!("writing {}", path.display())))
}
