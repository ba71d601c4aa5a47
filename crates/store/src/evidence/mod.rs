//! Tamper evidence for the event log: signed heads of its hash chain, digests of files beside it, and what is kept of
//! deleted jobs.

pub(crate) mod check;
pub(crate) mod dropped;
pub(crate) mod external_records;
pub(crate) mod file_digests;
pub(crate) mod head;
pub(crate) mod key;
pub(crate) mod tombstone;
pub(crate) mod trust;
