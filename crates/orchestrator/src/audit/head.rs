//! A signed head: what it says, what the signature covers, how it is written.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{JobId, Sequence};

/// The hash of one event of a job, signed. It covers that event and all before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignedHead {
    /// The job.
    pub job: JobId,
    /// The event.
    pub sequence: Sequence,
    /// Its hash, in hexadecimal.
    pub hash: String,
    /// When it was signed, in milliseconds since 1970.
    pub time_ms: i64,
    /// The public key (Ed25519), in hexadecimal.
    pub key: String,
    /// The signature, in hexadecimal.
    pub signature: String,
}

impl SignedHead {
    /// What the signature covers.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let Self { job, sequence, hash, time_ms, .. } = self;
        format!("caisson-head-1\n{job}\n{sequence}\n{hash}\n{time_ms}\n").into_bytes()
    }

    /// Whether the signature is that of the key that the head names.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        is_signature(&self.key, &self.signature, &self.message())
    }
}

/// Whether a signature of a message is that of a key, both in hexadecimal.
pub(super) fn is_signature(key: &str, signature: &str, message: &[u8]) -> bool {
    let (Some(key), Some(signature)) = (from_hex(key), from_hex(signature)) else { return false };
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key);
    key.verify(message, &signature).is_ok()
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that were written in hexadecimal.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_read_and_what_is_none_is_not() {
        assert_eq!(from_hex("0aff"), Some(vec![10, 255]));
        assert_eq!((from_hex("0"), from_hex("0g"), from_hex("é")), (None, None, None));
    }
}
