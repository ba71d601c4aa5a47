//! Asking a person about what the policy refuses.

use std::time::Duration;

use async_trait::async_trait;

use crate::refusal::Refusal;
use crate::rule::Rule;
use crate::target::Target;

/// A connection that the policy refuses and a person may allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Where it wants to go.
    pub target: Target,
    /// The call that makes it, where it is known.
    pub call: Option<String>,
    /// Why the policy refuses it.
    pub refusal: Refusal,
    /// The narrowest rule that would allow it.
    pub rule: Rule,
}

/// What a person says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// No, or not yet.
    Refuse,
    /// This connection alone.
    Once,
    /// This, and from now on everything that the rule allows.
    Always(Rule),
}

/// Takes questions to a person.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Asks. Returns as soon as there is an answer, or with [`Answer::Refuse`] after the patience. The question stays
    /// open then, and an answer that comes later changes the policy of the next connections.
    async fn ask(&self, question: Question, patience: Duration) -> Answer;

    /// What was allowed once by this rule did not come about: the next that asks for the same may have the permission.
    async fn give_back(&self, _rule: &str) {}
}
