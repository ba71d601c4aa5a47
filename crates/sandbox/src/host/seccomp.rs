//! The system calls that a sandbox may make, from `seccomp.json`.

use serde::Deserialize;
use serde_json::Value;

pub(crate) const SOURCE: &str = include_str!("seccomp.json");

/// The allowed and refused calls. Each backend converts them to its own format.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    pub(crate) allow: Vec<AllowGroup>,
    pub(crate) refuse: Vec<RefuseGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowGroup {
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "reason")]
    _reason: String,
    pub(crate) only: Option<String>,
    pub(crate) syscalls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefuseGroup {
    #[serde(rename = "group")]
    _group: String,
    #[serde(rename = "reason")]
    _reason: String,
    pub(crate) only: Option<String>,
    pub(crate) errno: i32,
    #[serde(default)]
    pub(crate) syscalls: Vec<String>,
    #[serde(default)]
    pub(crate) rules: Vec<Value>,
}

/// The parsed rules.
///
/// # Errors
/// Fails if the embedded data is invalid.
#[cfg(feature = "docker")]
pub(crate) fn rules() -> Result<Rules, String> {
    serde_json::from_str(SOURCE).map_err(|error| error.to_string())
}
