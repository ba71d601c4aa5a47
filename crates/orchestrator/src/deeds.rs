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
pub enum DeedKind {
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
pub struct PersonDeed {
    pub what: DeedKind,
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

impl PersonDeed {
    fn new(what: DeedKind) -> Self {
        Self { what, path: None, to: None, name: None, bytes: None, sha256: None, failed: None }
    }

    /// An action on a file.
    pub(crate) fn to_file(what: DeedKind, path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..Self::new(what) }
    }

    /// An action on a kernel or a terminal.
    pub(crate) fn to_named(what: DeedKind, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::new(what) }
    }

    /// Sets the new path or the link target.
    pub(crate) fn leading_to(self, to: &str) -> Self {
        Self { to: Some(to.to_owned()), ..self }
    }

    /// Sets the size and the digest of what was written.
    pub(crate) fn of_bytes(self, weighed: &Weighed) -> Self {
        Self { bytes: Some(weighed.bytes), sha256: Some(weighed.sha256()), ..self }
    }

    /// Describes the action in words, for the log of a job.
    #[must_use]
    pub fn describe(&self) -> String {
        let path = self.path.as_deref().unwrap_or_default();
        let (to, name) = (self.to.as_deref().unwrap_or_default(), self.name.as_deref().unwrap_or_default());
        let bytes = self.bytes.unwrap_or_default();
        let said = match self.what {
            DeedKind::FilePut => format!("put {path} ({bytes} bytes)"),
            DeedKind::DirectoryMade => format!("made the directory {path}"),
            DeedKind::LinkMade => format!("made {path} a link to {to}"),
            DeedKind::FileMoved => format!("moved {path} to {to}"),
            DeedKind::FileDeleted => format!("deleted {path}"),
            DeedKind::StdinGiven => format!("wrote {bytes} bytes to its standard input"),
            DeedKind::TerminalJoined => format!("came to the terminal {name}"),
            DeedKind::KernelInterrupted => format!("interrupted the kernel {name}"),
            DeedKind::KernelRestarted => format!("restarted the kernel {name}"),
        };
        match &self.failed {
            Some(why) => format!("{said}: in vain, {why}"),
            None => said,
        }
    }
}

/// Size and digest of a stream of bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Weighed {
    bytes: u64,
    digest: Sha256,
}

impl Weighed {
    /// The size and digest of one slice.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut weighed = Self::default();
        weighed.add(bytes);
        weighed
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
pub(crate) struct GivenInput(Arc<Mutex<Weighed>>);

impl GivenInput {
    pub(crate) fn add(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(bytes);
    }

    /// The action to log; `None` if nothing was written.
    fn deed(&self) -> Option<PersonDeed> {
        let weighed = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (weighed.bytes > 0).then(|| PersonDeed::new(DeedKind::StdinGiven).of_bytes(&weighed))
    }
}

impl Orchestrator {
    /// Logs an action, performs it, and logs the failure if it fails.
    pub(crate) async fn witness<T>(
        &self,
        id: JobId,
        deed: PersonDeed,
        act: impl Future<Output = Result<T, OrchestratorError>>,
    ) -> Result<T, OrchestratorError> {
        self.note_deed(id, deed.clone()).await?;
        let done = act.await;
        if let Err(error) = &done {
            // If this write fails too, the caller still gets the error of the action.
            let _ = self.note_deed(id, PersonDeed { failed: Some(error.to_string()), ..deed }).await;
        }
        done
    }

    /// Logs an action of the current actor; does nothing if there is no actor.
    pub(crate) async fn note_deed(&self, id: JobId, deed: PersonDeed) -> Result<(), OrchestratorError> {
        if self.actor().is_none() {
            return Ok(());
        }
        self.write_down(id, vec![EventBody::PersonActed(deed).into()]).await
    }

    /// At the end of a call, logs what was written to its stdin.
    pub(crate) async fn note_input(
        recorder: &Recorder,
        call: &CallRef,
        given: &GivenInput,
        actor: Option<&crate::access::Actor>,
    ) {
        if let (Some(deed), Some(_)) = (given.deed(), actor) {
            let event: NewEvent = EventBody::PersonActed(deed).of(call).done_by(actor);
            let _ = recorder.record(event).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_piece_by_piece_is_weighed_as_a_whole() {
        let given = GivenInput::default();
        assert_eq!(given.deed(), None);
        given.add(b"hel");
        given.clone().add(b"lo");
        let deed = given.deed().unwrap();
        assert_eq!((deed.bytes, deed.sha256), (Some(5), Some(Weighed::of(b"hello").sha256())));
        assert_eq!(
            Weighed::of(b"hello").sha256(),
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        );
    }

    #[test]
    fn a_deed_is_told_in_words() {
        let put = PersonDeed::to_file(DeedKind::FilePut, "a.txt").of_bytes(&Weighed::of(b"hi"));
        assert_eq!(put.describe(), "put a.txt (2 bytes)");
        let moved = PersonDeed::to_file(DeedKind::FileMoved, "a").leading_to("b");
        let failed = PersonDeed { failed: Some("there is no file `a`".into()), ..moved };
        assert_eq!(failed.describe(), "moved a to b: in vain, there is no file `a`");
    }
}
