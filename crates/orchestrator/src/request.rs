//! What a caller may ask for, and the checked form that is stored.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox::{Image, Isolation, Limit, Limits};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::step::{Step, StepTool};

/// The longest task text.
const MAX_TASK_BYTES: usize = 1024 * 1024;
/// The most steps of one job.
const MAX_STEPS: usize = 10_000;

/// A job as a caller writes it: either `task` or `steps`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// What an agent shall do, in plain words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// What to do, step by step, without a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Higher goes first; -100 to 100, 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The root file system: `host` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The least isolation that is acceptable: `namespaces` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// What it may use. A limit that is named here is enforced or the job is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<NewLimits>,
    /// Which outgoing connections are allowed: `"off"`, `"packages"`, `"open"`, or `{"allow": ["example.org"]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub egress: Option<Value>,
    /// Variables for every step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// What to do when the sandbox is lost: `retry` the steps after the last checkpoint (the default), or `fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_loss: Option<OnLoss>,
    /// For finding it again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `false`: the job waits as a draft and takes files until it is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<bool>,
}

/// What a job may use, as a caller writes it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLimits {
    /// Mebibytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Processors, such as 1.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Open files of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Mebibytes of disk for everything that is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    /// Seconds from start to end of the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_clock_s: Option<f64>,
}

/// What to do when the sandbox is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLoss {
    /// Do the steps after the last checkpoint again, as a logged further attempt.
    #[default]
    Retry,
    /// End the job as failed.
    Fail,
}

/// What the operator has set for jobs that say nothing.
#[derive(Debug, Clone)]
pub struct JobDefaults {
    /// Limits, all of kind [`Limit::Default`].
    pub limits: Limits,
    /// From start to end of the work.
    pub wall_clock: Duration,
    /// For a step without `timeout_s`.
    pub step_timeout: Duration,
    /// Outgoing connections.
    pub egress: egress::Mode,
}

impl Default for JobDefaults {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            wall_clock: Duration::from_secs(3600),
            step_timeout: Duration::from_secs(900),
            egress: egress::Mode::Packages,
        }
    }
}

/// What a job shall do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A task for an agent.
    Task(String),
    /// Steps.
    Steps(Vec<Step>),
    /// Whatever callers send into it, until nobody has used it for this time.
    Session {
        /// How long it may be idle.
        idle: Duration,
    },
}

/// A checked job, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// What to do.
    pub work: Work,
    /// For people.
    pub name: Option<String>,
    /// Higher goes first.
    pub priority: i32,
    /// Root file system.
    pub image: Image,
    /// The least isolation.
    pub isolation: Isolation,
    /// What it may use.
    pub limits: Limits,
    /// From start to end of the work.
    pub wall_clock: Duration,
    /// For a step without `timeout_s`.
    pub step_timeout: Duration,
    /// Outgoing connections.
    pub egress: egress::Mode,
    /// Variables for every step.
    pub environment: BTreeMap<String, String>,
    /// What to do when the sandbox is lost.
    pub on_loss: OnLoss,
    /// For finding it again.
    pub labels: BTreeMap<String, String>,
}

/// A field of a request that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// Which, such as `steps[2].timeout_s`.
    pub field: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

fn invalid(field: impl Into<String>, problem: impl Into<String>) -> InvalidField {
    InvalidField { field: field.into(), problem: problem.into() }
}

impl NewJob {
    /// A job from a task text alone.
    #[must_use]
    pub fn from_task(task: String) -> Self {
        Self { task: Some(task), ..Self::default() }
    }

    /// Checks every field and fills in the defaults.
    ///
    /// # Errors
    /// The first field that cannot be accepted.
    pub fn check(mut self, defaults: &JobDefaults) -> Result<JobSpec, InvalidField> {
        let work = check_work(self.task.take(), self.steps.take())?;
        self.check_rest(work, defaults)
    }

    /// Checks everything but the work.
    pub(crate) fn check_rest(self, work: Work, defaults: &JobDefaults) -> Result<JobSpec, InvalidField> {
        let priority = self.priority.unwrap_or(0);
        if !(-100..=100).contains(&priority) {
            return Err(invalid("priority", format!("{priority} is not between -100 and 100")));
        }
        if self.name.as_ref().is_some_and(|name| name.is_empty() || name.chars().count() > 200) {
            return Err(invalid("name", "must have 1 to 200 characters"));
        }
        let new_limits = self.limits.unwrap_or_default();
        check_environment(&self.environment)?;
        check_labels(&self.labels)?;
        Ok(JobSpec {
            work,
            name: self.name,
            priority,
            image: check_image(self.image.as_deref())?,
            isolation: check_isolation(self.isolation.as_deref())?,
            wall_clock: match new_limits.wall_clock_s {
                None => defaults.wall_clock,
                Some(seconds) => check_seconds("limits.wall_clock_s", seconds)?,
            },
            limits: check_limits(&new_limits, defaults.limits)?,
            step_timeout: defaults.step_timeout,
            egress: match self.egress {
                None => defaults.egress.clone(),
                Some(value) => {
                    serde_json::from_value(value).map_err(|error| invalid("egress", error.to_string()))?
                }
            },
            environment: self.environment,
            on_loss: self.on_loss.unwrap_or_default(),
            labels: self.labels,
        })
    }
}

