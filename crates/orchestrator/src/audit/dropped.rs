//! The statement that retention has dropped the payloads of a job. Without one, signed by a key that counts, missing payloads are a
//! fault: a mark in the database alone could have been set by whoever can write to it.

use super::head::is_signature;
use crate::ids::JobId;

/// That the payloads of a job were dropped, signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DropStatement {
    pub(crate) job: JobId,
    /// When, in milliseconds since 1970.
    pub(crate) time_ms: i64,
    /// The public key (Ed25519), in hexadecimal.
    pub(crate) key: String,
    /// The signature, in hexadecimal.
    pub(crate) signature: String,
}

impl DropStatement {
    /// What the signature covers.
    pub(crate) fn message(&self) -> Vec<u8> {
        let Self { job, time_ms, .. } = self;
        format!("caisson-dropped-1\n{job}\n{time_ms}\n").into_bytes()
    }

    /// Whether the signature is that of the key that the statement names.
    pub(crate) fn is_signed(&self) -> bool {
        is_signature(&self.key, &self.signature, &self.message())
    }
}
