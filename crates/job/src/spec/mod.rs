//! Job submissions: the request format, and the validated form that is stored.

mod agent;
mod ceilings;
mod desktop;
mod egress;
mod mcp;
mod steps;
#[cfg(test)]
mod wrong_jobs;

pub use self::agent::{GitSource, check_agent, check_git};
pub use self::ceilings::{AppliedCeilings, CeilingRules, Ceilings, cpu_millis};
pub use self::desktop::{DesktopSettings, NewDesktop};
pub use self::egress::{
    EgressSettings, JobSecret, LONGEST_WAIT_S, MAX_ALLOWANCE, MAX_SECRET_NAME, MOST_SECRETS, NewAllowance,
    NewSecret, check_egress, is_secret_name, within,
};
pub use self::mcp::check_mcp;
pub use self::steps::check_step;

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox::{Image, Isolation, Limit, LimitKind, Limits, allowed_range};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::access::Submitter;
use crate::invalid::{InvalidField, invalid};
use crate::json::{EgressSchema, object, read};
use crate::step::Step;

pub const MAX_TASK_BYTES: usize = 1024 * 1024;
pub const MAX_STEPS: usize = 10_000;
pub const MAX_LABELS: usize = 32;
/// The range of a duration in seconds.
pub const SHORTEST_S: f64 = 0.001;
pub const LONGEST_S: f64 = 30.0 * 86_400.0;

/// A new job, with either `task` or `steps`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    /// The task of the agent, as plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The steps to run, without a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
    /// The name of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Jobs with a higher priority run first; -100 to 100, default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The root file system: `default`, `host`, or the name of another image. Default: the server's setting, or else
    /// `default` if it is built, otherwise `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The weakest acceptable isolation: `namespaces`, or `landlock`, which is much weaker (docs/isolation.md). Default: the
    /// server's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// Resource limits. The server refuses the job if it cannot enforce a limit set here.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub limits: Option<NewLimits>,
    /// Egress policy: `"off"`, `"packages"`, `"open"`, `"learn"`, or
    /// `{"allow": ["example.org"]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<EgressSchema>)]
    pub egress: Option<Value>,
    /// Seconds that a refused connection waits for approval; 0 refuses at once, and the client may retry after the
    /// approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_wait_s: Option<f64>,
    /// Limits of total network use.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub network: Option<NewAllowance>,
    /// Secrets of the server. The variable of each contains a placeholder, which the proxy replaces by the value only in
    /// requests to its hosts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, NewSecret>,
    /// The desktop's screen.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub desktop: Option<NewDesktop>,
    /// Environment variables for every step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// What to do when the sandbox is lost: `retry` the steps after the last checkpoint (the default), or `fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_loss: Option<OnLoss>,
    /// What to do about notebook kernels that are lost with the sandbox: `fail` the next cell (the default), or `replay`
    /// the cells to restore the variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_kernel_loss: Option<OnKernelLoss>,
    /// Labels, for filtering.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The model of a task job, such as `anthropic/claude-sonnet-4-5`; default the server's model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much the model of a task job thinks, if it can: `off`, `low`, `medium` or `high`; default the model's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<::model::Effort>,
    /// Commands that must succeed before a task job is complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acceptance: Vec<String>,
    /// Whether a person must accept or edit the plan of a task job before it changes anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approve_plan: Option<bool>,
    /// Whether commands that match a rule of kind `ask` need approval: `never` (the default) or `ask`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<::agent::Approval>,
    /// Which commands the agent may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commands: Option<::agent::CommandRules>,
    /// Budget of a task job; omitted values are the server's defaults.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub budget: Option<::agent::Budget>,
    /// MCP servers with more tools for the agent, by name: `true` or `false` for a server from the configuration, or a
    /// definition such as `{"command": ["python3", "tools.py"]}` in the sandbox or `{"url": "https://example.org/mcp"}`
    /// outside, which the egress policy must allow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp: BTreeMap<String, Value>,
    /// A repository to clone into the workspace first; the egress policy must allow its host.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// `false`: the job stays a draft that accepts files until it is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<bool>,
}

