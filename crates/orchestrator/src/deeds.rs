//! What people do in the sandbox of a job over the API that is no call: files that they put, move and delete, kernels that they
//! interrupt. It is in the chain of the job's log before it takes effect, and again with the reason where it came to nothing.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::OrchestratorError;
use crate::event::{CallRef, EventBody, NewEvent};
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::recorder::Recorder;

/// What somebody did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeedKind {
    /// Wrote a file.
    FilePut,
    /// Made a directory.
    DirectoryMade,
    /// Made a symbolic link.
    LinkMade,
    /// Moved a file or directory.
    FileMoved,
    /// Deleted a file or directory.
    FileDeleted,
    /// Wrote to the standard input of a process.
    StdinGiven,
    /// Came to a shell that somebody had opened before.
    TerminalJoined,
    /// Interrupted a kernel.
    KernelInterrupted,
    /// Started a kernel anew.
    KernelRestarted,
}

/// Something that somebody did in a sandbox, with what there is to know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonDeed {
    /// What.
    pub what: DeedKind,
    /// The file, relative to the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Where it was moved, or where the link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The kernel, or the session of the terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How many bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// SHA-256 of these bytes, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Why it came to nothing; an event without this says that it is about to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl PersonDeed {
    fn new(what: DeedKind) -> Self {
        Self { what, path: None, to: None, name: None, bytes: None, sha256: None, failed: None }
    }

    /// Something that is done to a file.
    pub(crate) fn to_file(what: DeedKind, path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..Self::new(what) }
    }

    /// Something that is done to a kernel or a terminal.
    pub(crate) fn to_named(what: DeedKind, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::new(what) }
    }

    /// The same with where it leads.
    pub(crate) fn leading_to(self, to: &str) -> Self {
        Self { to: Some(to.to_owned()), ..self }
    }

    /// The same with what was written.
    pub(crate) fn of_bytes(self, weighed: &Weighed) -> Self {
        Self { bytes: Some(weighed.bytes), sha256: Some(weighed.sha256()), ..self }
    }

    /// In words, for the log of a job.
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

/// Bytes as they pass: how many, and their digest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Weighed {
    bytes: u64,
    digest: Sha256,
}

impl Weighed {
    /// All at once.
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

/// What is written to the standard input of a process while it runs. Shared by who writes and who keeps the log.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenInput(Arc<Mutex<Weighed>>);

impl GivenInput {
    pub(crate) fn add(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(bytes);
    }

    /// What there was of it, where there was any.
    fn deed(&self) -> Option<PersonDeed> {
        let weighed = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (weighed.bytes > 0).then(|| PersonDeed::new(DeedKind::StdinGiven).of_bytes(&weighed))
    }
}

impl Orchestrator {
    /// Writes down what somebody is about to do, lets it be done, and writes down where it came to nothing.
    pub(crate) async fn witness<T>(
        &self,
        id: JobId,
        deed: PersonDeed,
        act: impl Future<Output = Result<T, OrchestratorError>>,
    ) -> Result<T, OrchestratorError> {
        self.note_deed(id, deed.clone()).await?;
        let done = act.await;
        if let Err(error) = &done {
            // The first failure is what the caller wants to hear of.
            let _ = self.note_deed(id, PersonDeed { failed: Some(error.to_string()), ..deed }).await;
        }
        done
    }

    /// Writes down what somebody does; nothing where nobody does it.
    pub(crate) async fn note_deed(&self, id: JobId, deed: PersonDeed) -> Result<(), OrchestratorError> {
        if self.actor().is_none() {
            return Ok(());
        }
        self.write_down(id, vec![EventBody::PersonActed(deed).into()]).await
    }

    /// Writes down, at the end of a call, what was written to its standard input meanwhile.
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
