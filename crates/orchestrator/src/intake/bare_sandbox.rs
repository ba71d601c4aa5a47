//! Bare sandboxes: sandboxes without a task that live for as long as they are used.
//!
//! A bare sandbox has a driver like a job: the same log, the same recovery after a crash, the same access paths. It
//! has no artifact.

use std::collections::BTreeMap;
use std::time::Duration;

use job::{
    AppliedCeilings, EgressSchema, EventBody, Fence, InvalidField, JobDefaults, JobFilter, JobId, JobKind,
    JobSpec, JobState, JobView, NewAllowance, NewDesktop, NewEvent, NewJob, NewLimits, NewSecret, Submitter,
    Work, at_most, check_seconds, object,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Created, NewRecord, StoreError};
use utoipa::ToSchema;

use crate::clock::now_ms;
use crate::core::Orchestrator;
use crate::core::images;
use crate::error::OrchestratorError;

/// Default idle timeout.
const DEFAULT_IDLE: Duration = Duration::from_secs(3600);
/// Bare sandboxes end by idleness, not by age.
const NO_DEADLINE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Retry delay reported when there are too many sandboxes.
const RETRY_AFTER_S: u64 = 10;
/// How long a caller waits for a new sandbox.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a caller waits until everything of an ended sandbox is removed.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A new sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSandbox {
    /// The name of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The root file system: `default`, `host`, or the name of another image. Default: the server's setting, or else
    /// `default` if it is built, otherwise `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The weakest acceptable isolation: `namespaces`, or `landlock`, which is much weaker (docs/isolation.md). Default: the
    /// server's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// Resource limits. The server refuses the sandbox if it cannot enforce a limit set here.
    #[serde(default, deserialize_with = "object", skip_serializing_if = "Option::is_none")]
    pub limits: Option<NewLimits>,
    /// Egress policy: `"off"`, `"packages"`, `"open"`, `"learn"`, or
    /// `{"allow": ["example.org"]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<EgressSchema>)]
    pub egress: Option<Value>,
    /// Seconds that a refused connection waits for approval; 0 refuses at once.
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
    /// Variables for everything that runs in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Seconds without use after which the sandbox ends; default 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<f64>,
    /// For finding it again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl NewSandbox {
    /// Validates every field and fills in the defaults.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(self, defaults: &JobDefaults) -> Result<JobSpec, InvalidField> {
        if self.limits.as_ref().is_some_and(|limits| limits.wall_clock_s.is_some()) {
            let problem = "a sandbox ends by `ttl_s`, not by the clock".into();
            return Err(InvalidField { field: "limits.wall_clock_s".into(), problem });
        }
        let idle = match self.ttl_s {
            None => at_most(DEFAULT_IDLE, defaults.ceilings.effective().ttl_s),
            Some(seconds) => check_idle(seconds, &defaults.ceilings)?,
        };
        let job = NewJob {
            name: self.name,
            image: self.image,
            isolation: self.isolation,
            limits: self.limits,
            egress: self.egress,
            egress_wait_s: self.egress_wait_s,
            network: self.network,
            secrets: self.secrets,
            desktop: self.desktop,
            environment: self.environment,
            labels: self.labels,
            ..NewJob::default()
        };
        let mut spec = job.check_except_work(Work::Session { idle }, defaults)?;
        spec.wall_clock = NO_DEADLINE;
        Ok(spec)
    }
}

/// Validates an idle timeout.
fn check_idle(ttl_s: f64, ceilings: &AppliedCeilings) -> Result<Duration, InvalidField> {
    let idle = check_seconds("ttl_s", ttl_s)?;
    ceilings.check_seconds("ttl_s", "ttl_s", ttl_s, |set| set.ttl_s)?;
    Ok(idle)
}

#[derive(Debug, Clone)]
pub struct SandboxView {
    pub view: JobView,
    /// When the sandbox ends if it is not used; Unix time in milliseconds.
    pub expires_ms: Option<i64>,
}

