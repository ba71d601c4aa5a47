//! Asks a person about connections that the policy refuses.

use std::time::Duration;

use async_trait::async_trait;

use crate::policy::Rule;
use crate::refusal::Refusal;
use crate::target::Target;

/// A connection that the policy refuses and a person may allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub target: Target,
    /// The call that makes the connection, if known.
    pub call: Option<String>,
    /// Why the policy refuses it.
    pub refusal: Refusal,
    /// The narrowest rule that would allow it.
    pub rule: Rule,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Refused, or not answered yet.
    Refuse,
    /// Allow this connection only.
    Once,
    /// Allow this connection and from now on everything that the rule allows.
    Always(Rule),
}

/// Delivers questions to a person.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Asks a person. Returns the answer, or [`Answer::Refuse`] after `patience`. The question then stays open, and
    /// a later answer changes the policy for later connections.
    async fn ask(&self, question: Question, timeout: Duration) -> Answer;

    /// A connection that was allowed once could not be made: the next one that asks for the same may use the
    /// permission.
    async fn give_back(&self, _rule: &str) {}
}
