//! The section `[namespace]`: settings of the namespace backend.

use anyhow::{Result, ensure};
use sandbox::namespace::{DEFAULT_SLOTS, UIDS_PER_SANDBOX};
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawNamespace {
    pub(crate) first_uid: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) cgroup_parent: Option<String>,
    pub(crate) list_files: Option<bool>,
    pub(crate) disk_overcommit: Option<bool>,
}

/// Checked settings; `None` means the backend's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceSettings {
    pub(crate) first_uid: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) cgroup_parent: Option<String>,
    /// Whether to log the files that jobs access.
    pub(crate) list_files: Option<bool>,
    /// Whether the disks of all sandboxes together may be larger than the host's disk.
    pub(crate) disk_overcommit: bool,
}

/// Checks the section.
pub(crate) fn settings(raw: RawNamespace) -> Result<NamespaceSettings> {
    if let Some(parent) = &raw.cgroup_parent {
        let good =
            !parent.is_empty() && parent.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        ensure!(good, "namespace.cgroup_parent: `{parent}` is not a plain name");
    }
    if let Some(slots) = raw.slots {
        ensure!((1..=32_768).contains(&slots), "namespace.slots: {slots} is not between 1 and 32768");
    }
    if let Some(first_uid) = raw.first_uid {
        // The highest id is reserved.
        let slots = raw.slots.unwrap_or(DEFAULT_SLOTS);
        let most = (u32::MAX - 1).saturating_sub(slots.saturating_mul(UIDS_PER_SANDBOX));
        ensure!(
            (1..=most).contains(&first_uid),
            "namespace.first_uid: {first_uid} is not between 1 and {most}: {slots} sandboxes (namespace.slots) have \
             {UIDS_PER_SANDBOX} ids each from there on"
        );
    }
    Ok(NamespaceSettings {
        first_uid: raw.first_uid,
        slots: raw.slots,
        cgroup_parent: raw.cgroup_parent,
        list_files: raw.list_files,
        disk_overcommit: raw.disk_overcommit.unwrap_or(true),
    })
}
