//! Actions of API users in the sandbox of a job that are not calls, such as writing, moving and deleting files or
//! interrupting kernels. An action is appended to the job's log before it takes effect, and again with the reason if
//! it fails.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::OrchestratorError;
use crate::event::{CallRef, EventBody, NewEvent};
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::recorder::Recorder;

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
    fn new(what: UserActionKind) -> Self {
        Self { what, path: None, to: None, name: None, bytes: None, sha256: None, failed: None }
    }

    /// An action on a file.
    pub(crate) fn to_file(what: UserActionKind, path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..Self::new(what) }
    }

    /// An action on a kernel or a terminal.
    pub(crate) fn on_named(what: UserActionKind, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::new(what) }
    }

    /// Sets the new path or the link target.
    pub(crate) fn with_target(self, to: &str) -> Self {
        Self { to: Some(to.to_owned()), ..self }
    }

    /// Sets the size and the digest of what was written.
    pub(crate) fn with_content(self, content: &ContentDigest) -> Self {
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
            UserActionKind::DirectoryMade => format!("made the directory {path}"),
            UserActionKind::LinkMade => format!("made {path} a link to {to}"),
            UserActionKind::FileMoved => format!("moved {path} to {to}"),
            UserActionKind::FileDeleted => format!("deleted {path}"),
            UserActionKind::StdinGiven => format!("wrote {bytes} bytes to its standard input"),
            UserActionKind::TerminalJoined => format!("came to the terminal {name}"),
            UserActionKind::KernelInterrupted => format!("interrupted the kernel {name}"),
            UserActionKind::KernelRestarted => format!("restarted the kernel {name}"),
        };
        match &self.failed {
            Some(why) => format!("{description}: in vain, {why}"),
            None => description,
        }
    }
}

/// Size and digest of a stream of bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentDigest {
    bytes: u64,
    digest: Sha256,
}

impl ContentDigest {
    /// The size and digest of one slice.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.add(bytes);
        content
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.digest.update(bytes);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// SHA-256 in hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What was written to the stdin of a running process. Shared by the code that writes to stdin and the code that
/// logs.
#[derive(Debug, Clone, Default)]
pub(crate) struct StdinDigest(Arc<Mutex<ContentDigest>>);

impl StdinDigest {
    pub(crate) fn add(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(bytes);
    }

    /// The action to log; `None` if nothing was written.
    fn action(&self) -> Option<UserAction> {
        let content = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (content.bytes > 0).then(|| UserAction::new(UserActionKind::StdinGiven).with_content(&content))
    }
}

impl Orchestrator {
    /// Logs an action, performs it, and logs the failure if it fails.
    pub(crate) async fn audited<T>(
        &self,
        id: JobId,
        action: UserAction,
        act: impl Future<Output = Result<T, OrchestratorError>>,
    ) -> Result<T, OrchestratorError> {
        self.log_user_action(id, action.clone()).await?;
        let done = act.await;
        if let Err(error) = &done {
            // If this write fails too, the caller still gets the error of the action.
            let _ = self.log_user_action(id, UserAction { failed: Some(error.to_string()), ..action }).await;
        }
        done
    }

    /// Logs an action of the current actor; does nothing if there is no actor.
    pub(crate) async fn log_user_action(
        &self,
        id: JobId,
        action: UserAction,
    ) -> Result<(), OrchestratorError> {
        if self.actor().is_none() {
            return Ok(());
        }
        self.append_user_events(id, vec![EventBody::UserAction(action).into()]).await
    }

    /// At the end of a call, logs what was written to its stdin.
    pub(crate) async fn log_stdin(
        recorder: &Recorder,
        call: &CallRef,
        given: &StdinDigest,
        actor: Option<&crate::access::Actor>,
    ) {
        if let (Some(action), Some(_)) = (given.action(), actor) {
            let event: NewEvent = EventBody::UserAction(action).of(call).with_actor(actor);
            let _ = recorder.record(event).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdin_digest_covers_all_writes() {
        let given = StdinDigest::default();
        assert_eq!(given.action(), None);
        given.add(b"hel");
        given.clone().add(b"lo");
        let action = given.action().unwrap();
        assert_eq!((action.bytes, action.sha256), (Some(5), Some(ContentDigest::of(b"hello").sha256())));
        assert_eq!(
            ContentDigest::of(b"hello").sha256(),
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        );
    }

    #[test]
    fn user_action_is_described_in_words() {
        let put =
            UserAction::to_file(UserActionKind::FilePut, "a.txt").with_content(&ContentDigest::of(b"hi"));
        assert_eq!(put.describe(), "put a.txt (2 bytes)");
        let moved = UserAction::to_file(UserActionKind::FileMoved, "a").with_target("b");
        let failed = UserAction { failed: Some("there is no file `a`".into()), ..moved };
        assert_eq!(failed.describe(), "moved a to b: in vain, there is no file `a`");
    }
}