/// Resource limits of a new job.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLimits {
    /// Mebibytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// CPUs, such as 1.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Open files of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Mebibytes of disk for all written data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    /// Seconds from start to end of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_clock_s: Option<f64>,
}

/// What to do when the sandbox is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnLoss {
    /// Run the steps after the last checkpoint again, as a new attempt in the log.
    #[default]
    Retry,
    /// End the job as failed.
    Fail,
}

/// What to do with the variables of a kernel that was lost with its sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnKernelLoss {
    /// The next cell for that kernel fails with `kernel_lost` and names the variables; the one after it gets a new kernel.
    #[default]
    Fail,
    /// All cells that the kernel has run run again, as new attempts in the log, before the job continues.
    Replay,
}

/// The operator's settings for jobs: defaults, and upper limits on what a request may ask for.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDefaults {
    /// Upper limits for this caller.
    pub ceilings: AppliedCeilings,
    /// All of kind [`Limit::Default`].
    pub limits: Limits,
    /// Maximum duration from start to end of the work.
    pub wall_clock: Duration,
    /// For a step without `timeout_s`.
    pub step_timeout: Duration,
    pub egress: ::egress::Mode,
    /// How long a refused connection waits for a user to decide.
    pub egress_wait: Duration,
    /// Upper limit on the total network use of a job.
    pub allowance: ::egress::Allowance,
    pub desktop: DesktopSettings,
    /// What a task job may spend.
    pub budget: ::agent::Budget,
    /// The weakest acceptable isolation.
    pub isolation: Isolation,
    /// MCP servers, by name.
    pub mcp: BTreeMap<String, ::mcp::Configured>,
}

impl Default for JobDefaults {
    fn default() -> Self {
        Self {
            ceilings: AppliedCeilings::default(),
            limits: Limits::default(),
            wall_clock: Duration::from_secs(3600),
            step_timeout: Duration::from_secs(900),
            egress: ::egress::Mode::Packages,
            egress_wait: Duration::ZERO,
            allowance: ::egress::Allowance::default(),
            desktop: DesktopSettings::default(),
            budget: ::agent::Budget { turns: Some(200), ..::agent::Budget::default() },
            isolation: Isolation::Namespaces,
            mcp: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Plain-text goal for an agent.
    Task(String),
    Steps(Vec<Step>),
    /// A bare sandbox: runs what callers send, and ends when it has been idle for `idle`.
    Session {
        idle: Duration,
    },
}

/// A validated job, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    pub work: Work,
    pub name: Option<String>,
    /// Higher values run first.
    pub priority: i32,
    pub image: Image,
    /// The weakest acceptable isolation.
    pub isolation: Isolation,
    pub limits: Limits,
    /// Maximum duration from start to end of the work.
    pub wall_clock: Duration,
    /// For a step without `timeout_s`.
    pub step_timeout: Duration,
    pub egress: ::egress::Mode,
    /// Further egress settings.
    #[serde(default)]
    pub egress_settings: EgressSettings,
    #[serde(default)]
    pub desktop: DesktopSettings,
    /// Environment variables for every step.
    pub environment: BTreeMap<String, String>,
    /// What to do when the sandbox is lost.
    pub on_loss: OnLoss,
    /// What to do about the variables of kernels that are lost with the sandbox.
    #[serde(default)]
    pub on_kernel_loss: OnKernelLoss,
    pub labels: BTreeMap<String, String>,
    /// Settings of the agent of a task job.
    #[serde(default)]
    pub agent: ::agent::AgentSettings,
    /// MCP servers of a task job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp: BTreeMap<String, ::mcp::ServerChoice>,
    /// A repository that is cloned into the workspace first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
    /// The API key that submitted the job; `None` if the server requires no keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<Submitter>,
}

impl NewJob {
    /// A job with only a task.
    #[must_use]
    pub fn from_task(task: String) -> Self {
        Self { task: Some(task), ..Self::default() }
    }

    /// Validates every field and fills in the defaults.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(mut self, defaults: &JobDefaults) -> Result<JobSpec, InvalidField> {
        let work = check_work(self.task.take(), self.steps.take())?;
        check_step_timeouts(&work, &defaults.ceilings)?;
        self.check_except_work(work, defaults)
    }

