//! Who may do what: roles, API keys, and the people and programs that the log names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::JobId;
use crate::json::required_object;

/// What a caller may do. Each role may do what those before it may, for every job; a submitter alone is bound to its
/// own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks at every job and changes nothing.
    Viewer,
    /// Hands in jobs, and sees and steers these alone.
    Submitter,
    /// Sees and steers every job.
    Operator,
    /// Gives out and takes back keys, too.
    Admin,
}

impl Role {
    /// All roles, weakest first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Submitter, Self::Operator, Self::Admin];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Submitter => "submitter",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|role| role.name() == text)
            .ok_or_else(|| format!("`{text}` is not a role; there are {known}"))
    }
}

/// Names a key; not secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct KeyId(pub String);

impl KeyId {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for KeyId {
    fn from(id: String) -> Self {
        Self(id)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What a key may use. For absent values, only the limits of all keys apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeyLimits {
    /// Jobs and sandboxes of this key that work at once.
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// Jobs of this key that wait.
    #[schema(maximum = 1_000_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queued: Option<u32>,
    /// Requests in a second.
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    /// What the models of its jobs may cost in any 24 hours, in US dollars.
    #[schema(minimum = 0)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dollars_per_day: Option<f64>,
}

/// A key without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Names it.
    pub id: KeyId,
    /// Whose it is, for people.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// What it may use.
    #[serde(default)]
    pub limits: KeyLimits,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

/// A key to be made.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Whose it is: 1 to 64 letters, digits, `.`, `-`, `_` or `@`. No two keys have the same.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// What it may use.
    #[serde(default, deserialize_with = "required_object")]
    pub limits: KeyLimits,
}

/// Who handed a job in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitter {
    /// The key.
    pub key: KeyId,
    /// Its name when the job came.
    pub name: String,
}

/// The user who did something over the API, as it is logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Actor {
    /// The name of the key; `anybody` on a server without keys, `guest` for the holder of a shared link.
    pub name: String,
    /// The id of the key, which is unique; for a guest, the key of the user who shared the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
}

impl Actor {
    /// An actor without a key, or the system itself.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), key: None }
    }
}

impl From<&Key> for Actor {
    fn from(key: &Key) -> Self {
        Self { name: key.name.clone(), key: Some(key.id.clone()) }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(out, "{} (key {key})", self.name),
            None => out.write_str(&self.name),
        }
    }
}

impl From<&Key> for Submitter {
    fn from(key: &Key) -> Self {
        Self { key: key.id.clone(), name: key.name.clone() }
    }
}

/// Identifies a login; not secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub String);

impl SessionId {
    /// Letters and digits only.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SessionId {
    fn from(id: String) -> Self {
        Self(id)
    }
}

/// Identifies a link; does not grant access.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShareId(pub String);

impl ShareId {
    /// Letters and digits only.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ShareId {
    fn from(id: String) -> Self {
        Self(id)
    }
}

/// A link to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSharedLink {
    pub job: JobId,
    /// The view of the job, as named by the server.
    pub view: String,
    /// Whether visitors may type and click.
    pub may_use: bool,
    pub by: Actor,
    /// If set, the link becomes invalid when this login ends.
    pub session: Option<SessionId>,
    /// Expiry, in milliseconds since 1970.
    pub until_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLink {
    pub id: ShareId,
    pub job: JobId,
    /// The view of the job, as named by the server.
    pub view: String,
    /// Whether visitors may type and click.
    pub may_use: bool,
    pub by: Actor,
    /// If set, the link becomes invalid when this login ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// In milliseconds since 1970.
    pub created_ms: i64,
    /// Expiry, in milliseconds since 1970.
    pub until_ms: i64,
}

/// Current usage of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Jobs in the queue.
    pub queued: u32,
    /// Running jobs and sandboxes.
    pub running: u32,
    /// Sandboxes without a job.
    pub sandboxes: u32,
    /// Model cost of the last 24 hours.
    pub nanodollars: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_parse_from_their_names() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().unwrap_err().contains("viewer, submitter, operator, admin"));
    }
}
