//! The statement that retention has dropped the payloads of a job. Without one, signed by a key that counts, missing payloads are a
//! fault: a mark in the database alone could have been set by whoever can write to it.
//!
//! What is computed from the log (the job's row, its steps, the list of connections) cannot be computed again without the payloads, so
//! the statement has the digests of it.

use super::head::is_signature;
use crate::ids::{JobId, Sequence};

/// That the payloads of a job were dropped, signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DropStatement {
    pub(crate) job: JobId,
    /// When, in milliseconds since 1970.
    pub(crate) time_ms: i64,
    /// What the payloads showed; `None` in statements of earlier versions.
    pub(crate) derived: Option<DerivedDigests>,
    /// The public key (Ed25519), in hexadecimal.
    pub(crate) key: String,
    /// The signature, in hexadecimal.
    pub(crate) signature: String,
}

/// What was computed from the payloads when they were dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DerivedDigests {
    /// The last event then.
    pub(crate) sequence: Sequence,
    /// SHA-256 of what the database has computed from the log, in hexadecimal; `None` where the check of the job found faults.
    pub(crate) view: Option<String>,
    /// Bytes of the list of connections.
    pub(crate) network_bytes: u64,
    /// SHA-256 of it, in hexadecimal.
    pub(crate) network_sha256: String,
}

impl DropStatement {
    /// What the signature covers.
    pub(crate) fn message(&self) -> Vec<u8> {
        let Self { job, time_ms, derived, .. } = self;
        let Some(DerivedDigests { sequence, view, network_bytes, network_sha256 }) = derived else {
            return format!("caisson-dropped-1\n{job}\n{time_ms}\n").into_bytes();
        };
        let view = view.as_deref().unwrap_or("-");
        format!(
            "caisson-dropped-2\n{job}\n{time_ms}\n{sequence}\n{view}\n{network_bytes}\n{network_sha256}\n"
        )
        .into_bytes()
    }

    /// Whether the signature is that of the key that the statement names.
    pub(crate) fn is_signed(&self) -> bool {
        is_signature(&self.key, &self.signature, &self.message())
    }
}
