//! Messages about services: programs that the guest keeps running for others, such as the X server or a notebook server.
//!
//! A service starts at its first use, is kept while someone uses it, stops when nobody has for a while, and is started
//! again when it crashes. The host defines it: what it sends with [`ServiceOrder::Open`] is taken when the service is
//! started; one that runs keeps the definition it was started with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Names a service: 1 to 32 lower-case letters, digits and `-`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(String);

/// A text that cannot name a service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the name of a service is 1 to 32 lower-case letters, digits and `-`")]
pub struct BadServiceName;

impl ServiceName {
    /// Checks a name.
    ///
    /// # Errors
    /// It has other characters, none, or too many.
    pub fn new(name: impl Into<String>) -> Result<Self, BadServiceName> {
        let name = name.into();
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if (1..=32).contains(&name.len()) && name.bytes().all(is_allowed) {
            Ok(Self(name))
        } else {
            Err(BadServiceName)
        }
    }

    /// A name that stands in the source; characters that are not allowed become `-`, so that it cannot fail.
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

    /// The name as text.
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

/// Where a service listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// A unix socket, by absolute path.
    Unix(String),
    /// A TCP port on the sandbox's loopback.
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
    /// When it has printed a line with this text.
    Printed(String),
}

/// Defines a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// Its name; one service of a name runs at a time.
    pub name: ServiceName,
    /// The program, found through `PATH` of the environment, and its arguments. It runs as the agent's user.
    pub program: Vec<String>,
    /// The whole environment; the guest adds nothing but `CAISSON_CALL`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Working directory, absolute. `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// When it is ready.
    pub ready: Readiness,
    /// How long a start may take.
    #[serde(default = "default_start_ms")]
    pub start_timeout_ms: u64,
    /// Stopped when nobody has used it for so long; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Services that must run before it, and for as long as it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<ServiceSpec>,
}

fn default_start_ms() -> u64 {
    30_000
}

/// What to do with a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum ServiceOrder {
    /// Starts it where needed, waits until it is ready and connects to the endpoint. Answer: [`crate::Reply::Done`],
    /// then raw bytes both ways. The service is in use as long as the stream is open.
    Open {
        /// The service.
        service: ServiceSpec,
        /// Where to connect: its own endpoint or one of a service that it requires.
        endpoint: Endpoint,
    },
    /// Starts it where needed and waits until it is ready. Answer: [`crate::Reply::Done`].
    Start {
        /// The service.
        service: ServiceSpec,
    },
    /// Answer: [`crate::Reply::Services`], all that were ever started, by name.
    Status,
    /// Stops it; those who use it are cut off. Answer when it has ended: [`crate::Reply::Done`].
    Stop {
        /// The service.
        name: ServiceName,
    },
    /// Stops it and starts it again. Answer when it is ready: [`crate::Reply::Done`].
    Restart {
        /// The service.
        name: ServiceName,
    },
    /// The newest output. Answer: [`crate::Reply::ServiceLog`].
    Log {
        /// The service.
        name: ServiceName,
    },
}

/// Where a service stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// It does not run.
    Stopped,
    /// It was started and is not ready.
    Starting,
    /// It is ready.
    Running,
    /// It has crashed and will be started again.
    Restarting,
    /// It is being ended.
    Stopping,
    /// It could not be started; the next use tries again.
    Failed,
}

/// Facts about a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: ServiceName,
    /// Where it stands.
    pub state: ServiceState,
    /// Its process inside the sandbox, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Who uses it now.
    pub users: u32,
    /// How often it was started.
    pub starts: u32,
    /// How often it has ended without being told to.
    pub crashes: u32,
    /// Why it failed or crashed last.
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
