//! Carries one job out. One task owns a job: it looks at the state, does the next thing, writes down what happened.
//!
//! Nothing here is remembered but in the log: a driver that starts in the middle of a job reads the log and goes on.

mod agent;
mod archive;
mod browser_call;
mod checkpoint;
mod collect;
mod connect;
mod covered_tar;
mod exec;
mod file_call;
mod file_history;
mod file_list;
mod git;
mod gui_call;
mod kernel_replay;
mod limit_signs;
mod output;
mod past;
mod pause;
mod session;
mod steps;
mod take_up;
mod verdict;
mod work_time;

use std::sync::Arc;

use protocol::GuestClient;
use sandbox::{Ended, EndedReason, SandboxId};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use self::agent::events::logged;
pub(crate) use self::archive::is_own;
pub(crate) use self::collect::checkpoint_artifact;
use self::connect::Requested;
pub(crate) use self::exec::{EGRESS_PORT, environment};
pub(crate) use self::file_list::copy_covered;
pub(crate) use self::limit_signs::LimitSigns;
pub(crate) use self::output::{Captured, OutputSink};
pub(crate) use self::take_up::drive;
pub(crate) use self::verdict::{Evidence, explain_end};
use self::work_time::WorkTime;
use crate::answers::JobKind;
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::event::{CallEnd, CallRef, CallStatus, Event, EventBody, NewEvent, Wish};
use crate::ids::JobId;
use crate::kernels::KernelGate;
use crate::last_use::LastUse;
use crate::outward::Outward;
use crate::recorder::{Recorder, Why};
use crate::request::{JobSpec, OnLoss, Work};
use crate::speech::Speech;
use crate::state::{Happening, JobState, Outcome};
use crate::store::CALLS;
use crate::view::JobView;