fn check_work(task: Option<String>, steps: Option<Vec<Step>>) -> Result<Work, InvalidField> {
    match (task, steps) {
        (Some(_), Some(_)) => Err(invalid("task", "a job has either `task` or `steps`, not both")),
        (None, None) => Err(invalid("task", "a job needs `task` (plain words) or `steps` (a list)")),
        (Some(task), None) if task.trim().is_empty() => {
            Err(invalid("task", "is empty; say what is to be done"))
        }
        (Some(task), None) if task.len() > MAX_TASK_BYTES => {
            Err(invalid("task", format!("has {} bytes, at most {MAX_TASK_BYTES} are allowed", task.len())))
        }
        (Some(task), None) => Ok(Work::Task(task)),
        (None, Some(steps)) => {
            if steps.is_empty() {
                return Err(invalid("steps", "is empty; a job needs at least one step"));
            }
            if steps.len() > MAX_STEPS {
                return Err(invalid(
                    "steps",
                    format!("has {} entries, at most {MAX_STEPS} are allowed", steps.len()),
                ));
            }
            for (index, step) in steps.iter().enumerate() {
                check_step(step)
                    .map_err(|error| invalid(format!("steps[{index}].{}", error.field), error.problem))?;
            }
            Ok(Work::Steps(steps))
        }
    }
}

fn check_step(step: &Step) -> Result<(), InvalidField> {
    let options = &step.options;
    if let Some(seconds) = options.timeout_s {
        check_seconds("timeout_s", seconds)?;
    }
    if options.retry > 10 {
        return Err(invalid("retry", format!("{} is more than 10", options.retry)));
    }
    if options.name.as_ref().is_some_and(|name| name.is_empty() || name.chars().count() > 200) {
        return Err(invalid("name", "must have 1 to 200 characters"));
    }
    match &step.tool {
        StepTool::Shell { command } if command.trim().is_empty() => Err(invalid("command", "is empty")),
        StepTool::Shell { command } if command.contains('\0') => {
            Err(invalid("command", "has a NUL character"))
        }
        StepTool::Python { code } if code.trim().is_empty() => Err(invalid("code", "is empty")),
        StepTool::EditFile { old, .. } if old.is_empty() => {
            Err(invalid("old", "is empty; give the text to replace"))
        }
        StepTool::ListFiles { depth, .. } if !(1..=100).contains(depth) => {
            Err(invalid("depth", format!("{depth} is not between 1 and 100")))
        }
        StepTool::WriteFile { mode: Some(mode), .. } => parse_mode(mode).map(drop),
        _ => Ok(()),
    }?;
    for (field, path) in paths_of(&step.tool) {
        workspace_path(path).map_err(|problem| invalid(field, problem))?;
    }
    Ok(())
}

fn paths_of(tool: &StepTool) -> Vec<(&'static str, &str)> {
    match tool {
        StepTool::Shell { .. } | StepTool::Python { .. } => vec![],
        StepTool::WriteFile { path, .. }
        | StepTool::ReadFile { path }
        | StepTool::EditFile { path, .. }
        | StepTool::DeleteFile { path, .. } => vec![("path", path)],
        StepTool::ListFiles { path, .. } if path.is_empty() => vec![],
        StepTool::ListFiles { path, .. } => vec![("path", path)],
        StepTool::MoveFile { from, to } => vec![("from", from), ("to", to)],
    }
}

/// Permission bits from an octal text.
pub(crate) fn parse_mode(mode: &str) -> Result<u32, InvalidField> {
    match u32::from_str_radix(mode, 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err(invalid("mode", format!("`{mode}` is not an octal number from 0 to 777"))),
    }
}

/// A path relative to the workspace. `/workspace/...` and `/app/...` are understood; what leads out is refused.
///
/// This is the polite check with the better message; the guest enforces it again when it opens the path.
///
/// # Errors
/// What is wrong with the path.
pub fn workspace_path(path: &str) -> Result<String, String> {
    if path.contains('\0') {
        return Err("has a NUL character".into());
    }
    if path.len() > 4096 {
        return Err(format!("has {} bytes, at most 4096 are allowed", path.len()));
    }
    let relative = ["/workspace", "/app"].iter().find_map(|root| {
        let rest = path.strip_prefix(root)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/'))
    });
    let relative = match relative {
        Some(rest) => rest,
        None if path.starts_with('/') => {
            return Err(format!("`{path}` is outside the workspace; use a path relative to /workspace"));
        }
        None => path,
    };
    if relative.split('/').any(|part| part == "..") {
        return Err(format!("`{path}` has `..`; use a path relative to /workspace without it"));
    }
    let clean: Vec<&str> = relative.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if clean.is_empty() {
        return Err(format!("`{path}` is the workspace itself; name a file in it"));
    }
    Ok(clean.join("/"))
}

