//! Messages about services: long-running programs that the guest supervises, such as the X server or a notebook
//! server.
//!
//! A service starts on first use, runs while it is in use, stops after an idle time, and restarts after a crash. The
//! host defines it. The guest applies the definition in [`ServiceRequest::Open`] when it starts the service; a running
//! service keeps the definition it was started with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The name of a service: 1 to 32 lower-case letters, digits and `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(String);

/// The error for an invalid service name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the name of a service is 1 to 32 lower-case letters, digits and `-`")]
pub struct BadServiceName;

impl ServiceName {
    /// Validates a name.
    ///
    /// # Errors
    /// The name is empty, too long, or contains other characters.
    pub fn new(name: impl Into<String>) -> Result<Self, BadServiceName> {
        let name = name.into();
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if (1..=32).contains(&name.len()) && name.bytes().all(is_allowed) {
            Ok(Self(name))
        } else {
            Err(BadServiceName)
        }
    }

    /// Creates a name from a literal. Replaces invalid characters with `-`, so it cannot fail.
    #[must_use]
    pub fn fixed(name: &'static str) -> Self {
        Self::new(name).unwrap_or_else(|_| {
            let letters = name.chars().map(|letter| match letter {
                'a'..='z' | '0'..='9' => letter,
                _ => '-',
            });
            Self(letters.chain(['-']).take(32).collect())
        })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ServiceName {
    type Error = BadServiceName;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::new(name)
    }
}

impl From<ServiceName> for String {
    fn from(name: ServiceName) -> Self {
        name.0
    }
}

impl std::fmt::Display for ServiceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// An address of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// The absolute path of a Unix socket.
    Unix(String),
    /// A TCP port on the sandbox's loopback interface.
    Port(u16),
}

/// When a service counts as ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Readiness {
    /// As soon as its program runs.
    Started,
    /// When the endpoint accepts a connection.
    Accepts(Endpoint),
    /// When the file exists.
    File(String),
    /// When it has printed a line that contains this text.
    Printed(String),
}

/// The definition of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// At most one service of a name runs at a time.
    pub name: ServiceName,
    /// The program, looked up in the `PATH` of `environment`, and its arguments. It runs as the agent's user.
    pub program: Vec<String>,
    /// The whole environment. The guest adds only `CAISSON_CALL`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Absolute path of the working directory; `/workspace` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    pub ready: Readiness,
    /// How long the service may take to become ready.
    #[serde(default = "default_start_ms")]
    pub start_timeout_ms: u64,
    /// Stops the service after this time without users. If absent, it never stops for being idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Services that must be running before this one starts and while it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<ServiceSpec>,
}

fn default_start_ms() -> u64 {
    30_000
}

/// A request about a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum ServiceRequest {
    /// Starts the service if it is not running, waits until it is ready and connects to the endpoint. Reply:
    /// [`crate::Reply::Done`], then raw bytes both ways. The service is in use while the stream is open.
    Open {
        service: ServiceSpec,
        /// An endpoint of the service itself or of a service that it requires.
        endpoint: Endpoint,
    },
    /// Starts the service if it is not running and waits until it is ready. Reply: [`crate::Reply::Done`].
    Start { service: ServiceSpec },
    /// Lists every service that was ever started, sorted by name. Reply: [`crate::Reply::Services`].
    Status,
    /// Stops the service and disconnects its users. Reply when it has ended: [`crate::Reply::Done`].
    Stop { name: ServiceName },
    /// Stops and starts the service. Reply when it is ready: [`crate::Reply::Done`].
    Restart { name: ServiceName },
    /// Returns the newest output. Reply: [`crate::Reply::ServiceLog`].
    Log { name: ServiceName },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    Stopped,
    /// Started, but not ready.
    Starting,
    /// Ready.
    Running,
    /// Crashed; the guest will start it again.
    Restarting,
    Stopping,
    /// Could not be started. The next use tries again.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub name: ServiceName,
    pub state: ServiceState,
    /// The process ID inside the sandbox, if the service is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Number of users at the moment.
    pub users: u32,
    /// How often the guest has started the service.
    pub starts: u32,
    /// How often the service ended without a request to stop.
    pub crashes: u32,
    /// The reason of the last failure or crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::ServiceName;

    #[test]
    fn a_name_that_could_be_a_path_is_refused() {
        for name in ["", "../x", "a b", "Upper", &"x".repeat(33)] {
            assert!(ServiceName::new(name).is_err(), "{name}");
            let json = serde_json::to_string(name).unwrap();
            assert!(serde_json::from_str::<ServiceName>(&json).is_err(), "{name}");
        }
        assert_eq!(ServiceName::new("desktop-1").unwrap().as_str(), "desktop-1");
    }
}
