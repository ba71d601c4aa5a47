//! Agent settings: the default budget of task jobs.

use anyhow::{Result, anyhow};
use orchestrator::{Budget, Settings};
use serde::Deserialize;

/// The `[agent]` section.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAgent {
    budget: Option<Budget>,
}

/// Checks the section and adds it to the settings.
pub(crate) fn apply(settings: &mut Settings, raw: RawAgent) -> Result<()> {
    if let Some(budget) = raw.budget {
        budget.check().map_err(|(field, problem)| anyhow!("agent.budget.{field}: {problem}"))?;
        settings.defaults.budget = settings.defaults.budget.overridden_by(budget);
    }
    Ok(())
}