    /// Validates everything except the work.
    pub fn check_except_work(mut self, work: Work, defaults: &JobDefaults) -> Result<JobSpec, InvalidField> {
        let agent = check_agent(&mut self, &work, defaults)?;
        let mcp = check_mcp(std::mem::take(&mut self.mcp), &work, &defaults.mcp)?;
        let git = self.git.take().map(check_git).transpose()?;
        let egress_settings = check_egress(&mut self, defaults)?;
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
            image: check_image(self.image.as_deref()),
            isolation: check_isolation(self.isolation.as_deref(), defaults.isolation)?,
            wall_clock: check_wall_clock(new_limits.wall_clock_s, defaults)?,
            limits: defaults.ceilings.bound(check_limits(&new_limits, defaults.limits)?)?,
            step_timeout: at_most(defaults.step_timeout, defaults.ceilings.effective().step_timeout_s),
            egress: match self.egress {
                None => defaults.egress.clone(),
                Some(value) => read(value).map_err(|error| error.below("egress"))?,
            },
            egress_settings,
            desktop: match self.desktop {
                None => defaults.desktop,
                Some(asked) => asked.check(defaults.desktop)?,
            },
            environment: self.environment,
            on_loss: self.on_loss.unwrap_or_default(),
            on_kernel_loss: self.on_kernel_loss.unwrap_or_default(),
            labels: self.labels,
            agent,
            mcp,
            git,
            submitter: None,
        })
    }
}

