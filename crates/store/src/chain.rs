//! The hash chain over a job's events.

use sha2::{Digest, Sha256};

/// SHA-256.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// What the hash of one event covers, in addition to the previous hash.
pub(crate) struct Link<'a> {
    pub(crate) job: &'a str,
    pub(crate) sequence: u64,
    pub(crate) time_ms: i64,
    pub(crate) kind: &'a str,
    pub(crate) call: Option<&'a str>,
    pub(crate) attempt: u32,
    pub(crate) generation: u64,
    pub(crate) tokens: u64,
    pub(crate) payload_digest: &'a [u8],
}

impl Link<'_> {
    /// The hash of this event, given the previous hash. Strings are length-prefixed, so that no two events have the
    /// same encoding.
    pub(crate) fn hash(&self, previous: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut text = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        text(previous);
        text(self.job.as_bytes());
        text(self.kind.as_bytes());
        text(self.call.unwrap_or_default().as_bytes());
        text(self.payload_digest);
        hash.update(self.sequence.to_be_bytes());
        hash.update(self.time_ms.to_be_bytes());
        hash.update(self.attempt.to_be_bytes());
        hash.update(self.generation.to_be_bytes());
        hash.update(self.tokens.to_be_bytes());
        hash.finalize().into()
    }
}
