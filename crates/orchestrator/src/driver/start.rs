//! Starts a driver: reads the job's log, creates what the driver needs, and runs it until the job is over or waits.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use job::{Event, EventBody, Generation, JobId, JobKind, JobSpec, JobView, Work};
use store::StoreError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::known_boot::KnownBoot;
use super::loaded_log::LoadedLog;
use super::work_time::WorkTime;
use super::{Driver, file_history};

use crate::core::Core;
use crate::core::kernel_guard::LostKernelGuard;
use crate::core::last_use::LastUse;
use crate::core::live_jobs::LiveJob;
use crate::core::live_tokens::LiveTokens;
use crate::driver::failure::handle_driver_failure;
use crate::error::OrchestratorError;
use crate::recorder::Recorder;
use crate::recorder::agent_log::AgentLog;

/// Maximum length of a panic message in an error.
const MAX_PANIC_CHARS: usize = 300;

/// Delay before another attempt to release a job.
const RELEASE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Drives a job until it is over or waits for a person. Returns early if the server shuts down or has lost the lease.
pub(crate) async fn drive(core: Arc<Core>, job: JobId, generation: Generation) {
    let shutdown = core.shutdown.clone();
    let result = tokio::select! {
        () = shutdown.cancelled() => return,
        result = catch_panics(drive_to_end(Arc::clone(&core), job, generation))
            .instrument(tracing::info_span!(target: "caisson_trace", "job", %job)) => result,
    };
    match result {
        Ok(()) => core.retry_backoff.forget(job),
        Err(error @ OrchestratorError::Store(StoreError::Fenced(_))) => {
            tracing::warn!(%job, %error, "stopped driving")
        }
        Err(error) => handle_driver_failure(&core, job, generation, &error).await,
    }
    release(&core, job, generation).await;
}

/// Releases the job's lease. Without this, nobody would own the job for as long as this server runs and renews the
/// lease.
async fn release(core: &Core, job: JobId, generation: Generation) {
    while let Err(error) = core.store.release(job, generation).await.map_err(OrchestratorError::from)
        && error.needs_operator()
    {
        tracing::warn!(%job, %error, "the job cannot be given back, trying again");
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = tokio::time::sleep(RELEASE_RETRY_DELAY) => {}
        }
    }
}

/// Converts a panic to an error; otherwise, nobody would drive the job again.
async fn catch_panics(
    work: impl Future<Output = Result<(), OrchestratorError>>,
) -> Result<(), OrchestratorError> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|payload| {
        let said = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned());
        let what = said.unwrap_or_else(|| "without words".into()).chars().take(MAX_PANIC_CHARS).collect();
        Err(OrchestratorError::Fault { what })
    })
}

async fn drive_to_end(core: Arc<Core>, job: JobId, generation: Generation) -> Result<(), OrchestratorError> {
    core.folder.make_job(job)?;
    core.folder.remove_partials(job);
    let mut log = AgentLog::start(&core.folder.agent_log(job))?;
    let LoadedLog { events: past, last, .. } = LoadedLog::read(core.store.as_ref(), job, &mut log).await?;
    let spec = Arc::new(spec_of(job, &past)?);
    let view = JobView::of_log(job, &past).ok_or(StoreError::NoJob(job))?;
    write_input(&core, job, &spec)?;
    let (first_request, first_idle) = (view.control_request, view.idle_ms);
    let work_time = WorkTime::resumed(&view);
    let (control_sender, control_request) = watch::channel(first_request);
    let (idle_sender, idle_ms) = watch::channel(first_idle);
    let used = LastUse::new();
    let kind = view.kind;
    let kernels = Arc::new(LostKernelGuard::new(spec.on_kernel_loss, view.losses));
    let holder = view.agent.as_ref().and_then(|agent| agent.holder.clone());
    let recorder = Recorder::new(Arc::clone(&core.store), job, generation, view, log, last).after(&past);
    let recorder = Arc::new(recorder);
    let guest = watch::Sender::new(None);
    let live = LiveJob {
        kind,
        spec: Arc::clone(&spec),
        recorder: Arc::clone(&recorder),
        guest: guest.clone(),
        control_request: control_sender,
        used: used.clone(),
        idle_ms: idle_sender,
        is_paused: Arc::default(),
        speech: LiveTokens::default(),
        holder: watch::Sender::new(holder),
        kernels: Arc::clone(&kernels),
        ceiling: Arc::default(),
        usage: Arc::default(),
    };
    let ceiling = Arc::clone(&live.ceiling);
    let is_paused = Arc::clone(&live.is_paused);
    let speech = live.speech.clone();
    let (control_requests, idle_timeouts) = (live.control_request.clone(), live.idle_ms.clone());
    core.live.enter(job, live);
    // Read events that were written since the log was read. Their writers could not reach this driver yet.
    recorder.catch_up().await?;
    let (requested, idle_timeout) = recorder.with_view(|view| (view.control_request, view.idle_ms)).await;
    set_unless_changed(&control_requests, first_request, requested);
    set_unless_changed(&idle_timeouts, first_idle, idle_timeout);
    let link_tasks = CancellationToken::new();
    let files = (kind == JobKind::Job).then(|| {
        file_history::FileHistory::start(Arc::clone(&recorder), guest.subscribe(), link_tasks.clone())
    });
    let known_boot = KnownBoot::of_log(&past);
    let mut driver = Driver {
        core,
        recorder,
        spec,
        past,
        guest,
        control_request,
        used,
        idle_ms,
        is_paused,
        speech,
        egress: None,
        _link_tasks_guard: link_tasks.clone().drop_guard(),
        link_tasks,
        checkpoints: std::sync::Mutex::default(),
        dialing: tokio::sync::Mutex::default(),
        known_boot,
        model_failures: 0,
        tried_settings: None,
        asked_to_wait: std::time::Duration::ZERO,
        files,
        attributed_usage: sandbox::Usage::default(),
        kernels,
        work_time,
    };
    driver.open_egress().await?;
    if let Some(egress) = &driver.egress {
        let _ = ceiling.set(egress.proxy().policy().ceiling().cloned());
    }
    driver.run().await
}

/// The job's spec, which is in the first event of the log.
fn spec_of(job: JobId, log: &[Event]) -> Result<JobSpec, OrchestratorError> {
    match log.first().map(|event| &event.body) {
        Some(EventBody::JobCreated { spec }) => Ok((**spec).clone()),
        Some(_) => Err(OrchestratorError::Store(StoreError::Unreadable {
            what: "a job".into(),
            source: "its log does not start with its creation".into(),
        })),
        None => Err(StoreError::NoJob(job).into()),
    }
}

/// Replaces the initial value by the one from the log, unless a newer value was set in the meantime.
fn set_unless_changed<T: PartialEq + Copy>(told: &watch::Sender<T>, first: T, now: T) {
    told.send_if_modified(|current| {
        let is_news = *current == first && now != first;
        if is_news {
            *current = now;
        }
        is_news
    });
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
