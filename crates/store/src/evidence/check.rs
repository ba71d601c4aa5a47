//! Verifies an event log against its hash chain and signed heads. Pure: rows in, faults out.

use std::collections::BTreeMap;

use job::{JobId, Sequence};
use serde::Serialize;
use utoipa::ToSchema;

use crate::chain::{Link, digest};
use crate::evidence::file_digests::{FileAudit, FileState};
use crate::evidence::head::{MAX_UNSIGNED_MS, SignedHead, hex};
use crate::evidence::tombstone::Tombstone;
use crate::evidence::trust::TrustedKeys;

/// Maximum number of faults reported per job; the first ones say the most.
const MAX_FAULTS: usize = 20;

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
    /// How many events at the end of a job that goes on are not yet covered by a head of the database: a server signs them within a
    /// minute, or when it starts. A job that is over has none: its end and the head over it are written together.
    pub unsigned_events: u64,
    /// Which removals of heads would have been found.
    pub heads_checked: HeadsChecked,
    /// The statement that the job was deleted, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Tombstone>,
    /// The files beside the log whose digests the log has; `caisson audit verify` looks at them once a job is over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileAudit>,
    /// What is wrong; empty where nothing is.
    pub faults: Vec<String>,
}

/// Which removals of heads the check of a job would have found, besides those of a head between others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct HeadsChecked {
    /// Those of the newest, up to this event: the newest that a head kept elsewhere covers. Absent where none was kept: nothing in
    /// the folder can tell of newest heads that were removed together with the events that they cover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_until: Option<Sequence>,
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
            unsigned_events: 0,
            heads_checked: HeadsChecked { newest_until: None },
            deletion: None,
            files: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// The result for a job that is not in the database: deleted, if there is a trusted deletion statement that every
    /// kept head is consistent with, or else removed by hand.
    pub(crate) fn gone(
        job: JobId,
        kept: &[SignedHead],
        deletion: Option<Tombstone>,
        trusted: &TrustedKeys,
    ) -> Self {
        let mut faults = Vec::new();
        if let Some(tombstone) = &deletion {
            faults.extend(tombstone.fault(trusted));
            faults.extend(kept.iter().filter_map(|head| tombstone.contradiction_with(head)).take(MAX_FAULTS));
        } else {
            let newest = kept.iter().map(|head| head.sequence).max().unwrap_or_default();
            faults.push(format!(
                "the job was removed by hand: a head of event {newest} was kept, there are no events, and no statement that it was deleted"
            ));
        }
        Self { kept_heads: kept.len() as u64, deletion, faults, ..Self::new(job) }
    }

    /// Adds the state of the files beside the log.
    pub(crate) fn with_files(mut self, files: Vec<FileAudit>) -> Self {
        for file in files.iter().filter(|file| file.state == FileState::Changed) {
            self.faults.push(format!("{} was changed: it is not what the log has of it", file.name));
        }
        self.files.extend(files);
        self.files.sort_by(|one, other| one.name.cmp(&other.name));
        self
    }

    pub(crate) fn with_faults(mut self, faults: Vec<String>) -> Self {
        self.faults.extend(faults);
        self
    }
}

/// An event as stored in the database.
pub(crate) struct Row {
    pub(crate) sequence: Sequence,
    pub(crate) time_ms: i64,
    pub(crate) kind: String,
    pub(crate) call: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) generation: u64,
    pub(crate) tokens: u64,
    /// The payload: `None` if it was dropped, an error if it cannot be read.
    pub(crate) payload: Result<Option<Vec<u8>>, String>,
    pub(crate) digest: Vec<u8>,
    pub(crate) hash: Vec<u8>,
}

/// What the check needs to know beside the events themselves.
pub(crate) struct LogEnd {
    /// The next sequence number, according to the job's row.
    pub(crate) next_sequence: Sequence,
    /// The hash of the last event, according to the job's row.
    pub(crate) head_hash: Vec<u8>,
    /// Whether the job is over, according to its log.
    pub(crate) is_over: bool,
    /// When the newest head of any job was signed.
    pub(crate) newest_head_ms: i64,
}

/// Checks the events of one job, in order.
pub(crate) struct Checker {
    audit: JobAudit,
    job: String,
    head: Vec<u8>,
    /// The hash of each event that a head refers to, as computed from the events.
    wanted: BTreeMap<Sequence, Option<String>>,
    /// When the event right after each head in the database was written.
    following: BTreeMap<Sequence, i64>,
    stored: Vec<SignedHead>,
    kept: Vec<SignedHead>,
    trusted: TrustedKeys,
    /// The event kinds whose payloads retention has dropped.
    is_droppable: fn(&str) -> bool,
}

