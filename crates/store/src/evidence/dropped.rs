//! The signed statement that retention has dropped the payloads of a job. Without one by a trusted key, missing
//! payloads are a fault: anyone who can write to the database could have set a mere flag there.
//!
//! Data derived from the log (the job's row, its steps, the list of connections) cannot be recomputed without the
//! payloads, so the statement contains digests of it.

use job::{JobId, Sequence};

use crate::evidence::head::is_signature;

/// The signed statement that the payloads of a job were dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DropStatement {
    pub(crate) job: JobId,
    /// In milliseconds since 1970.
    pub(crate) time_ms: i64,
    /// What was derived from the payloads.
    pub(crate) derived: DerivedDigests,
    /// Public key (Ed25519), in hexadecimal.
    pub(crate) key: String,
    /// In hexadecimal.
    pub(crate) signature: String,
}

/// Digests of what was derived from the payloads when they were dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DerivedDigests {
    /// The last event at that time.
    pub(crate) sequence: Sequence,
    /// SHA-256 of what the database derived from the log, in hexadecimal; `None` if the check of the job found
    /// faults.
    pub(crate) view: Option<String>,
    /// Size of the list of connections.
    pub(crate) network_bytes: u64,
    /// SHA-256 of the list of connections, in hexadecimal.
    pub(crate) network_sha256: String,
}

impl DropStatement {
    /// The bytes that the signature covers.
    pub(crate) fn message(&self) -> Vec<u8> {
        let Self { job, time_ms, derived, .. } = self;
        let DerivedDigests { sequence, view, network_bytes, network_sha256 } = derived;
        let view = view.as_deref().unwrap_or("-");
        format!(
            "caisson-dropped-2\n{job}\n{time_ms}\n{sequence}\n{view}\n{network_bytes}\n{network_sha256}\n"
        )
        .into_bytes()
    }

    /// Whether the signature matches the key in the statement.
    pub(crate) fn is_signed(&self) -> bool {
        is_signature(&self.key, &self.signature, &self.message())
    }
}
