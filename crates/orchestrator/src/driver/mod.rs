//! The driver: the task that owns one job. It reads the job's state, performs the next action and appends the
//! resulting events.
//!
//! All state that matters is in the log: a driver that takes over in the middle of a job reads the log and continues.

mod agent;
pub(crate) mod archive;
mod bare_sandbox;
pub(crate) mod browser;
mod browser_call;
pub(crate) mod call;
mod call_outcome;
pub(crate) mod cells;
mod checkpoint;
mod collect;
mod connect;
mod create_sandbox;
pub(crate) mod desktop;
pub(crate) mod desktop_script;
mod display_chunks;
pub(crate) mod failure;
mod file_call;
mod file_history;
mod file_list;
mod git;
mod gui_call;
mod kernel_replay;
mod known_boot;
mod last_screen;
mod limit_hints;
mod loaded_log;
mod output;
pub(crate) mod pack_folder;
mod pause;
mod pin_files;
mod process_environment;
mod redacted_tar;
mod start;
mod step_history;
mod step_program;
mod steps;
mod stop;
mod work_time;

use std::sync::Arc;

use job::{
    CALLS, CallEnd, CallRef, CallStatus, ControlRequest, Event, EventBody, JobId, JobKind, JobSpec, JobState,
    JobView, NewEvent, OnLoss, Outcome, Transition, Work,
};
use protocol::GuestClient;
use sandbox::{EndReason, Ended, SandboxId};
use store::StoreError;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::create_sandbox::SandboxChoice;
use self::work_time::WorkTime;

use crate::core::Core;
use crate::core::kernel_guard::LostKernelGuard;
use crate::core::last_use::LastUse;
use crate::core::live_tokens::LiveTokens;
use crate::egress::JobEgress;
use crate::error::OrchestratorError;
use crate::recorder::{Recorder, StateReason};

pub(crate) use self::agent::events::logged;
pub(crate) use self::archive::is_own;
pub(crate) use self::call_outcome::{Evidence, explain_end};
pub(crate) use self::collect::store_checkpoint_result;
pub(crate) use self::file_list::copy_redacted;
pub(crate) use self::limit_hints::LimitHints;
pub(crate) use self::output::{Captured, OutputSink};
pub(crate) use self::pause::STUCK;
pub(crate) use self::process_environment::{EGRESS_PORT, environment};
pub(crate) use self::start::drive;

/// Why the work stops before it is done.
#[derive(Debug)]
pub(crate) enum DriverExit {
    /// A user cancelled the job.
    Cancelled,
    /// The job has reached its deadline.
    Deadline,
    /// The job must wait.
    Paused(pause::Pause),
    /// The sandbox is gone.
    Lost(Ended),
    /// No sandbox can be created because the host's disk is short of space.
    NoRoom(String),
    /// Something else failed; the driver cannot continue.
    Failed(OrchestratorError),
}

impl From<OrchestratorError> for DriverExit {
    fn from(error: OrchestratorError) -> Self {
        Self::Failed(error)
    }
}