/// Why the work stops before it is done.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Somebody wants it.
    Cancelled,
    /// The job's time is over.
    Deadline,
    /// It must wait.
    Paused(pause::Pause),
    /// The sandbox is gone.
    Lost(Ended),
    /// No sandbox can be made for want of room on the host's disk.
    NoRoom(String),
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
    spec: Arc<JobSpec>,
    /// The log as it was when this driver took over; calls in flight are looked up in it.
    past: Vec<Event>,
    guest: watch::Sender<Option<GuestClient>>,
    wish: watch::Receiver<Option<Wish>>,
    used: LastUse,
    idle_ms: watch::Receiver<Option<i64>>,
    /// Whether it waits; a job that does takes no place among those that run.
    is_paused: Arc<std::sync::atomic::AtomicBool>,
    /// What the model says, for who watches.
    speech: Speech,
    /// The way out; absent where it could not be made and the job is about to end.
    outward: Option<Outward>,
    /// Ends what serves the link when the driver ends, whatever way.
    link_tasks: CancellationToken,
    _link_tasks_guard: DropGuard,
    checkpoints: std::sync::Mutex<checkpoint::Rhythm>,
    /// Held while the link is opened.
    dialing: tokio::sync::Mutex<()>,
    /// How often work was interrupted by a model that could not answer; the waits grow with it.
    model_failures: u32,
    /// Which settings of the model were tried last, counted in changes since the server started.
    tried_settings: Option<u64>,
    /// How long the provider of the model wants to be left alone.
    asked_to_wait: std::time::Duration,
    /// What commands write, for who plays the job back; bare sandboxes are not played back.
    files: Option<Arc<file_history::FileHistory>>,
    /// Numbers of the sandbox that were already blamed on a call.
    blamed: sandbox::Usage,
    /// What cells pass after a sandbox was lost.
    kernels: Arc<KernelGate>,
    /// What of its time is used up.
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
                JobState::Paused if view.sandbox.is_none() => return self.requeue_if_wished(&view).await,
                JobState::Paused => self.wait_while_paused(&view).await?,
                JobState::Queued if view.wish == Some(Wish::Pause) => {
                    return self
                        .recorder
                        .change(Vec::new(), Happening::Paused, Some(pause::by_wish().why))
                        .await;
                }
                JobState::Queued => {
                    let requested = self.request_sandbox(Some(Happening::Picked)).await?;
                    self.start(&view, requested).await?;
                }
                JobState::Starting => {
                    let requested = match view.sandbox {
                        Some(sandbox) => Requested::Earlier(sandbox),
                        None => self.request_sandbox(None).await?,
                    };
                    self.start(&view, requested).await?;
                }
                JobState::Running => self.work().await?,
                JobState::Collecting => self.collect(&view).await?,
                JobState::Complete | JobState::Failed | JobState::Cancelled => {
                    self.dismantle(&view).await;
                    return Ok(());
                }
            }
        }
    }

    /// Makes the way out. A job whose secrets cannot be had must not go on without them.
    async fn open_outward(&mut self) -> Result<(), OrchestratorError> {
        if self.recorder.look(|view| view.state.is_over()).await {
            return Ok(());
        }
        match Outward::open(&self.core, &self.recorder, &self.spec, &self.past).await {
            Ok(outward) => self.outward = Some(outward),
            Err(error @ OrchestratorError::Fenced(_)) => return Err(error),
            Err(error) if error.is_passing() => return Err(error),
            Err(error) => {
                let why = Why::new(error.code(), describe(&error));
                self.end_without_sandbox(Outcome::Failed, Some(why)).await?;
            }
        }
        Ok(())
    }

    /// Cancelled when the driver ends.
    fn link_tasks_token(&self) -> CancellationToken {
        self.link_tasks.clone()
    }

    fn is_cancelled(&self) -> bool {
        *self.wish.borrow() == Some(Wish::Cancel)
    }

    async fn start(&mut self, view: &JobView, requested: Requested) -> Result<(), OrchestratorError> {
        match self.make_sandbox(view, requested).await {
            Ok(()) => Ok(()),
            Err(Stop::Lost(ended)) if ended.reason == EndedReason::NotStarted => {
                let why = Why::new("sandbox_failed", ended.detail);
                self.end_without_sandbox(Outcome::Failed, Some(why)).await
            }
            Err(Stop::NoRoom(detail)) => self.requeue(view, OrchestratorError::DiskFull, detail).await,
            Err(Stop::Failed(error)) if error.is_passing() => {
                let detail = error.to_string();
                self.requeue(view, error, detail).await
            }
            Err(stop) => self.stop(stop).await,
        }
    }

    /// Puts a job back into the queue whose sandbox cannot be made now. A bare sandbox is nobody's to wait for: whoever asked for it is
    /// told.
    async fn requeue(
        &mut self,
        view: &JobView,
        error: OrchestratorError,
        detail: String,
    ) -> Result<(), OrchestratorError> {
        self.core.backend_watch.note(&error);
        self.forget_guest();
        if view.kind == JobKind::Sandbox {
            let why = Why::new(error.code(), format!("no sandbox can be made: {detail}"));
            return self.end_without_sandbox(Outcome::Failed, Some(why)).await;
        }
        if let Some(sandbox) = self.recorder.look(|view| view.sandbox).await {
            // What is left is the reconcile loop's to remove.
            let _ = self.core.backend.destroy(sandbox).await;
        }
        let remedy = if matches!(error, OrchestratorError::DiskFull) { "; free some space" } else { "" };
        let reason = format!("no sandbox can be made: {detail}{remedy}; the job is tried again until then");
        let why = Why::new(error.code(), reason);
        self.recorder.change(Vec::new(), Happening::Requeued, Some(why)).await?;
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
            // A session has no result: there is nothing to collect.
            Work::Session { .. } => match self.hold_session().await {
                Ok(why) => return self.end_without_sandbox(Outcome::Cancelled, Some(why)).await,
                Err(Stop::Cancelled) => {
                    return self.end_without_sandbox(Outcome::Cancelled, Some(cancelled())).await;
                }
                Err(stop) => Err(stop),
            },
        };
        if let Some(files) = &self.files {
            files.close().await;
        }
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
            Stop::Paused(pause) => self.pause(pause).await,
            Stop::Lost(ended) => self.lose_sandbox(ended).await,
            Stop::NoRoom(_) => Err(OrchestratorError::DiskFull),
            Stop::Failed(error @ OrchestratorError::Fenced(_)) => Err(error),
            // Another driver goes on in the same sandbox, once it may.
            Stop::Failed(error) if error.is_passing() => Err(error),
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
        self.keep_list_of(sandbox);
        let _ = self.core.backend.destroy(sandbox).await;
        let mut events = self.interrupt_calls().await?;
        let steps_kept = view.checkpoint_steps.unwrap_or(0);
        let kernels = self.lost_kernels(steps_kept).await?;
        let detail = ended.detail.clone();
        events.extend(self.tell_of_loss(&ended, &kernels).await?);
        let lost = EventBody::SandboxLost { sandbox, reason: ended.reason, detail, steps_kept, kernels };
        events.push(lost.into());
        let outcome = if self.is_cancelled() { Outcome::Cancelled } else { view.outcome() };
        let fatal = if outcome == Outcome::Cancelled {
            None
        } else if ended.reason == EndedReason::OutOfMemory {
            Some(Why::new("out_of_memory", ended.detail))
        } else if self.spec.on_loss == OnLoss::Fail
            || view.kind == JobKind::Sandbox
            || view.losses >= self.core.settings().max_losses
        {
            let is_damaged = ended.reason == EndedReason::WorkspaceDamaged;
            Some(Why::new(if is_damaged { "workspace_damaged" } else { "sandbox_lost" }, ended.detail))
        } else {
            None
        };
        match fatal {
            None if outcome == Outcome::Complete => {
                self.recorder.change(events, Happening::SandboxLost, None).await
            }
            // It was about to end without success anyway: there is no point in doing the work again.
            None => {
                let why = view
                    .code
                    .clone()
                    .map(|code| Why { code, reason: view.reason.clone().unwrap_or_default() });
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

    /// Ends a job that has no sandbox to collect from: calls have an end, and the last checkpoint is its result.
    async fn end_without_sandbox(
        &mut self,
        outcome: Outcome,
        why: Option<Why>,
    ) -> Result<(), OrchestratorError> {
        // The list of files is as it will stay before the job is over: the log has its digest then.
        if self.recorder.look(|view| view.sandbox.is_some()).await {
            self.keep_file_list_once().await;
        }
        let mut events = Vec::new();
        // Whoever runs something in a bare sandbox is told by the end of the link, and writes it down.
        if outcome != Outcome::Cancelled || self.recorder.look(|view| view.kind == JobKind::Job).await {
            self.past.clear();
            events = interrupt_calls(&self.core, self.recorder.job(), "the job ended while it ran").await?;
        }
        self.end_from_checkpoint(events, outcome, why).await
    }

    /// Removes what the job no longer needs. What fails here is done again by the reconcile loop.
    async fn dismantle(&mut self, view: &JobView) {
        if view.sandbox.is_some() {
            self.keep_file_list_once().await;
        }
        self.forget_guest();
        if let Some(sandbox) = view.sandbox
            && let Err(error) = self.core.backend.destroy(sandbox).await
        {
            tracing::warn!(job = %self.recorder.job(), %sandbox, %error, "the sandbox is not gone yet");
        }
        self.remove_checkpoints(None);
        // Nobody is spoken to in its name any more.
        let _ = std::fs::remove_dir_all(self.core.folder.authority(self.recorder.job()));
    }

    fn forget_guest(&self) {
        if let Some(client) = self.guest.send_replace(None) {
            client.link().close();
        }
    }

    /// Forgets a guest whose link is broken; another call may have opened a new one already.
    fn forget_broken_guest(&self) {
        let is_open = self.guest.borrow().as_ref().is_some_and(|client| !client.link().is_closed());
        if !is_open {
            self.forget_guest();
        }
    }

    /// When the job must be over. Time in which it could not go on does not count.
    fn deadline(&self) -> Instant {
        // Added to what is allowed, not to the result, which is never before now.
        self.work_time.deadline(self.spec.wall_clock.saturating_add(self.recorder.waiting().total()))
    }

    /// Returns when the job must be over, however often that moves meanwhile.
    async fn time_over(&self) {
        while !self.is_time_over() {
            tokio::time::sleep_until(self.deadline()).await;
        }
    }

    fn is_time_over(&self) -> bool {
        // A deadline that has passed is the moment in which it is asked for: the clock is read after it.
        self.deadline() <= Instant::now()
    }

    fn sandbox_of(view: &JobView) -> Result<SandboxId, Stop> {
        view.sandbox.ok_or_else(|| {
            Stop::Lost(Ended { reason: EndedReason::Lost, detail: "the job has no sandbox".into() })
        })
    }
}

/// An end for each call that has none.
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
