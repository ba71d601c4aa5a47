//! Actions of API users in the sandbox of a job that are not calls, as they are logged.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserActionKind {
    FilePut,
    DirectoryMade,
    LinkMade,
    FileMoved,
    FileDeleted,
    /// Wrote to the stdin of a running process.
    StdinGiven,
    /// Attached to a terminal that another client had opened.
    TerminalJoined,
    KernelInterrupted,
    KernelRestarted,
}

/// An action of an API user in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserAction {
    pub what: UserActionKind,
    /// Relative to the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The new path of a moved file, or the target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The kernel, or the session of the terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of bytes written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// SHA-256 of the written bytes, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Why the action failed. An event without this field is written before the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl UserAction {
    pub fn new(what: UserActionKind) -> Self {
        Self { what, path: None, to: None, name: None, bytes: None, sha256: None, failed: None }
    }

    /// An action on a file.
    pub fn to_file(what: UserActionKind, path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..Self::new(what) }
    }

    /// An action on a kernel or a terminal.
    pub fn on_named(what: UserActionKind, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::new(what) }
    }

    /// Sets the new path or the link target.
    pub fn with_target(self, to: &str) -> Self {
        Self { to: Some(to.to_owned()), ..self }
    }

    /// Sets the size and the digest of what was written.
    pub fn with_content(self, content: &ContentDigest) -> Self {
        Self { bytes: Some(content.bytes), sha256: Some(content.sha256()), ..self }
    }

    /// Describes the action in words, for the log of a job.
    #[must_use]
    pub fn describe(&self) -> String {
        let path = self.path.as_deref().unwrap_or_default();
        let (to, name) = (self.to.as_deref().unwrap_or_default(), self.name.as_deref().unwrap_or_default());
        let bytes = self.bytes.unwrap_or_default();
        let description = match self.what {
            UserActionKind::FilePut => format!("put {path} ({bytes} bytes)"),
            UserActionKind::DirectoryMade => format!("created the directory {path}"),
            UserActionKind::LinkMade => format!("created the link {path} to {to}"),
            UserActionKind::FileMoved => format!("moved {path} to {to}"),
            UserActionKind::FileDeleted => format!("deleted {path}"),
            UserActionKind::StdinGiven => format!("wrote {bytes} bytes to stdin"),
            UserActionKind::TerminalJoined => format!("joined the terminal {name}"),
            UserActionKind::KernelInterrupted => format!("interrupted the kernel {name}"),
            UserActionKind::KernelRestarted => format!("restarted the kernel {name}"),
        };
        match &self.failed {
            Some(why) => format!("{description}: failed, {why}"),
            None => description,
        }
    }
}

/// Size and digest of a stream of bytes.
#[derive(Debug, Clone, Default)]
pub struct ContentDigest {
    bytes: u64,
    digest: Sha256,
}

impl ContentDigest {
    /// The size and digest of one slice.
    pub fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.add(bytes);
        content
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.digest.update(bytes);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// SHA-256 in hexadecimal.
    pub fn sha256(&self) -> String {
        self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