pub(crate) fn check_seconds(field: &str, seconds: f64) -> Result<Duration, InvalidField> {
    if !(0.001..=30.0 * 86_400.0).contains(&seconds) {
        return Err(invalid(field, format!("{seconds} is not between 0.001 and 2592000 seconds")));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn check_image(image: Option<&str>) -> Result<Image, InvalidField> {
    match image {
        None | Some("host") => Ok(Image::Host),
        Some(other) => Err(invalid("image", format!("there is no image `{other}`; available: host"))),
    }
}

fn check_isolation(isolation: Option<&str>) -> Result<Isolation, InvalidField> {
    match isolation {
        None | Some("namespaces") => Ok(Isolation::Namespaces),
        Some(other) => Err(invalid("isolation", format!("`{other}` is not known; allowed: namespaces"))),
    }
}

fn check_limits(new: &NewLimits, defaults: Limits) -> Result<Limits, InvalidField> {
    fn pick(
        name: &str,
        asked: Option<u64>,
        default: Limit,
        low: u64,
        high: u64,
    ) -> Result<Limit, InvalidField> {
        match asked {
            None => Ok(default),
            Some(value) if (low..=high).contains(&value) => Ok(Limit::Required(value)),
            Some(value) => {
                Err(invalid(format!("limits.{name}"), format!("{value} is not between {low} and {high}")))
            }
        }
    }
    let cpu_millis = match new.cpus {
        None => defaults.cpu_millis,
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just here")]
        Some(cpus) if (0.01..=1024.0).contains(&cpus) => Limit::Required((cpus * 1000.0) as u64),
        Some(cpus) => return Err(invalid("limits.cpus", format!("{cpus} is not between 0.01 and 1024"))),
    };
    Ok(Limits {
        memory_mib: pick("memory_mib", new.memory_mib, defaults.memory_mib, 16, 16 * 1024 * 1024)?,
        cpu_millis,
        pids: pick("pids", new.pids, defaults.pids, 8, 1_000_000)?,
        open_files: pick("open_files", new.open_files, defaults.open_files, 64, 1_048_576)?,
        disk_mib: pick("disk_mib", new.disk_mib, defaults.disk_mib, 16, 16 * 1024 * 1024)?,
    })
}

fn check_environment(environment: &BTreeMap<String, String>) -> Result<(), InvalidField> {
    for (name, value) in environment {
        let well_formed = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !well_formed {
            return Err(invalid("environment", format!("`{name}` is not a name for a variable")));
        }
        if value.contains('\0') || value.len() > 128 * 1024 {
            return Err(invalid(format!("environment.{name}"), "has a NUL character or more than 128 KiB"));
        }
    }
    Ok(())
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), InvalidField> {
    if labels.len() > 32 {
        return Err(invalid("labels", "at most 32 are allowed"));
    }
    match labels.iter().find(|(name, value)| name.is_empty() || name.len() > 63 || value.len() > 255) {
        Some((name, _)) => {
            Err(invalid(format!("labels.{name}"), "names have 1 to 63 bytes, values at most 255"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str) -> Result<JobSpec, InvalidField> {
        serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default())
    }

    fn problem(json: &str) -> String {
        check(json).unwrap_err().to_string()
    }

    #[test]
    fn a_job_has_a_task_or_steps_and_not_both() {
        assert!(problem("{}").contains("needs `task`"));
        assert!(problem(r#"{"task":"  "}"#).contains("task: is empty"));
        assert!(problem(r#"{"steps":[]}"#).contains("steps: is empty"));
        assert!(problem(r#"{"task":"x","steps":[{"tool":"shell","command":"ls"}]}"#).contains("not both"));
    }

    #[test]
    fn a_wrong_field_of_a_step_is_named_with_its_place() {
        let json = r#"{"steps":[{"tool":"shell","command":"ls"},{"tool":"read_file","path":"../x"}]}"#;
        assert!(problem(json).starts_with("steps[1].path: `../x` has `..`"));
        assert!(
            problem(r#"{"steps":[{"tool":"shell","command":"ls","timeout_s":-1}]}"#)
                .contains("steps[0].timeout_s")
        );
    }

    #[test]
    fn limits_that_are_named_are_required_and_others_are_defaults() {
        let spec = check(r#"{"task":"x","limits":{"memory_mib":256,"cpus":0.5}}"#).unwrap();
        assert_eq!(spec.limits.memory_mib, Limit::Required(256));
        assert_eq!(spec.limits.cpu_millis, Limit::Required(500));
        assert!(matches!(spec.limits.pids, Limit::Default(_)));
        assert!(
            problem(r#"{"task":"x","limits":{"memory_mib":1}}"#)
                .contains("limits.memory_mib: 1 is not between")
        );
    }

    #[test]
    fn paths_below_the_workspace_are_understood_in_every_form() {
        assert_eq!(workspace_path("/workspace/a/b").unwrap(), "a/b");
        assert_eq!(workspace_path("/app/./a//b").unwrap(), "a/b");
        assert_eq!(workspace_path("a").unwrap(), "a");
        for bad in ["/etc/passwd", "..", "a/../../b", "/workspaces/x", "", "/app", "a\0b"] {
            assert!(workspace_path(bad).is_err(), "{bad}");
        }
    }
}