impl Checker {
    pub(crate) fn new(
        job: JobId,
        stored: Vec<SignedHead>,
        kept: Vec<SignedHead>,
        trusted: &TrustedKeys,
        is_droppable: fn(&str) -> bool,
    ) -> Self {
        let wanted = stored.iter().chain(&kept).map(|head| (head.sequence, None)).collect();
        let following =
            stored.iter().map(|head| (head.sequence + 1, i64::MAX)).chain([(1, i64::MAX)]).collect();
        let audit =
            JobAudit { heads: stored.len() as u64, kept_heads: kept.len() as u64, ..JobAudit::new(job) };
        Self {
            audit,
            job: job.to_string(),
            head: Vec::new(),
            wanted,
            following,
            stored,
            kept,
            trusted: trusted.clone(),
            is_droppable,
        }
    }

    fn fault(&mut self, text: String) {
        if self.audit.faults.len() < MAX_FAULTS {
            self.audit.faults.push(text);
        }
    }

    /// Checks the next event.
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
            Ok(None) if (self.is_droppable)(&row.kind) => self.audit.dropped_payloads += 1,
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
        // Continue from the stored hash, so that one fault is reported once.
        self.head.clone_from(&row.hash);
        if let Some(place) = self.wanted.get_mut(&row.sequence) {
            *place = Some(hex(&row.hash));
        }
        if let Some(time_ms) = self.following.get_mut(&row.sequence) {
            *time_ms = row.time_ms;
        }
    }

    /// Compares the end of the log with the job's row, and the whole log with the heads.
    pub(crate) fn finish(mut self, end: &LogEnd) -> JobAudit {
        let LogEnd { next_sequence, head_hash, .. } = end;
        if *next_sequence != self.audit.events + 1 {
            let (last, events) = (next_sequence.saturating_sub(1), self.audit.events);
            self.fault(format!("the job has had {last} events, and the last one that is there is {events}"));
        } else if *head_hash != self.head {
            self.fault("the hash of the last event is not the one that the job knows".into());
        }
        let (stored, kept) = (std::mem::take(&mut self.stored), std::mem::take(&mut self.kept));
        self.check_chain_of(&stored);
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
        self.check_tail(end);
        for head in &kept {
            self.compare("kept", head);
            if !stored.contains(head) {
                let sequence = head.sequence;
                self.fault(format!(
                    "the kept head of event {sequence} is not in the database: it was removed"
                ));
            }
            let until = &mut self.audit.heads_checked.newest_until;
            *until = (*until).max(Some(head.sequence));
        }
        self.audit
    }

    /// Each head names the one before, so that none can be removed from between others.
    fn check_chain_of(&mut self, stored: &[SignedHead]) {
        let mut before: Option<&SignedHead> = None;
        for head in stored {
            let SignedHead { sequence, number, previous, .. } = head;
            let due = before.map_or(0, |head| head.number) + 1;
            if *number > due {
                let last = number - 1;
                self.fault(format!(
                    "before the signed head of event {sequence} heads {due} to {last} are missing"
                ));
            } else if *number < due || *previous != before.map(SignedHead::digest) {
                self.fault(format!(
                    "the signed head of event {sequence} does not follow the one before it: that one was removed or replaced"
                ));
            }
            before = Some(head);
        }
    }

    /// A head always covers the last events of a finished job; those of an unfinished one may be uncovered only while
    /// they are new. Must be called after the heads of the database, and no others, have been compared.
    fn check_tail(&mut self, end: &LogEnd) {
        let (events, signed) = (self.audit.events, self.audit.signed_until);
        if signed >= events {
            return;
        }
        if end.is_over {
            return self.fault(format!(
                "the job is over and no valid signed head covers its last event, {events}: heads were removed, or the log was rewritten"
            ));
        }
        self.audit.unsigned_events = events - signed;
        let since_ms = self.following.get(&(signed + 1)).copied().unwrap_or(i64::MAX);
        if since_ms < end.newest_head_ms.saturating_sub(MAX_UNSIGNED_MS) {
            let next = signed + 1;
            self.fault(format!(
                "no valid signed head covers event {next} and those after it, although later heads of other jobs were signed: heads were removed"
            ));
        }
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