impl From<StoreError> for DriverExit {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

pub(crate) struct Driver {
    core: Arc<Core>,
    recorder: Arc<Recorder>,
    spec: Arc<JobSpec>,
    /// The log as of the start of this driver; used to look up calls in flight.
    past: Vec<Event>,
    guest: watch::Sender<Option<GuestClient>>,
    control_request: watch::Receiver<Option<ControlRequest>>,
    used: LastUse,
    idle_ms: watch::Receiver<Option<i64>>,
    /// Whether the job is paused; a paused job does not count toward the running jobs.
    is_paused: Arc<std::sync::atomic::AtomicBool>,
    /// Streams model output to live viewers.
    speech: LiveTokens,
    /// The job's egress proxy; `None` if it could not be created and the job is ending.
    egress: Option<JobEgress>,
    /// Stops the tasks that serve the link, no matter how the driver ends.
    link_tasks: CancellationToken,
    _link_tasks_guard: DropGuard,
    checkpoints: std::sync::Mutex<checkpoint::CheckpointSchedule>,
    /// Held while the link is being opened.
    dialing: tokio::sync::Mutex<()>,
    known_boot: known_boot::KnownBoot,
    /// How often work was interrupted by a failing model; retry delays grow with it.
    model_failures: u32,
    /// The version of the model settings that was tried last, counted in changes since the server started.
    tried_settings: Option<u64>,
    /// The retry delay that the model provider asked for.
    asked_to_wait: std::time::Duration,
    /// Records files that commands write, for replay; `None` for bare sandboxes, which are not replayed.
    files: Option<Arc<file_history::FileHistory>>,
    /// The sandbox's counters as of the last call that they were attributed to.
    attributed_usage: sandbox::Usage,
    /// Refuses cells whose kernel was lost with a sandbox.
    kernels: Arc<LostKernelGuard>,
    /// How much of the job's allowed time has been used.
    work_time: WorkTime,
}

impl Driver {
    async fn run(&mut self) -> Result<(), OrchestratorError> {
        loop {
            let view = self.recorder.view().await;
            match view.state {
                JobState::Draft | JobState::Queued | JobState::Paused if self.is_cancelled() => {
                    self.end_without_sandbox(Outcome::Cancelled, Some(cancelled())).await?;
                }
                JobState::Draft => return Ok(()),
                JobState::Paused if view.sandbox.is_none() => return self.requeue_if_resumed(&view).await,
                JobState::Paused => self.wait_while_paused(&view).await?,
                JobState::Queued if view.control_request == Some(ControlRequest::Pause) => {
                    return self
                        .recorder
                        .change(Vec::new(), Transition::Paused, Some(pause::paused_by_user().why))
                        .await;
                }
                JobState::Queued => {
                    let requested = self.request_sandbox(Some(Transition::Picked)).await?;
                    self.start(&view, requested).await?;
                }
                JobState::Starting => {
                    let requested = match view.sandbox {
                        Some(sandbox) => SandboxChoice::Earlier(sandbox),
                        None => self.request_sandbox(None).await?,
                    };
                    self.start(&view, requested).await?;
                }
                JobState::Running => self.work().await?,
                JobState::Collecting => self.collect(&view).await?,
                JobState::Complete | JobState::Failed | JobState::Cancelled => {
                    self.clean_up_job(&view).await;
                    return Ok(());
                }
            }
        }
    }

    /// Creates the egress proxy. A job whose secrets are unavailable must not run without them.
    async fn open_egress(&mut self) -> Result<(), OrchestratorError> {
        if self.recorder.with_view(|view| view.state.is_over()).await {
            return Ok(());
        }
        match JobEgress::open(&self.core, &self.recorder, &self.spec, &self.past, self.used.clone()).await {
            Ok(egress) => self.egress = Some(egress),
            Err(error @ OrchestratorError::Store(StoreError::Fenced(_))) => return Err(error),
            Err(error) if error.needs_operator() => return Err(error),
            Err(error) => {
                let why = StateReason::new(error.code(), describe(&error));
                self.end_without_sandbox(Outcome::Failed, Some(why)).await?;
            }
        }
        Ok(())
    }

    /// A token that is cancelled when the driver ends.
    fn link_tasks_token(&self) -> CancellationToken {
        self.link_tasks.clone()
    }

    fn is_cancelled(&self) -> bool {
        *self.control_request.borrow() == Some(ControlRequest::Cancel)
    }

    async fn start(&mut self, view: &JobView, requested: SandboxChoice) -> Result<(), OrchestratorError> {
        match self.make_sandbox(view, requested).await {
            Ok(()) => Ok(()),
            Err(DriverExit::Lost(ended)) if ended.reason == EndReason::NotStarted => {
                let why = StateReason::new("sandbox_failed", ended.detail);
                self.end_without_sandbox(Outcome::Failed, Some(why)).await
            }
            // Nothing has run, so there is nothing to collect.
            Err(DriverExit::Cancelled) => {
                self.end_without_sandbox(Outcome::Cancelled, Some(cancelled())).await
            }
            Err(DriverExit::NoRoom(detail)) => self.requeue(view, StoreError::DiskFull.into(), detail).await,
            Err(DriverExit::Failed(error)) if error.needs_operator() => {
                let detail = error.to_string();
                self.requeue(view, error, detail).await
            }
            Err(stop) => self.stop(stop).await,
        }
    }

    /// Puts a job back into the queue if its sandbox cannot be created now. A bare sandbox fails instead: its creator
    /// is waiting for the response.
    async fn requeue(
        &mut self,
        view: &JobView,
        error: OrchestratorError,
        detail: String,
    ) -> Result<(), OrchestratorError> {
        self.core.backend_watch.note(&error);
        self.forget_guest();
        if view.kind == JobKind::Sandbox {
            let why = StateReason::new(error.code(), format!("no sandbox can be made: {detail}"));
            return self.end_without_sandbox(Outcome::Failed, Some(why)).await;
        }
        if let Some(sandbox) = self.recorder.with_view(|view| view.sandbox).await {
            // The reconciler removes whatever is left.
            let _ = self.core.backend.destroy(sandbox).await;
        }
        let remedy = if matches!(error, OrchestratorError::Store(StoreError::DiskFull)) {
            "; free some space"
        } else {
            ""
        };
        let reason = format!("no sandbox can be made: {detail}{remedy}; the job is tried again until then");
        let why = StateReason::new(error.code(), reason);
        self.recorder.change(Vec::new(), Transition::Requeued, Some(why)).await?;
        if self.is_cancelled() { Ok(()) } else { Err(error) }
    }

