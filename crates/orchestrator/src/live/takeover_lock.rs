//! Access control for a sandbox that a user has taken over: others may watch, but only the holder's clients may type,
//! click, run commands or write files.
//!
//! The user who takes over gets a token once; the log contains only its digest. Callers are identified by the tokens
//! they present. A caller with a read-only key or a watch-only shared link may only watch.

use std::fmt;

use job::{Holder, JobId};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use uuid::Uuid;

use crate::core::Orchestrator;
use crate::error::OrchestratorError;

/// A caller who sends something to a sandbox, with the tokens that it presents. The tokens are never logged.
#[derive(Clone, Default)]
pub struct SandboxCaller {
    tokens: Vec<String>,
    is_view_only: bool,
}

impl fmt::Debug for SandboxCaller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SandboxCaller({} tokens)", self.tokens.len())
    }
}

impl SandboxCaller {
    #[must_use]
    pub fn with_tokens(tokens: Vec<String>) -> Self {
        Self { tokens, is_view_only: false }
    }

    /// Restricts the caller to watching, whether or not there is a holder.
    #[must_use]
    pub fn watching(self) -> Self {
        Self { is_view_only: true, ..self }
    }

    /// Whether this caller is the holder.
    pub(crate) fn is(&self, holder: &Holder) -> bool {
        self.tokens.iter().any(|token| digest_of_token(token) == holder.lock)
    }
}

/// Creates an unguessable token. Each UUID contributes at least 32 random bits from the operating system in addition
/// to the time.
pub(crate) fn new_token() -> String {
    let mut hash = Sha256::new();
    for _ in 0..8 {
        hash.update(Uuid::now_v7().as_bytes());
    }
    format!("takeover-{}", hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of a token, as it is logged. Safe to log, because the token is long and random.
pub(crate) fn digest_of_token(token: &str) -> String {
    hex(&Sha256::digest(token))
}

/// Lets only the holder of a sandbox through, or everybody while there is none.
#[derive(Debug, Clone)]
pub struct Gate {
    job: JobId,
    caller: SandboxCaller,
    holder: Option<watch::Receiver<Option<Holder>>>,
}

impl Gate {
    /// Whether the caller may send something now.
    ///
    /// # Errors
    /// Another user has taken over the sandbox, or the caller may only watch.
    pub fn check(&self) -> Result<(), OrchestratorError> {
        if self.caller.is_view_only {
            return Err(OrchestratorError::ViewOnly(self.job));
        }
        let Some(holder) = &self.holder else { return Ok(()) };
        match &*holder.borrow() {
            Some(holder) if !self.caller.is(holder) => {
                Err(OrchestratorError::TakenOver { job: self.job, by: holder.by.clone() })
            }
            _ => Ok(()),
        }
    }

    #[must_use]
    pub fn caller(&self) -> &SandboxCaller {
        &self.caller
    }

    /// Returns once the caller may no longer send anything.
    pub async fn closed(&self) {
        if self.caller.is_view_only {
            return;
        }
        let Some(mut holder) = self.holder.clone() else { return std::future::pending().await };
        let shut = |holder: &Option<Holder>| holder.as_ref().is_some_and(|holder| !self.caller.is(holder));
        if holder.wait_for(shut).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Orchestrator {
    /// The access check of a caller for the sandbox of a job.
    #[must_use]
    pub fn gate(&self, job: JobId, caller: SandboxCaller) -> Gate {
        let holder = self.core.live.get(job).map(|live| live.holder.subscribe());
        Gate { job, caller, holder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(caller: SandboxCaller, sender: &watch::Sender<Option<Holder>>) -> Gate {
        let job = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f".parse().unwrap();
        Gate { job, caller, holder: Some(sender.subscribe()) }
    }

    #[tokio::test]
    async fn only_the_holder_may_send_during_a_takeover() {
        let token = new_token();
        let sender = watch::Sender::new(None);
        let ada = gate(SandboxCaller::with_tokens(vec!["old".into(), token.clone()]), &sender);
        let bob = gate(SandboxCaller::default(), &sender);
        assert!(ada.check().is_ok() && bob.check().is_ok());
        sender.send_replace(Some(Holder { by: "Ada".into(), lock: digest_of_token(&token), since: 5 }));
        assert!(ada.check().is_ok());
        let error = bob.check().unwrap_err();
        assert!(error.to_string().contains("Ada"), "{error}");
        bob.closed().await;
        let guest = gate(SandboxCaller::with_tokens(vec![token]).watching(), &sender);
        assert!(guest.check().unwrap_err().to_string().contains("may only view"), "a token does not help");
        guest.closed().await;
        sender.send_replace(None);
        assert!(bob.check().is_ok());
    }

    #[test]
    fn tokens_are_unique_and_hidden_in_debug_output() {
        let (one, other) = (new_token(), new_token());
        assert_ne!(one, other);
        assert_eq!(format!("{:?}", SandboxCaller::with_tokens(vec![one])), "SandboxCaller(1 tokens)");
    }
}