fn check_work(task: Option<String>, steps: Option<Vec<Step>>) -> Result<Work, InvalidField> {
    match (task, steps) {
        (Some(_), Some(_)) => Err(invalid("task", "a job has either `task` or `steps`, not both")),
        (None, None) => {
            Err(invalid("task", "is missing; a job needs `task` (plain text) or `steps` (a list)"))
        }
        (Some(task), None) if task.trim().is_empty() => {
            Err(invalid("task", "is empty; describe what the agent is to do"))
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

pub fn check_seconds(field: &str, seconds: f64) -> Result<Duration, InvalidField> {
    if !(SHORTEST_S..=LONGEST_S).contains(&seconds) {
        return Err(invalid(field, format!("{seconds} is not between {SHORTEST_S} and {LONGEST_S} seconds")));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn check_wall_clock(asked: Option<f64>, defaults: &JobDefaults) -> Result<Duration, InvalidField> {
    const FIELD: &str = "limits.wall_clock_s";
    let Some(seconds) = asked else {
        return Ok(at_most(defaults.wall_clock, defaults.ceilings.effective().wall_clock_s));
    };
    let wall_clock = check_seconds(FIELD, seconds)?;
    defaults.ceilings.check_seconds(FIELD, "wall_clock_s", seconds, |set| set.wall_clock_s)?;
    Ok(wall_clock)
}

/// A default, lowered to a ceiling.
pub fn at_most(default: Duration, ceiling_s: Option<u64>) -> Duration {
    ceiling_s.map_or(default, |seconds| default.min(Duration::from_secs(seconds)))
}

pub fn check_step_timeouts(work: &Work, ceilings: &AppliedCeilings) -> Result<(), InvalidField> {
    let Work::Steps(steps) = work else { return Ok(()) };
    let timeouts =
        steps.iter().enumerate().filter_map(|(index, step)| Some((index, step.options.timeout_s?)));
    for (index, seconds) in timeouts {
        let field = format!("steps[{index}].timeout_s");
        ceilings.check_seconds(&field, "step_timeout_s", seconds, |set| set.step_timeout_s)?;
    }
    Ok(())
}

/// Parses the image name; whether the image exists is checked later with the backend.
fn check_image(image: Option<&str>) -> Image {
    match image {
        None | Some("host") => Image::Host,
        Some(name) => Image::Named(name.to_owned()),
    }
}

fn check_isolation(isolation: Option<&str>, default: Isolation) -> Result<Isolation, InvalidField> {
    match isolation {
        None => Ok(default),
        Some("namespaces") => Ok(Isolation::Namespaces),
        Some("landlock") => Ok(Isolation::Landlock),
        Some(other) => {
            Err(invalid("isolation", format!("`{other}` is not known; allowed: landlock, namespaces")))
        }
    }
}

fn check_limits(new: &NewLimits, defaults: Limits) -> Result<Limits, InvalidField> {
    fn pick(
        name: &str,
        asked: Option<u64>,
        default: Limit,
        (low, high): (u64, u64),
    ) -> Result<Limit, InvalidField> {
        match asked {
            None => Ok(default),
            Some(value) if (low..=high).contains(&value) => Ok(Limit::Required(value)),
            Some(value) => {
                Err(invalid(format!("limits.{name}"), format!("{value} is not between {low} and {high}")))
            }
        }
    }
    let range = allowed_range;
    Ok(Limits {
        memory_mib: pick("memory_mib", new.memory_mib, defaults.memory_mib, range(LimitKind::Memory))?,
        cpu_millis: match new.cpus {
            None => defaults.cpu_millis,
            Some(cpus) => Limit::Required(cpu_millis("limits.cpus", cpus)?),
        },
        pids: pick("pids", new.pids, defaults.pids, range(LimitKind::Pids))?,
        open_files: pick("open_files", new.open_files, defaults.open_files, range(LimitKind::OpenFiles))?,
        disk_mib: pick("disk_mib", new.disk_mib, defaults.disk_mib, range(LimitKind::Disk))?,
    })
}

pub fn check_environment(environment: &BTreeMap<String, String>) -> Result<(), InvalidField> {
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
    if labels.len() > MAX_LABELS {
        return Err(invalid("labels", format!("at most {MAX_LABELS} are allowed")));
    }
    let fits = |text: &str, most: usize| text.chars().count() <= most;
    match labels.iter().find(|(name, value)| name.is_empty() || !fits(name, 63) || !fits(value, 255)) {
        Some((name, _)) => {
            Err(invalid(format!("labels.{name}"), "names have 1 to 63 characters, values at most 255"))
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
    fn invalid_step_field_is_named_with_its_index() {
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
    fn values_out_of_range_or_above_a_ceiling_are_refused() {
        let everybody = Ceilings {
            memory_mib: Some(1000),
            wall_clock_s: Some(60),
            step_timeout_s: Some(30),
            ..Ceilings::default()
        };
        let ceilings = CeilingRules { everybody, ..CeilingRules::default() }.of(None, None);
        let defaults = JobDefaults { ceilings, ..JobDefaults::default() };
        let check = |json: &str| serde_json::from_str::<NewJob>(json).unwrap().check(&defaults);
        for (fields, field) in [
            (
                r#""task":"x","limits":{"memory_mib":1000000}"#,
                "limits.memory_mib: 1000000 is more than 1000,",
            ),
            (r#""task":"x","limits":{"wall_clock_s":61}"#, "limits.wall_clock_s: 61 is more than 60,"),
            (r#""task":"x","limits":{"cpus":1e300}"#, "limits.cpus: 1"),
            (r#""task":"x","limits":{"cpus":0.000001}"#, "limits.cpus: 0.000001 is not between"),
            (r#""task":"x","limits":{"cpus":-1}"#, "limits.cpus: -1 is not between"),
            (
                r#""task":"x","limits":{"open_files":18446744073709551615}"#,
                "limits.open_files: 18446744073709551615 is not",
            ),
            (
                r#""steps":[{"tool":"shell","command":"ls","timeout_s":31}]"#,
                "steps[0].timeout_s: 31 is more than 30,",
            ),
        ] {
            let problem = check(&format!("{{{fields}}}")).unwrap_err().to_string();
            assert!(problem.starts_with(field), "{fields}: {problem}");
        }
        // Defaults above a ceiling are lowered to it.
        let spec = check(r#"{"task":"x"}"#).unwrap();
        assert_eq!(spec.limits.memory_mib, Limit::Default(1000));
        assert_eq!((spec.wall_clock.as_secs(), spec.step_timeout.as_secs()), (60, 30));
    }
}