    async fn work(&mut self) -> Result<(), OrchestratorError> {
        if let Err(stop) = self.clone_repository().await {
            return self.stop(stop).await;
        }
        if let Some(files) = &self.files {
            files.open().await;
        }
        if let Err(stop) = self.replay_cells().await {
            if let Some(files) = &self.files {
                files.close().await;
            }
            return self.stop(stop).await;
        }
        let result = match self.spec.work.clone() {
            Work::Steps(steps) => self.run_steps(&steps).await,
            Work::Task(_) => self.run_agent().await,
            // A session has no result, so there is nothing to collect.
            Work::Session { .. } => match self.hold_sandbox().await {
                Ok(why) => return self.end_without_sandbox(Outcome::Cancelled, Some(why)).await,
                Err(DriverExit::Cancelled) => {
                    return self.end_without_sandbox(Outcome::Cancelled, Some(cancelled())).await;
                }
                Err(stop) => Err(stop),
            },
        };
        if let Some(files) = &self.files {
            files.close().await;
        }
        match result {
            Ok(why) => self.recorder.change(Vec::new(), Transition::WorkOver, why).await,
            Err(stop) => self.stop(stop).await,
        }
    }

    /// Records why the work stopped, and the resulting state.
    async fn stop(&mut self, stop: DriverExit) -> Result<(), OrchestratorError> {
        match stop {
            DriverExit::Cancelled => {
                self.recorder.change(Vec::new(), Transition::WorkOver, Some(cancelled())).await
            }
            DriverExit::Deadline => {
                let reason = format!("the job ran longer than its {} s", self.time_limit().as_secs_f64());
                self.recorder
                    .change(Vec::new(), Transition::WorkOver, Some(StateReason::new("deadline", reason)))
                    .await
            }
            DriverExit::Paused(pause) => self.pause(pause).await,
            DriverExit::Lost(ended) => self.lose_sandbox(ended).await,
            DriverExit::NoRoom(_) => Err(StoreError::DiskFull.into()),
            DriverExit::Failed(error @ OrchestratorError::Store(StoreError::Fenced(_))) => Err(error),
            // Another driver continues in the same sandbox later.
            DriverExit::Failed(error) if error.needs_operator() => Err(error),
            DriverExit::Failed(error) => {
                tracing::error!(job = %self.recorder.job(), error = &error as &dyn std::error::Error, "the job cannot continue");
                let why = StateReason::new(error.code(), describe(&error));
                self.end_without_sandbox(Outcome::Failed, Some(why)).await
            }
        }
    }

    /// Handles a lost sandbox: calls in flight are interrupted, and the work either restarts from the last checkpoint
    /// or ends.
    async fn lose_sandbox(&mut self, ended: Ended) -> Result<(), OrchestratorError> {
        let view = self.recorder.view().await;
        self.forget_guest();
        let Some(sandbox) = view.sandbox else {
            let why = StateReason::new("sandbox_failed", ended.detail);
            return self.end_without_sandbox(Outcome::Failed, Some(why)).await;
        };
        self.save_file_list_of(sandbox).await;
        let _ = self.core.backend.destroy(sandbox).await;
        let mut events = self.interrupt_calls().await?;
        let steps_kept = view.checkpoint_steps.unwrap_or(0);
        let kernels = self.lost_kernels(steps_kept).await?;
        let detail = ended.detail.clone();
        events.extend(self.sandbox_loss_events(&ended, &kernels).await?);
        let lost = EventBody::SandboxLost { sandbox, reason: ended.reason, detail, steps_kept, kernels };
        events.push(lost.into());
        let outcome = if self.is_cancelled() { Outcome::Cancelled } else { view.outcome() };
        let fatal = if outcome == Outcome::Cancelled {
            None
        } else if ended.reason == EndReason::OutOfMemory {
            Some(StateReason::new("out_of_memory", ended.detail))
        } else if self.spec.on_loss == OnLoss::Fail
            || view.kind == JobKind::Sandbox
            || view.losses >= self.core.settings().max_losses
        {
            let is_damaged = ended.reason == EndReason::WorkspaceDamaged;
            Some(StateReason::new(
                if is_damaged { "workspace_damaged" } else { "sandbox_lost" },
                ended.detail,
            ))
        } else {
            None
        };
        match fatal {
            None if outcome == Outcome::Complete => {
                self.recorder.change(events, Transition::SandboxLost, None).await
            }
            // The job was about to end without success anyway, so redoing the work is pointless.
            None => {
                let why = view
                    .code
                    .clone()
                    .map(|code| StateReason { code, reason: view.reason.clone().unwrap_or_default() });
                let why = why.or_else(|| (outcome == Outcome::Cancelled).then(cancelled));
                self.end_from_checkpoint(events, outcome, why).await
            }
            Some(why) => self.end_from_checkpoint(events, Outcome::Failed, Some(why)).await,
        }
    }

