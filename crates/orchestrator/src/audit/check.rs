//! Compares a log with its own chain and with heads. Pure: rows in, faults out.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::head::{SignedHead, hex};
use super::stored::{FileAudit, FileState};
use super::tombstone::Tombstone;
use super::trust::TrustedKeys;
use crate::ids::{JobId, Sequence};
use crate::store::{Link, digest};

/// The most faults of one job that are told; the first says most.
const MOST_FAULTS: usize = 20;

/// What the check of a data folder found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditReport {
    /// Whether nothing is wrong.
    pub is_sound: bool,
    /// How many jobs were deleted, by signed statements of the server.
    pub deleted: u64,
    /// Each job that was looked at.
    pub jobs: Vec<JobAudit>,
}

/// What the check of one job found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct JobAudit {
    /// The job.
    pub job: JobId,
    /// How many events there are.
    pub events: u64,
    /// How many of them have lost their payload to retention; the chain covers its digest, so this is no fault.
    pub dropped_payloads: u64,
    /// How many signed heads of the database were compared.
    pub heads: u64,
    /// How many heads that were kept elsewhere were compared.
    pub kept_heads: u64,
    /// The newest event that a head covers; what came after it is held by the chain alone.
    pub signed_until: Sequence,
    /// The statement that the job was deleted, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Tombstone>,
    /// The files beside the log whose digests the log has; `caisson audit verify` looks at them once a job is over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileAudit>,
    /// What is wrong; empty where nothing is.
    pub faults: Vec<String>,
}

impl JobAudit {
    fn new(job: JobId) -> Self {
        Self {
            job,
            events: 0,
            dropped_payloads: 0,
            heads: 0,
            kept_heads: 0,
            signed_until: 0,
            deletion: None,
            files: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Of a job that is not there: deleted, by a statement that counts and that every kept head fits, or removed by hand.
    pub(crate) fn gone(
        job: JobId,
        kept: &[SignedHead],
        deletion: Option<Tombstone>,
        trusted: &TrustedKeys,
    ) -> Self {
        let mut faults = Vec::new();
        if let Some(tombstone) = &deletion {
            faults.extend(tombstone.fault(trusted));
            faults.extend(kept.iter().filter_map(|head| tombstone.fault_beside(head)).take(MOST_FAULTS));
        } else {
            let newest = kept.iter().map(|head| head.sequence).max().unwrap_or_default();
            faults.push(format!(
                "the job was removed by hand: a head of event {newest} was kept, there are no events, and no statement that it was deleted"
            ));
        }
        Self { kept_heads: kept.len() as u64, deletion, faults, ..Self::new(job) }
    }

    /// Takes in how the files beside the log are.
    pub(crate) fn with_files(mut self, files: Vec<FileAudit>) -> Self {
        for file in files.iter().filter(|file| file.state == FileState::Changed) {
            self.faults
                .push(format!("{} was changed: it is not the file whose digest the log has", file.name));
        }
        Self { files, ..self }
    }
}

/// An event as it lies in the database.
pub(crate) struct Row {
    pub(crate) sequence: Sequence,
    pub(crate) time_ms: i64,
    pub(crate) kind: String,
    pub(crate) call: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) generation: u64,
    pub(crate) tokens: u64,
    /// What it says; `None` where it was dropped, an error where it cannot be read.
    pub(crate) payload: Result<Option<Vec<u8>>, String>,
    pub(crate) digest: Vec<u8>,
    pub(crate) hash: Vec<u8>,
}

/// Looks at the events of one job, in their order.
pub(crate) struct Checker {
    audit: JobAudit,
    job: String,
    head: Vec<u8>,
    /// The hashes that heads speak of, as the events have them.
    wanted: BTreeMap<Sequence, Option<String>>,
    stored: Vec<SignedHead>,
    kept: Vec<SignedHead>,
    trusted: TrustedKeys,
    /// Of which kinds retention has dropped the payloads.
    may_lack: fn(&str) -> bool,
}

impl Checker {
    pub(crate) fn new(
        job: JobId,
        stored: Vec<SignedHead>,
        kept: Vec<SignedHead>,
        trusted: &TrustedKeys,
        may_lack: fn(&str) -> bool,
    ) -> Self {
        let wanted = stored.iter().chain(&kept).map(|head| (head.sequence, None)).collect();
        let audit =
            JobAudit { heads: stored.len() as u64, kept_heads: kept.len() as u64, ..JobAudit::new(job) };
        Self {
            audit,
            job: job.to_string(),
            head: Vec::new(),
            wanted,
            stored,
            kept,
            trusted: trusted.clone(),
            may_lack,
        }
    }

