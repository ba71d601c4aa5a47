//! What a job asks of its agent, checked, as it is stored with the job.

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::rules::{Approval, CommandRules};

/// Who writes the summaries of older events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummaryMode {
    /// The job's model, ahead of time; an extract by rules where it fails.
    #[default]
    Model,
    /// An extract by rules, which costs nothing.
    Extract,
}

/// What holds for the agent of one job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentSettings {
    /// The model; the server's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Commands that must succeed before `finish` counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acceptance: Vec<String>,
    /// Whether a person must accept the plan before anything is changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approve_plan: bool,
    /// Whether people are asked before commands.
    pub approval: Approval,
    /// Which commands may run.
    pub commands: CommandRules,
    /// What the job may spend at first; a person may change it later.
    pub budget: Budget,
}
