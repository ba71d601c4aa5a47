//! The section `[sandbox]`: settings of sandboxes in every backend.

use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSandbox {
    pub(crate) ready_disks: Option<usize>,
    pub(crate) disk_reserve_mib: Option<u64>,
    pub(crate) isolation: Option<RawIsolation>,
}

/// The minimum isolation for jobs that do not specify one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawIsolation {
    Landlock,
    Namespaces,
}

/// Settings for which every backend has a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxSettings {
    pub(crate) ready_disks: Option<usize>,
}
