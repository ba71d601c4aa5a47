//! The lock on the sandbox of a job that a person has taken over: others may watch, only the holder's clients may type,
//! click, run or write.
//!
//! Whoever takes over gets a token once; the log has its digest alone. A visitor is known by the tokens that it shows. Who
//! came with a key that may only look, or by a link that was shared for watching, only watches.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::error::OrchestratorError;
use crate::ids::{JobId, Sequence};
use crate::orchestrator::Orchestrator;

/// Who holds the sandbox of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// A name for others to see.
    pub by: String,
    /// Digest of the token that the holder's clients show.
    pub lock: String,
    /// The event that says so: what comes after it is the holder's doing.
    #[schema(value_type = u64)]
    pub since: Sequence,
}

/// Whoever sends something to a sandbox: the tokens that it shows. They are in no log.
#[derive(Clone, Default)]
pub struct Visitor {
    tokens: Vec<String>,
    only_watches: bool,
}

impl fmt::Debug for Visitor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Visitor({} tokens)", self.tokens.len())
    }
}

impl Visitor {
    /// A caller who shows these tokens.
    #[must_use]
    pub fn with_tokens(tokens: Vec<String>) -> Self {
        Self { tokens, only_watches: false }
    }

    /// The same, who may only watch, whether there is a holder or not.
    #[must_use]
    pub fn watching(self) -> Self {
        Self { only_watches: true, ..self }
    }

    /// Whether this is the holder.
    pub(crate) fn is(&self, holder: &Holder) -> bool {
        self.tokens.iter().any(|token| lock_of(token) == holder.lock)
    }
}

/// A token that nobody guesses. Every id of this kind has at least 32 bits of its own from the system's generator beside
/// the time.
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

/// What the log has of a token. Nobody finds the token by it: it is long and random.
pub(crate) fn lock_of(token: &str) -> String {
    hex(&Sha256::digest(token))
}

/// Lets the holder of a sandbox through, and everybody while there is none.
#[derive(Debug, Clone)]
pub struct Gate {
    job: JobId,
    caller: Visitor,
    holder: Option<watch::Receiver<Option<Holder>>>,
}

impl Gate {
    /// Whether something may be sent now.
    ///
    /// # Errors
    /// Somebody else has taken the sandbox over, or this one may only watch.
    pub fn check(&self) -> Result<(), OrchestratorError> {
        if self.caller.only_watches {
            return Err(OrchestratorError::OnlyWatches(self.job));
        }
        let Some(holder) = &self.holder else { return Ok(()) };
        match &*holder.borrow() {
            Some(holder) if !self.caller.is(holder) => {
                Err(OrchestratorError::TakenOver { job: self.job, by: holder.by.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Who is meant.
    #[must_use]
    pub fn caller(&self) -> &Visitor {
        &self.caller
    }

    /// Returns when nothing may be sent any more.
    pub async fn closed(&self) {
        if self.caller.only_watches {
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
    /// The way of a caller into the sandbox of a job.
    #[must_use]
    pub fn gate(&self, job: JobId, caller: Visitor) -> Gate {
        let holder = self.core.live.get(job).map(|live| live.holder.subscribe());
        Gate { job, caller, holder }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(caller: Visitor, sender: &watch::Sender<Option<Holder>>) -> Gate {
        let job = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f".parse().unwrap();
        Gate { job, caller, holder: Some(sender.subscribe()) }
    }

    #[tokio::test]
    async fn only_the_holder_may_send_while_there_is_one() {
        let token = new_token();
        let sender = watch::Sender::new(None);
        let ada = gate(Visitor::with_tokens(vec!["old".into(), token.clone()]), &sender);
        let bob = gate(Visitor::default(), &sender);
        assert!(ada.check().is_ok() && bob.check().is_ok());
        sender.send_replace(Some(Holder { by: "Ada".into(), lock: lock_of(&token), since: 5 }));
        assert!(ada.check().is_ok());
        let error = bob.check().unwrap_err();
        assert!(error.to_string().contains("Ada"), "{error}");
        bob.closed().await;
        let guest = gate(Visitor::with_tokens(vec![token]).watching(), &sender);
        assert!(guest.check().unwrap_err().to_string().contains("watch"), "a token does not help");
        guest.closed().await;
        sender.send_replace(None);
        assert!(bob.check().is_ok());
    }

    #[test]
    fn tokens_differ_and_are_not_shown() {
        let (one, other) = (new_token(), new_token());
        assert_ne!(one, other);
        assert_eq!(format!("{:?}", Visitor::with_tokens(vec![one])), "Visitor(1 tokens)");
    }
}