impl Orchestrator {
    /// Creates a sandbox and waits until it runs.
    ///
    /// # Errors
    /// A field is invalid, a limit is reached, or the store fails. If the sandbox could not be created, the returned
    /// view has ended.
    pub async fn create_sandbox(
        &self,
        new: NewSandbox,
        submitter: Option<Submitter>,
    ) -> Result<SandboxView, OrchestratorError> {
        let asked = new.image.clone();
        let mut spec = new.check(&self.rules_for(submitter.as_ref().map(|submitter| &submitter.key)))?;
        spec.image = images::choose(&self.core, asked.as_deref()).await?.image;
        // The caller waits for the sandbox, because there is no queue for sandboxes.
        if let Some(away) = self.check_limits(&spec).await? {
            return Err(away);
        }
        self.check_policy(&spec)?;
        let turn = self.check_sandbox_allowance(submitter.as_ref()).await?;
        spec.submitter = submitter;
        let id = JobId::generate();
        let _slot =
            self.core.live.arrive(id, self.core.settings().max_sandboxes).map_err(|count| {
                OrchestratorError::TooManySandboxes { count, retry_after_s: RETRY_AFTER_S }
            })?;
        let events =
            vec![EventBody::StateChanged { state: JobState::Queued, code: None, reason: None }.into()];
        let record = NewRecord { id, spec, events, idempotency: None };
        let Created::New(view) = self.core.store.create(record).await? else {
            return Err(OrchestratorError::IdempotencyMismatch);
        };
        self.start_now(view.job_id).await?;
        drop(turn);
        let mut news = self.watch(view.job_id);
        let running = async {
            loop {
                let sandbox = self.sandbox(view.job_id).await?;
                if !matches!(sandbox.view.state, JobState::Queued | JobState::Starting)
                    || news.changed().await.is_err()
                {
                    return Ok(sandbox);
                }
            }
        };
        match tokio::time::timeout(START_TIMEOUT, running).await {
            Ok(sandbox) => sandbox,
            Err(_) => self.sandbox(view.job_id).await,
        }
    }

    /// The view of a sandbox.
    ///
    /// # Errors
    /// There is no sandbox with this id.
    pub async fn sandbox(&self, id: JobId) -> Result<SandboxView, OrchestratorError> {
        match self.core.store.job(id).await {
            Ok(view) if view.kind == JobKind::Sandbox => Ok(self.with_expiry(self.with_waiting_reason(view))),
            Ok(_) | Err(StoreError::NoJob(_)) => Err(OrchestratorError::NoSandbox(id)),
            Err(error) => Err(error.into()),
        }
    }

    fn with_expiry(&self, view: JobView) -> SandboxView {
        let live = self.core.live.get(view.job_id);
        let left_ms = live.zip(view.idle_ms).map(|(live, idle_ms)| idle_ms - live.used.idle_ms());
        let expires_ms = left_ms.map(|left_ms| now_ms().saturating_add(left_ms));
        SandboxView { view, expires_ms }
    }

    /// Lists sandboxes, newest first.
    pub async fn sandboxes(
        &self,
        filter: JobFilter,
    ) -> Result<(Vec<SandboxView>, Option<JobId>), OrchestratorError> {
        let page = self.jobs(JobFilter { kind: JobKind::Sandbox, ..filter }).await?;
        Ok((page.jobs.into_iter().map(|view| self.with_expiry(view)).collect(), page.next))
    }

    /// Changes the idle timeout of a sandbox.
    ///
    /// # Errors
    /// There is no such sandbox, it has ended, or the timeout is invalid.
    pub async fn extend_sandbox(&self, id: JobId, ttl_s: f64) -> Result<SandboxView, OrchestratorError> {
        let idle = check_idle(ttl_s, &self.caller_ceilings())?;
        let sandbox = self.sandbox(id).await?;
        if sandbox.view.state.is_over() {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: sandbox.view.state,
                problem: "it has ended and cannot be extended".into(),
            });
        }
        let idle_ms = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX);
        let extended: NewEvent = EventBody::IdleTimeoutChanged { idle_ms }.into();
        self.core.store.append(id, Fence::Anybody, vec![extended.with_actor(self.actor())]).await?;
        if let Some(live) = self.core.live.get(id) {
            live.used.now();
            live.idle_ms.send_replace(Some(idle_ms));
        }
        self.sandbox(id).await
    }

    /// Ends a sandbox. Succeeds if it has already ended.
    ///
    /// # Errors
    /// There is no sandbox with this id.
    pub async fn end_sandbox(&self, id: JobId) -> Result<(), OrchestratorError> {
        let sandbox = self.sandbox(id).await?;
        if sandbox.view.state.is_over() {
            return Ok(());
        }
        let mut news = self.watch(id);
        match self.cancel(id).await {
            Err(OrchestratorError::WrongState { .. }) => return Ok(()),
            other => other?,
        };
        while !self.sandbox(id).await?.view.state.is_over() {
            if news.changed().await.is_err() {
                break;
            }
        }
        // The sandbox counts towards the limit until everything of it is removed.
        let _ = tokio::time::timeout(END_TIMEOUT, self.core.live.has_left(id)).await;
        Ok(())
    }
}
