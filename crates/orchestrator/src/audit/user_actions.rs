//! Actions of API users in the sandbox of a job that are not calls, such as writing, moving and deleting files or
//! interrupting kernels. An action is appended to the job's log before it takes effect, and again with the reason if
//! it fails.

use std::sync::{Arc, Mutex, PoisonError};

use job::{CallRef, ContentDigest, EventBody, JobId, NewEvent, UserAction, UserActionKind};

use crate::core::Orchestrator;
use crate::error::OrchestratorError;
use crate::recorder::Recorder;

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
        (content.bytes() > 0).then(|| UserAction::new(UserActionKind::StdinGiven).with_content(&content))
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
        actor: Option<&job::Actor>,
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
        assert_eq!(failed.describe(), "moved a to b: failed, there is no file `a`");
    }
}
