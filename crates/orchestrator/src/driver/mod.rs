//! Carries one job out. One task owns a job: it looks at the state, does the next thing, writes down what happened.
//!
//! Nothing here is remembered but in the log: a driver that starts in the middle of a job reads the log and goes on.

mod archive;
mod checkpoint;
mod collect;
mod connect;
mod exec;
mod file_call;
mod output;
mod outward;
mod session;
mod steps;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use protocol::GuestClient;
use sandbox::{Ended, EndedReason, SandboxId};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use self::archive::is_own;
pub(crate) use self::exec::{EGRESS_PORT, environment};
pub(crate) use self::output::{Captured, OutputSink};
pub(crate) use self::verdict::{Evidence, explain_end};
use crate::agent_log::AgentLog;
use crate::answers::JobKind;
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::event::{CallEnd, CallStatus, Event, EventBody, Wish};
use crate::ids::{Generation, JobId};
use crate::last_use::LastUse;
use crate::live::LiveJob;
use crate::recorder::{Recorder, Why};
use crate::request::{InvalidField, JobSpec, OnLoss, Work};
use crate::state::{Happening, JobState, Outcome};
use crate::view::JobView;

/// Why the work stops before it is done.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Somebody wants it.
    Cancelled,
    /// The job's time is over.
    Deadline,
    /// The sandbox is gone.
    Lost(Ended),
    /// Something else failed; the driver cannot go on.
    Failed(OrchestratorError),
}

impl From<OrchestratorError> for Stop {
    fn from(error: OrchestratorError) -> Self {
        Self::Failed(error)
    }
}

/// Drives one job.
pub(crate) struct Driver {
    core: Arc<Core>,
    recorder: Arc<Recorder>,
    spec: JobSpec,
    /// The log as it was when this driver took over; calls in flight are looked up in it.
    past: Vec<Event>,
    guest: watch::Sender<Option<GuestClient>>,
    wish: watch::Receiver<Option<Wish>>,
    used: LastUse,
    idle_ms: watch::Receiver<Option<i64>>,
    policy: egress::Policy,
    /// Ends what serves the link when the driver ends, whatever way.
    link_tasks: CancellationToken,
    _link_tasks_guard: DropGuard,
    checkpoints: checkpoint::Rhythm,
    /// Numbers of the sandbox that were already blamed on a call.
    blamed: sandbox::Usage,
}

/// Drives a job until it is over or waits for somebody. Ends early when the server goes down or has lost the job.
pub(crate) async fn drive(core: Arc<Core>, job: JobId, generation: Generation) {
    let shutdown = core.shutdown.clone();
    let result = tokio::select! {
        () = shutdown.cancelled() => return,
        result = drive_to_end(Arc::clone(&core), job, generation) => result,
    };
    match result {
        Ok(()) => {}
        Err(error @ OrchestratorError::Fenced(_)) => tracing::warn!(%job, %error, "stopped driving"),
        Err(error) => tracing::error!(%job, error = &error as &dyn std::error::Error, "the driver failed"),
    }
    let _ = core.store.release(job, generation).await;
}

async fn drive_to_end(core: Arc<Core>, job: JobId, generation: Generation) -> Result<(), OrchestratorError> {
    let past = core.store.events(job, 0, usize::MAX).await?;
    let spec = core.store.spec(job).await?;
    let view = JobView::of_log(job, &past).ok_or(OrchestratorError::NoJob(job))?;
    core.folder.make_job(job)?;
    write_input(&core, job, &spec)?;
    let log = AgentLog::start(&core.folder.agent_log(job), &past)?;
    let (wish_sender, wish) = watch::channel(view.wish);
    let (idle_sender, idle_ms) = watch::channel(view.idle_ms);
    let used = LastUse::new();
    let kind = view.kind;
    let recorder = Arc::new(Recorder::new(Arc::clone(&core.store), job, generation, view, log));
    let guest = watch::Sender::new(None);
    let live = LiveJob {
        kind,
        recorder: Arc::clone(&recorder),
        guest: guest.clone(),
        wish: wish_sender,
        used: used.clone(),
        idle_ms: idle_sender,
    };
    core.live.enter(job, live);
    let policy = egress::Policy::new(spec.egress.clone(), core.settings.egress_ranges.clone())
        .map_err(|error| InvalidField { field: "egress".into(), problem: error.to_string() })?;
    let link_tasks = CancellationToken::new();
    let mut driver = Driver {
        core,
        recorder,
        spec,
        past,
        guest,
        wish,
        used,
        idle_ms,
        policy,
        _link_tasks_guard: link_tasks.clone().drop_guard(),
        link_tasks,
        checkpoints: checkpoint::Rhythm::default(),
        blamed: sandbox::Usage::default(),
    };
    driver.run().await
}

