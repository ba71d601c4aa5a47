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
use self::connect::Requested;
pub(crate) use self::exec::{EGRESS_PORT, environment};
pub(crate) use self::file_list::copy_covered;
pub(crate) use self::output::{Captured, OutputSink};
pub(crate) use self::take_up::drive;
pub(crate) use self::verdict::{Evidence, explain_end};
use self::work_time::WorkTime;
use crate::answers::JobKind;
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::event::{CallEnd, CallStatus, Event, EventBody, Wish};
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
            Err(stop) => self.stop(stop).await,
        }
    }

    async fn work(&mut self) -> Result<(), OrchestratorError> {
        if let Err(stop) = self.clone_repository().await {
            return self.stop(stop).await;
        }
        if let Some(files) = &self.files {
            files.open().await;
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
        self.keep_list_of(sandbox);
        let _ = self.core.backend.destroy(sandbox).await;
        let mut events = self.interrupt_calls().await?;
        let steps_kept = view.checkpoint_steps.unwrap_or(0);
        let detail = ended.detail.clone();
        events.extend(self.tell_of_loss(&ended).await?);
        events.push(EventBody::SandboxLost { sandbox, reason: ended.reason, detail, steps_kept }.into());
        let fatal = if ended.reason == EndedReason::OutOfMemory {
            Some(Why::new("out_of_memory", ended.detail))
        } else if self.spec.on_loss == OnLoss::Fail
            || view.kind == JobKind::Sandbox
            || view.losses >= self.core.settings().max_losses
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
        let log = self.core.store.all_events(self.recorder.job(), CALLS, 0).await?;
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
        // The list of files is as it will stay before the job is over: the log has its digest then.
        let mut events = Vec::new();
        if self.recorder.look(|view| view.sandbox.is_some()).await {
            self.keep_file_list_once().await;
            events.extend(self.pin_file_list().await);
        }
        self.recorder.change(events, Happening::Ended(outcome), why).await
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

    /// When the job must be over.
    fn deadline(&self) -> Instant {
        self.work_time.deadline(self.spec.wall_clock)
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
