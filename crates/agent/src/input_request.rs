//! Input requests: a question, plan, command or connection that waits for a person. All are listed and answered in
//! the same way.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::plan::Plan;

/// Something that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputRequest {
    /// Names it within the job.
    pub id: String,
    /// What kind of answer is wanted.
    pub kind: RequestKind,
    /// The tool call that waits for it.
    pub call: String,
    /// What is asked, for people.
    pub text: String,
    /// Answers to choose from; others are allowed too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The plan that is to be accepted or edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// The command that is to be allowed or denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The connection that is to be allowed or denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Box<EgressQuestion>>,
    /// Milliseconds since 1970; afterwards the job continues without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
}

/// A connection to the outside that the job's policy refuses and a person may allow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressQuestion {
    /// The name or address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The rule that would allow it, as written in a policy.
    pub rule: String,
    /// Why it was refused, for programs.
    pub code: String,
    /// Why it was refused, for people.
    pub reason: String,
    /// What would allow it beside a person's answer: what to write in the next job.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

/// What kind of answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Words.
    Question,
    /// Whether a plan is accepted, perhaps edited.
    Plan,
    /// Whether a command may run.
    Command,
    /// Whether something outside may be reached.
    Egress,
}

impl RequestKind {
    /// The pause code of a job that waits for this kind of request.
    #[must_use]
    pub fn pause_code(self) -> &'static str {
        match self {
            Self::Question => "question",
            Self::Plan | Self::Command | Self::Egress => "approval",
        }
    }
}

/// How long a permission to reach something holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// For one connection.
    #[default]
    Once,
    /// For the rest of the job.
    Rest,
}

/// A person's answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputAnswer {
    /// For a plan, a command or a connection: whether it is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<bool>,
    /// The answer to a question, or why something is not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The plan as the person wants it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// For a connection that is accepted: `once` (when absent), or for the `rest` of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// An answer that does not match its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidAnswer {
    pub field: &'static str,
    /// What is wrong and what is expected.
    pub problem: String,
}

impl InputAnswer {
    /// Validates the answer against the request.
    ///
    /// # Errors
    /// The missing or invalid field.
    pub fn check(&self, request: &InputRequest) -> Result<(), InvalidAnswer> {
        let unfit =
            |field: &'static str, problem: &str| Err(InvalidAnswer { field, problem: problem.to_owned() });
        match request.kind {
            RequestKind::Question if self.text.as_ref().is_none_or(|text| text.trim().is_empty()) => {
                unfit("text", "is missing; a question wants words")
            }
            RequestKind::Question if self.accept.is_some() => {
                unfit("accept", "belongs to a plan or a command; a question wants `text`")
            }
            RequestKind::Plan | RequestKind::Command | RequestKind::Egress
                if self.accept.is_none() && self.plan.is_none() =>
            {
                unfit("accept", "is missing; say true or false")
            }
            RequestKind::Question | RequestKind::Command | RequestKind::Egress if self.plan.is_some() => {
                unfit("plan", "belongs to a request of kind plan")
            }
            RequestKind::Question | RequestKind::Plan | RequestKind::Command if self.scope.is_some() => {
                unfit("scope", "belongs to a request of kind egress")
            }
            RequestKind::Egress if self.scope.is_some() && self.accept != Some(true) => {
                unfit("scope", "belongs to an answer that accepts")
            }
            _ => match &self.plan {
                Some(plan) => plan.check().map_err(|problem| InvalidAnswer { field: "plan", problem }),
                None => Ok(()),
            },
        }
    }

    /// Whether a plan or command is accepted. Sending an edited plan accepts it.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.accept.unwrap_or(self.plan.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: RequestKind) -> InputRequest {
        InputRequest {
            id: "request-1".into(),
            kind,
            call: "turn-1-1".into(),
            text: "which colour?".into(),
            options: Vec::new(),
            plan: None,
            command: None,
            egress: None,
            deadline_ms: None,
        }
    }

    #[test]
    fn an_answer_must_fit_its_request() {
        let words = InputAnswer { text: Some("red".into()), ..InputAnswer::default() };
        let yes = InputAnswer { accept: Some(true), ..InputAnswer::default() };
        assert!(words.check(&request(RequestKind::Question)).is_ok());
        assert_eq!(yes.check(&request(RequestKind::Question)).unwrap_err().field, "text");
        assert_eq!(words.check(&request(RequestKind::Command)).unwrap_err().field, "accept");
        assert!(yes.check(&request(RequestKind::Plan)).is_ok());
        let empty = InputAnswer { plan: Some(Plan::default()), ..InputAnswer::default() };
        assert_eq!(empty.check(&request(RequestKind::Plan)).unwrap_err().field, "plan");
        let rest = InputAnswer { scope: Some(Scope::Rest), ..yes.clone() };
        assert!(rest.check(&request(RequestKind::Egress)).is_ok());
        assert!(yes.check(&request(RequestKind::Egress)).is_ok());
        assert_eq!(words.check(&request(RequestKind::Egress)).unwrap_err().field, "accept");
        assert_eq!(rest.check(&request(RequestKind::Command)).unwrap_err().field, "scope");
        let no = InputAnswer { accept: Some(false), ..rest };
        assert_eq!(no.check(&request(RequestKind::Egress)).unwrap_err().field, "scope");
    }
}
