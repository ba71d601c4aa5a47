//! The validated agent settings of a job, as they are stored with it.

use model::Effort;
use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::command_rules::{Approval, CommandRules};

/// Who writes the summaries of older events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryMode {
    /// The job's model, in the background. If that fails, a rule-based extract.
    #[default]
    Model,
    /// A rule-based extract, which costs nothing.
    Extract,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentSettings {
    /// The model; the server's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much the model thinks; the model's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Commands that must succeed before the job counts as finished.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acceptance: Vec<String>,
    /// Whether a person must accept the plan before the agent changes anything.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approve_plan: bool,
    pub approval: Approval,
    pub commands: CommandRules,
    /// The initial budget. It can be changed later.
    pub budget: Budget,
}
