//! Validates the agent settings of a task job, and the git source of the workspace.

use agent::{AgentSettings, CommandRules};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::invalid::{InvalidField, invalid};
use crate::spec::{JobDefaults, NewJob, Work};

const MAX_COMMANDS: usize = 50;
const MAX_CHARACTERS: usize = 2000;

/// A repository to start from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitSource {
    /// Its address, `https://` or `http://`; the job's egress policy must allow it.
    pub url: String,
    /// A branch, tag or commit; the default branch when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Validates the agent settings. A job without an agent must not have any.
pub fn check_agent(
    job: &mut NewJob,
    work: &Work,
    defaults: &JobDefaults,
) -> Result<AgentSettings, InvalidField> {
    if !matches!(work, Work::Task(_)) {
        let named = [
            ("model", job.model.is_some()),
            ("effort", job.effort.is_some()),
            ("acceptance", !job.acceptance.is_empty()),
            ("approve_plan", job.approve_plan.is_some()),
            ("approval", job.approval.is_some()),
            ("commands", job.commands.is_some()),
            ("budget", job.budget.is_some()),
        ];
        return match named.into_iter().find(|(_, is_there)| *is_there) {
            Some((field, _)) => Err(invalid(field, "belongs to a job with `task`; steps have no agent")),
            None => Ok(AgentSettings::default()),
        };
    }
    check_model(job.model.as_deref())?;
    check_acceptance(&job.acceptance)?;
    let approval = job.approval.unwrap_or_default();
    let commands = match job.commands.take() {
        Some(rules) => rules,
        None if approval == agent::Approval::Ask => {
            CommandRules::standard().map_err(|problem| invalid("commands", problem))?
        }
        None => CommandRules::default(),
    };
    commands.check().map_err(|problem| invalid("commands", problem))?;
    let budget = defaults.budget.overridden_by(job.budget.unwrap_or_default());
    budget.check().map_err(|(field, problem)| invalid(format!("budget.{field}"), problem))?;
    Ok(AgentSettings {
        model: job.model.take(),
        effort: job.effort,
        acceptance: std::mem::take(&mut job.acceptance),
        approve_plan: job.approve_plan.unwrap_or(false),
        approval,
        commands,
        budget,
    })
}

fn check_model(model: Option<&str>) -> Result<(), InvalidField> {
    match model {
        Some(name) if name.trim().is_empty() || name.chars().count() > 300 => {
            Err(invalid("model", "must have 1 to 300 characters, such as anthropic/claude-sonnet-4-5"))
        }
        _ => Ok(()),
    }
}

fn check_acceptance(commands: &[String]) -> Result<(), InvalidField> {
    if commands.len() > MAX_COMMANDS {
        return Err(invalid("acceptance", format!("at most {MAX_COMMANDS} commands are allowed")));
    }
    match commands.iter().position(|command| command.trim().is_empty() || command.contains('\0')) {
        Some(index) => Err(invalid(format!("acceptance[{index}]"), "is empty or has a NUL character")),
        None => Ok(()),
    }
}

/// Validates the source of the workspace. Rejects values that git would parse as options.
pub fn check_git(source: GitSource) -> Result<GitSource, InvalidField> {
    let is_plain = |text: &str| {
        !text.starts_with('-')
            && !text.contains(char::is_whitespace)
            && text.chars().count() <= MAX_CHARACTERS
    };
    let is_web = source.url.starts_with("https://") || source.url.starts_with("http://");
    if !is_web || !is_plain(&source.url) {
        return Err(invalid("git.url", "must begin with https:// or http:// and have no spaces"));
    }
    let host = source.url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next());
    if host.is_some_and(|host| host.contains('@')) {
        let problem = "must not contain a user, password or token: every reader of the job can see it in the job's log; \
            give the token as one of `secrets` for that host, and clone in the task or a step";
        return Err(invalid("git.url", problem));
    }
    match &source.revision {
        Some(revision) if revision.is_empty() || !is_plain(revision) => {
            Err(invalid("git.revision", "must be a branch, tag or commit without spaces"))
        }
        _ => Ok(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> String {
        let job: NewJob = serde_json::from_str(json).unwrap();
        job.check(&JobDefaults::default()).unwrap_err().to_string()
    }

    #[test]
    fn invalid_agent_settings_are_refused_by_field_name() {
        for (fields, named) in [
            (r#""acceptance":[""]"#, "acceptance[0]:"),
            (r#""budget":{"money_usd":-1}"#, "budget.money_usd:"),
            (
                r#""commands":{"rules":[{"prefix":["a"],"decision":"ask","examples":["b"]}]}"#,
                "commands: rules[0]",
            ),
            (r#""git":{"url":"ssh://x"}"#, "git.url:"),
            (
                r#""git":{"url":"https://me:token@host/x.git"}"#,
                "git.url: must not contain a user, password or token",
            ),
            (r#""git":{"url":"https://token@host"}"#, "git.url: must not contain a user, password or token"),
            (r#""git":{"url":"https://x","revision":"--upload-pack=x"}"#, "git.revision:"),
        ] {
            let told = problem(&format!(r#"{{"task":"x",{fields}}}"#));
            assert!(told.starts_with(named), "{fields}: {told}");
        }
    }

    #[test]
    fn steps_have_no_agent() {
        let told = problem(r#"{"steps":[{"tool":"shell","command":"ls"}],"budget":{"turns":3}}"#);
        assert!(told.starts_with("budget: belongs to a job with `task`"), "{told}");
        let told = problem(r#"{"steps":[{"tool":"shell","command":"ls"}],"effort":"low"}"#);
        assert!(told.starts_with("effort: belongs to a job with `task`"), "{told}");
    }

    #[test]
    fn missing_budget_fields_come_from_the_defaults() {
        let job: NewJob = serde_json::from_str(r#"{"task":"x","budget":{"money_usd":2}}"#).unwrap();
        let spec = job.check(&JobDefaults::default()).unwrap();
        assert_eq!((spec.agent.budget.turns, spec.agent.budget.money_usd), (Some(200), Some(2.0)));
    }

    #[test]
    fn approval_without_rules_uses_the_standard_rules() {
        let job: NewJob = serde_json::from_str(r#"{"task":"x","approval":"ask"}"#).unwrap();
        let spec = job.check(&JobDefaults::default()).unwrap();
        assert_eq!(spec.agent.commands.judge("git push").decision, agent::Decision::Ask);
    }
}
