//! An entry of the access log.

use std::net::IpAddr;

use job::KeyId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{now_ms, timestamp};

/// The caller name for requests without a valid key.
pub(crate) const NOBODY: &str = "nobody";
/// Longer paths are cut to this many bytes.
const MAX_PATH: usize = 256;

/// A request that changed something or was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct AccessLogEntry {
    /// When.
    #[schema(format = DateTime)]
    pub(crate) at: String,
    /// The name of the key; `anybody` on a server without keys, `guest` for the holder of a shared link, `nobody` without a
    /// valid key.
    pub(crate) who: String,
    /// The id of the key, which is unique although names may be reused; for a guest, the key of the user who shared the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The address that it came from.
    pub(crate) from: Option<String>,
    /// The method.
    pub(crate) method: String,
    /// The path, without the query.
    pub(crate) path: String,
    /// What was answered.
    pub(crate) status: u16,
    /// How many requests this line represents: of many similar requests, only the last one is logged.
    #[serde(default = "one")]
    #[schema(required, minimum = 1)]
    pub(crate) count: u64,
}

fn one() -> u64 {
    1
}

impl AccessLogEntry {
    pub(crate) fn new(who: &str, from: Option<IpAddr>, method: &str, path: &str, status: u16) -> Self {
        let end = path.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_PATH).last().unwrap_or(0);
        let path = if path.len() > MAX_PATH { &path[..end] } else { path };
        Self {
            at: timestamp(now_ms()),
            who: who.to_owned(),
            key: None,
            from: from.map(|address| address.to_string()),
            method: method.to_owned(),
            path: path.to_owned(),
            status,
            count: 1,
        }
    }

    /// Sets the key that made the request.
    pub(crate) fn by_key(self, key: Option<&KeyId>) -> Self {
        Self { key: key.map(ToString::to_string), ..self }
    }

    pub(super) fn is_unauthenticated(&self) -> bool {
        self.who == NOBODY && self.key.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> AccessLogEntry {
        AccessLogEntry::new("ada", None, "POST", path, 202)
    }

    #[test]
    fn entry_without_count_is_parsed() {
        let line = r#"{"at":"2026-01-01T00:00:00Z","who":"ada","from":null,"method":"POST","path":"/","status":202}"#;
        let read = serde_json::from_str::<AccessLogEntry>(line).unwrap();
        assert_eq!((read.count, read.key), (1, None));
    }

    #[test]
    fn long_path_is_truncated() {
        assert_eq!(entry(&"é".repeat(1000)).path.len(), MAX_PATH);
        assert_eq!(entry("/short").path, "/short");
    }
}
