//! Signed heads: their content, what the signature covers, and their encoding. The heads of a job form a hash chain
//! of their own.

use job::{JobId, Sequence};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::chain::digest;

/// Maximum age of an event, relative to the newest head in the database, that no head covers. The store guarantees
/// it: when it writes a head, it also writes heads for all logs that have waited longer than this.
pub(crate) const MAX_UNSIGNED_MS: i64 = 5 * 60_000;

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
    /// Its position among the heads of the job, from 1.
    pub number: u64,
    /// SHA-256 of what the signature of the head before covers, in hexadecimal; absent in the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// When it was signed, in milliseconds since 1970.
    pub time_ms: i64,
    /// The public key (Ed25519), in hexadecimal.
    pub key: String,
    /// The signature, in hexadecimal.
    pub signature: String,
}

impl SignedHead {
    /// The bytes that the signature covers.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let Self { job, sequence, hash, number, previous, time_ms, .. } = self;
        let previous = previous.as_deref().unwrap_or("-");
        format!("caisson-head-2\n{job}\n{sequence}\n{hash}\n{number}\n{previous}\n{time_ms}\n").into_bytes()
    }

    /// The value of `previous` in the next head of the job.
    #[must_use]
    pub(crate) fn digest(&self) -> String {
        hex(&digest(&self.message()))
    }

    /// Whether the signature matches the key in the head.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        is_signature(&self.key, &self.signature, &self.message())
    }
}

/// Whether `signature` is a signature of `message` by `key`, both in hexadecimal.
pub(super) fn is_signature(key: &str, signature: &str, message: &[u8]) -> bool {
    let (Some(key), Some(signature)) = (from_hex(key), from_hex(signature)) else { return false };
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key);
    key.verify(message, &signature).is_ok()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

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
    fn from_hex_accepts_only_valid_hexadecimal() {
        assert_eq!(from_hex("0aff"), Some(vec![10, 255]));
        assert_eq!((from_hex("0"), from_hex("0g"), from_hex("é")), (None, None, None));
    }
}