fn write_input(core: &Core, job: JobId, spec: &JobSpec) -> Result<(), OrchestratorError> {
    let text = match &spec.work {
        Work::Task(task) => task.clone(),
        Work::Steps(steps) => serde_json::to_string_pretty(steps).unwrap_or_default(),
        Work::Session { .. } => return Ok(()),
    };
    let path = core.folder.job(job).join("input.txt");
    std::fs::write(&path, text).map_err(OrchestratorError::io(format!("writing {}", path.display())))
}

impl Driver {
    async fn run(&mut self) -> Result<(), OrchestratorError> {
        loop {
            let view = self.recorder.view().await;
            match view.state {
                JobState::Draft | JobState::Queued | JobState::Paused if self.is_cancelled() => {
                    self.end_without_sandbox(Outcome::Cancelled, Some(cancelled())).await?;
                }
                JobState::Draft | JobState::Paused => return Ok(()),
                JobState::Queued => self.recorder.change(Vec::new(), Happening::Picked, None).await?,
                JobState::Starting => self.start(&view).await?,
                JobState::Running => self.work().await?,
                JobState::Collecting => self.collect(&view).await?,
                JobState::Complete | JobState::Failed | JobState::Cancelled => {
                    self.dismantle(&view).await;
                    return Ok(());
                }
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        *self.wish.borrow() == Some(Wish::Cancel)
    }

    async fn start(&mut self, view: &JobView) -> Result<(), OrchestratorError> {
        match self.make_sandbox(view).await {
            Ok(()) => Ok(()),
            Err(Stop::Lost(ended)) if ended.reason == EndedReason::NotStarted => {
                let why = Why::new("sandbox_failed", ended.detail);
                self.end_without_sandbox(Outcome::Failed, Some(why)).await
            }
            Err(stop) => self.stop(stop).await,
        }
    }

    async fn work(&mut self) -> Result<(), OrchestratorError> {
        let result = match self.spec.work.clone() {
            Work::Steps(steps) => self.run_steps(&steps).await,
            // Tasks wait for a model before they get this far.
            Work::Task(_) => Ok(Some(Why::new("no_model", "no model is configured"))),
            // A session has no result: there is nothing to collect.
            Work::Session { .. } => match self.hold_session().await {
                Ok(why) => return self.end_without_sandbox(Outcome::Cancelled, Some(why)).await,
                Err(Stop::Cancelled) => {
                    return self.end_without_sandbox(Outcome::Cancelled, Some(cancelled())).await;
                }
                Err(stop) => Err(stop),
            },
        };
        match result {
            Ok(why) => self.recorder.change(Vec::new(), Happening::WorkOver, why).await,
            Err(stop) => self.stop(stop).await,
        }
    }

    /// Writes down why the work stopped, and where that leads.
    async fn stop(&mut self, stop: Stop) -> Result<(), OrchestratorError> {
        match stop {
            Stop::Cancelled => self.recorder.change(Vec::new(), Happening::WorkOver, Some(cancelled())).await,
            Stop::Deadline => {
                let reason = format!("the job ran longer than its {} s", self.spec.wall_clock.as_secs_f64());
                self.recorder
                    .change(Vec::new(), Happening::WorkOver, Some(Why::new("deadline", reason)))
                    .await
            }
            Stop::Lost(ended) => self.lose_sandbox(ended).await,
            Stop::Failed(error @ OrchestratorError::Fenced(_)) => Err(error),
            Stop::Failed(error) => {
                tracing::error!(job = %self.recorder.job(), error = &error as &dyn std::error::Error, "the job cannot go on");
                let why = Why::new(error.code(), describe(&error));
                self.end_without_sandbox(Outcome::Failed, Some(why)).await
            }
        }
    }

    /// The sandbox is gone: calls in flight are interrupted; the work goes back to the last checkpoint, or ends.
    async fn lose_sandbox(&mut self, ended: Ended) -> Result<(), OrchestratorError> {
        let view = self.recorder.view().await;
        self.forget_guest();
        let Some(sandbox) = view.sandbox else {
            let why = Why::new("sandbox_failed", ended.detail);
            return self.end_without_sandbox(Outcome::Failed, Some(why)).await;
        };
        let _ = self.core.backend.destroy(sandbox).await;
        let mut events = self.interrupt_calls().await?;
        let steps_kept = view.checkpoint_steps.unwrap_or(0);
        let detail = ended.detail.clone();
        events.push(EventBody::SandboxLost { sandbox, reason: ended.reason, detail, steps_kept }.into());
        let fatal = if ended.reason == EndedReason::OutOfMemory {
            Some(Why::new("out_of_memory", ended.detail))
        } else if self.spec.on_loss == OnLoss::Fail
            || view.kind == JobKind::Sandbox
            || view.losses >= self.core.settings.max_losses
        {
            Some(Why::new("sandbox_lost", ended.detail))
        } else {
            None
        };
        let outcome = view.outcome();
        match fatal {
            None if outcome == Outcome::Complete => {
                self.recorder.change(events, Happening::SandboxLost, None).await
            }
            // It was about to end without success anyway: there is no point in doing the work again.
            None => {
                self.recorder.append(events).await?;
                let why = view
                    .code
                    .clone()
                    .map(|code| Why { code, reason: view.reason.clone().unwrap_or_default() });
                self.end_from_checkpoint(outcome, why).await
            }
            Some(why) => {
                self.recorder.append(events).await?;
                self.end_from_checkpoint(Outcome::Failed, Some(why)).await
            }
        }
    }

    async fn interrupt_calls(&mut self) -> Result<Vec<crate::event::NewEvent>, OrchestratorError> {
        let log = self.core.store.events(self.recorder.job(), 0, usize::MAX).await?;
        let mut open = Vec::new();
        for event in &log {
            match (&event.body, &event.call) {
                (EventBody::CallStarted { .. }, Some(call)) => open.push(call.clone()),
                (EventBody::CallEnded(_), Some(call)) => open.retain(|other| other != call),
                _ => {}
            }
        }
        self.past.clear();
        Ok(open
            .into_iter()
            .map(|call| {
                let end = CallEnd {
                    status: CallStatus::Interrupted,
                    code: Some("interrupted".into()),
                    reason: Some("the sandbox was lost while it ran".into()),
                    ..CallEnd::default()
                };
                EventBody::CallEnded(end).of(&call)
            })
            .collect())
    }

    async fn end_without_sandbox(
        &mut self,
        outcome: Outcome,
        why: Option<Why>,
    ) -> Result<(), OrchestratorError> {
        self.recorder.change(Vec::new(), Happening::Ended(outcome), why).await
    }

    /// Removes what the job no longer needs. What fails here is done again by the reconcile loop.
    async fn dismantle(&mut self, view: &JobView) {
        self.forget_guest();
        if let Some(sandbox) = view.sandbox
            && let Err(error) = self.core.backend.destroy(sandbox).await
        {
            tracing::warn!(job = %self.recorder.job(), %sandbox, %error, "the sandbox is not gone yet");
        }
        self.remove_checkpoints(None);
    }

    fn forget_guest(&self) {
        if let Some(client) = self.guest.send_replace(None) {
            client.link().close();
        }
    }

    /// When the job must be over.
    async fn deadline(&self) -> Instant {
        let view = self.recorder.view().await;
        let started = view.started_ms.unwrap_or(view.created_ms);
        let used = crate::clock::now_ms().saturating_sub(started);
        let left =
            self.spec.wall_clock.saturating_sub(Duration::from_millis(u64::try_from(used).unwrap_or(0)));
        Instant::now() + left
    }

    fn sandbox_of(view: &JobView) -> Result<SandboxId, Stop> {
        view.sandbox.ok_or_else(|| {
            Stop::Lost(Ended { reason: EndedReason::Lost, detail: "the job has no sandbox".into() })
        })
    }
}

fn cancelled() -> Why {
    Why::new("cancelled", "somebody asked for it")
}

/// An error with its causes in one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
