//! The signed statement that Caisson has deleted a job: the end of its log, who deleted it, and when. A job that is
//! missing without one was removed by hand.

use job::{JobId, KeyId, Sequence};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::evidence::head::{SignedHead, is_signature};
use crate::evidence::trust::TrustedKeys;

/// That a job was deleted, signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tombstone {
    /// The job.
    pub deleted_job: JobId,
    /// Its last event.
    pub sequence: Sequence,
    /// The hash of that event, in hexadecimal.
    pub hash: String,
    /// Who deleted it: the name of a key, `anybody` where there are none, `retention`, or `server`.
    pub by: String,
    /// The id of that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_key: Option<KeyId>,
    /// When, in milliseconds since 1970.
    pub time_ms: i64,
    /// The public key (Ed25519), in hexadecimal.
    pub key: String,
    /// The signature, in hexadecimal.
    pub signature: String,
}

impl Tombstone {
    /// The bytes that the signature covers. `by` may contain any characters, so it is encoded as JSON.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let Self { deleted_job, sequence, hash, by, by_key, time_ms, .. } = self;
        let by = serde_json::Value::from(by.as_str());
        let by_key = by_key.as_ref().map_or("-", KeyId::as_str);
        format!("caisson-deleted-1\n{deleted_job}\n{sequence}\n{hash}\n{by}\n{by_key}\n{time_ms}\n")
            .into_bytes()
    }

    /// Whether the signature matches the key in the statement.
    #[must_use]
    pub fn is_signed(&self) -> bool {
        is_signature(&self.key, &self.signature, &self.message())
    }

    /// What is wrong with the statement itself.
    pub(crate) fn fault(&self, trusted: &TrustedKeys) -> Option<String> {
        if !trusted.has(&self.key) {
            let key = &self.key;
            return Some(format!("the statement that it was deleted is by a key that does not count, {key}"));
        }
        (!self.is_signed()).then(|| "the statement that it was deleted has a false signature".to_owned())
    }

    /// Whether it contradicts a kept head: the log must have had that event when the job was deleted.
    pub(super) fn contradiction_with(&self, head: &SignedHead) -> Option<String> {
        let (sequence, last) = (head.sequence, self.sequence);
        if !head.is_signed() {
            return Some(format!("the kept head of event {sequence} has a false signature"));
        }
        if sequence > last {
            return Some(format!(
                "a head of event {sequence} was kept, and the log ended with event {last} when the job was deleted"
            ));
        }
        (sequence == last && head.hash != self.hash)
            .then(|| format!("event {sequence} was not what it was when its kept head was signed"))
    }
}