    async fn interrupt_calls(&mut self) -> Result<Vec<NewEvent>, OrchestratorError> {
        self.past.clear();
        interrupt_calls(&self.core, self.recorder.job(), "the sandbox was lost while it ran").await
    }

    /// Ends a job that has no sandbox to collect from: open calls get an end, and the last checkpoint becomes its
    /// result.
    async fn end_without_sandbox(
        &mut self,
        outcome: Outcome,
        why: Option<StateReason>,
    ) -> Result<(), OrchestratorError> {
        // The list of files must be final before the job ends, because the log then pins its digest.
        if self.recorder.with_view(|view| view.sandbox.is_some()).await {
            self.save_file_list_if_missing().await;
        }
        let mut events = Vec::new();
        // For a cancelled bare sandbox, the API requests that run the calls notice the closed link and log the end
        // themselves.
        if outcome != Outcome::Cancelled || self.recorder.with_view(|view| view.kind == JobKind::Job).await {
            self.past.clear();
            events =
                interrupt_calls(&self.core, self.recorder.job(), "its sandbox ended while it ran").await?;
        }
        self.end_from_checkpoint(events, outcome, why).await
    }

    /// Removes what the job no longer needs. The reconciler repeats what fails here.
    async fn clean_up_job(&mut self, view: &JobView) {
        if view.sandbox.is_some() {
            self.save_file_list_if_missing().await;
        }
        self.forget_guest();
        if let Some(sandbox) = view.sandbox
            && let Err(error) = self.core.backend.destroy(sandbox).await
        {
            tracing::warn!(job = %self.recorder.job(), %sandbox, %error, "the sandbox is not gone yet");
        }
        self.remove_checkpoints(None);
        // The job's CA is no longer needed.
        let _ = std::fs::remove_dir_all(self.core.folder.authority(self.recorder.job()));
    }

    fn forget_guest(&self) {
        if let Some(client) = self.guest.send_replace(None) {
            client.link().close();
        }
    }

    /// Forgets a guest whose link is broken, unless another call has already opened a new one.
    fn forget_broken_guest(&self) {
        let is_open = self.guest.borrow().as_ref().is_some_and(|client| !client.link().is_closed());
        if !is_open {
            self.forget_guest();
        }
    }

    fn sandbox_of(view: &JobView) -> Result<SandboxId, DriverExit> {
        view.sandbox.ok_or_else(|| {
            DriverExit::Lost(Ended { reason: EndReason::Lost, detail: "there is no sandbox".into() })
        })
    }
}

/// End events for all calls that have not ended.
pub(crate) async fn interrupt_calls(
    core: &Core,
    job: JobId,
    reason: &str,
) -> Result<Vec<NewEvent>, OrchestratorError> {
    let log = core.store.all_events(job, CALLS, 0).await?;
    let mut open: Vec<&CallRef> = Vec::new();
    for event in &log {
        match (&event.body, &event.call) {
            (EventBody::CallStarted { .. }, Some(call)) => open.push(call),
            (EventBody::CallEnded(_), Some(call)) => open.retain(|other| *other != call),
            _ => {}
        }
    }
    let end = CallEnd {
        status: CallStatus::Interrupted,
        code: Some("interrupted".into()),
        reason: Some(reason.into()),
        ..CallEnd::default()
    };
    Ok(open.into_iter().map(|call| EventBody::CallEnded(end.clone()).of(call)).collect())
}

fn cancelled() -> StateReason {
    StateReason::new("cancelled", "cancelled by a user")
}

/// Formats an error and its causes in one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