    fn fault(&mut self, text: String) {
        if self.audit.faults.len() < MOST_FAULTS {
            self.audit.faults.push(text);
        }
    }

    /// Looks at the next event.
    pub(crate) fn take(&mut self, row: &Row) {
        let expected = self.audit.events + 1;
        if row.sequence != expected {
            self.fault(format!("event {expected} is missing: after {} comes {}", expected - 1, row.sequence));
            self.audit.events = row.sequence.saturating_sub(1);
        }
        self.audit.events += 1;
        match &row.payload {
            Ok(Some(payload)) if digest(payload).as_slice() != row.digest => {
                self.fault(format!("event {}: its payload was changed", row.sequence));
            }
            Ok(Some(_)) => {}
            Ok(None) if (self.may_lack)(&row.kind) => self.audit.dropped_payloads += 1,
            Ok(None) => {
                self.fault(format!("event {}: its payload was removed, and not by retention", row.sequence));
            }
            Err(why) => self.fault(format!("event {}: its payload cannot be read: {why}", row.sequence)),
        }
        let link = Link {
            job: &self.job,
            sequence: row.sequence,
            time_ms: row.time_ms,
            kind: &row.kind,
            call: row.call.as_deref(),
            attempt: row.attempt,
            generation: row.generation,
            tokens: row.tokens,
            payload_digest: &row.digest,
        };
        if link.hash(&self.head).as_slice() != row.hash {
            self.fault(format!(
                "event {}: its hash does not fit: it was changed, or one before it was taken away or put in",
                row.sequence
            ));
        }
        // Go on from what is stored, so that one fault is told once.
        self.head.clone_from(&row.hash);
        if let Some(place) = self.wanted.get_mut(&row.sequence) {
            *place = Some(hex(&row.hash));
        }
    }

    /// Compares the end with what the job's own row says, and everything with the heads.
    pub(crate) fn finish(mut self, next_sequence: Sequence, head_hash: &[u8]) -> JobAudit {
        if next_sequence != self.audit.events + 1 {
            let (last, events) = (next_sequence.saturating_sub(1), self.audit.events);
            self.fault(format!("the job has had {last} events, and the last one that is there is {events}"));
        } else if head_hash != self.head {
            self.fault("the hash of the last event is not the one that the job knows".into());
        }
        let (stored, kept) = (std::mem::take(&mut self.stored), std::mem::take(&mut self.kept));
        for head in &stored {
            if self.trusted.has(&head.key) {
                self.compare("signed", head);
            } else {
                let SignedHead { sequence, key, .. } = head;
                self.fault(format!(
                    "the signed head of event {sequence} is by a key that does not count, {key}"
                ));
            }
        }
        for head in &kept {
            self.compare("kept", head);
        }
        self.audit
    }

    fn compare(&mut self, place: &str, head: &SignedHead) {
        let SignedHead { sequence, .. } = head;
        if !head.is_signed() {
            return self.fault(format!("the {place} head of event {sequence} has a false signature"));
        }
        match self.wanted.get(sequence).cloned().flatten() {
            None => self.fault(format!("event {sequence}, of which there is a {place} head, is missing")),
            Some(hash) if hash != head.hash => self.fault(format!(
                "event {sequence} or one before it is not what it was when its {place} head was signed"
            )),
            Some(_) => self.audit.signed_until = self.audit.signed_until.max(*sequence),
        }
    }
}
