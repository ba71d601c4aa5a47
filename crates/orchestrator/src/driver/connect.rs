//! Creates the job's sandbox, opens the link to its guest, and reopens it after a failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::{GuestClient, ProtocolError};
use sandbox::{EndReason, Ended, Phase, SandboxError, SandboxId, SandboxSpec};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exec::wait_for_cancel;
use super::{Driver, Stop, describe};
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::event::{EventBody, Unenforced};
use crate::ids::JobId;
use crate::operator_wait::Retries;
use crate::state::Transition;
use crate::view::JobView;

/// How long to retry a guest that does not answer while its sandbox is alive. After a server start on a busy host,
/// many guests are contacted at once, and giving up on a sandbox loses its work.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often to try to create a sandbox before the job fails.
const CREATE_ATTEMPTS: u32 = 3;
/// Delay before the second attempt; it grows by the same amount with each further one. The container runtime may be
/// about to stop.
const CREATE_RETRY_DELAY: Duration = Duration::from_millis(300);
/// Interval of the pings to the guest, and how long an answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
pub(super) enum SandboxChoice {
    /// Not created yet.
    New(SandboxId),
    /// Created in advance for any job; it is frozen.
    Pooled(SandboxId),
    /// Chosen by an earlier driver, which may have stopped at any point.
    Earlier(SandboxId),
}

impl Driver {
    /// Creates the sandbox, or finds the existing one; restores the last checkpoint in a new one.
    pub(super) async fn make_sandbox(
        &mut self,
        view: &JobView,
        requested: SandboxChoice,
    ) -> Result<(), Stop> {
        if view.losses > 0 {
            // The loss is in the log, and nobody can reach the new guest yet.
            self.kernels.lose();
        }
        let sandbox = match requested {
            SandboxChoice::New(sandbox) => {
                self.create(sandbox).await?;
                sandbox
            }
            // It may come from an earlier server's pool, taken just before that server died.
            SandboxChoice::Earlier(sandbox) => {
                self.create(sandbox).await?;
                self.thaw(sandbox).await.map_err(creation_failed)?;
                sandbox
            }
            SandboxChoice::Pooled(sandbox) => match self.thaw(sandbox).await {
                Ok(()) => sandbox,
                // It ended while it was pooled. The reconciler removes it, since the log names another sandbox.
                Err(SandboxError::NotRunning { why, .. }) => {
                    tracing::warn!(job = %self.recorder.job(), %sandbox, why, "a sandbox of the pool has ended, making another one");
                    let sandbox = SandboxId::generate();
                    self.recorder.append(vec![EventBody::SandboxRequested { sandbox }.into()]).await?;
                    self.create(sandbox).await?;
                    sandbox
                }
                Err(error) => return Err(creation_failed(error)),
            },
        };
        let boot_id = self.fill(sandbox, view).await?;
        let unenforced = self.core.backend.unenforced(sandbox).await.map_err(OrchestratorError::from)?;
        let unenforced = unenforced.into_iter().map(|(limit, why)| Unenforced { limit, why }).collect();
        let ready = EventBody::SandboxReady { sandbox, boot_id, unenforced }.into();
        self.recorder.change(vec![ready], Transition::SandboxReady, None).await?;
        Ok(())
    }

    /// Brings the job's files into a new sandbox. If the link breaks meanwhile, it is reopened, which also detects a
    /// dead sandbox.
    async fn fill(&self, sandbox: SandboxId, view: &JobView) -> Result<String, Stop> {
        let mut attempt = 1;
        loop {
            let (client, boot_id) = self.connect(sandbox).await?;
            let filled = async {
                match view.checkpoint_steps {
                    Some(steps) => self.restore_checkpoint(&client, steps).await?,
                    None => self.bring_uploads(&client).await?,
                }
                self.save_initial_file_list(&client).await
            };
            match filled.await {
                Err(Stop::Failed(OrchestratorError::Link(error)))
                    if error.is_retryable() && attempt < CREATE_ATTEMPTS =>
                {
                    tracing::warn!(job = %self.recorder.job(), error = &error as &dyn std::error::Error, "filling the sandbox again");
                    self.forget_broken_guest();
                    attempt += 1;
                }
                filled => return filled.map(|()| boot_id),
            }
        }
    }

    fn sandbox_spec(&self) -> SandboxSpec {
        SandboxSpec {
            image: self.spec.image.clone(),
            isolation: self.spec.isolation,
            limits: self.spec.limits,
            extra_ca: Arc::clone(&self.core.settings().extra_ca),
            own_ca: self.egress.as_ref().and_then(|egress| egress.certificate()).map(ToOwned::to_owned),
            labels: BTreeMap::from([("job".to_owned(), self.recorder.job().to_string())]),
        }
    }

    /// Records which sandbox the job gets, a pooled or a new one, atomically with the state change that led to it.
    pub(super) async fn request_sandbox(
        &self,
        transition: Option<Transition>,
    ) -> Result<SandboxChoice, OrchestratorError> {
        let spec = self.sandbox_spec();
        let pooled = self.core.pool.take(&spec, self.core.backend.image_version(&spec.image));
        let sandbox = pooled.unwrap_or_else(SandboxId::generate);
        let requested = vec![EventBody::SandboxRequested { sandbox }.into()];
        let recorded = match transition {
            Some(transition) => self.recorder.transition_then(transition, requested).await,
            None => self.recorder.append(requested).await.map(drop),
        };
        self.core.pool.released(sandbox);
        recorded?;
        Ok(pooled.map_or(SandboxChoice::New(sandbox), SandboxChoice::Pooled))
    }

    /// Thaws a sandbox from the pool.
    async fn thaw(&self, sandbox: SandboxId) -> Result<(), SandboxError> {
        match self.core.backend.freezer() {
            Some(freezer) => freezer.thaw(sandbox).await,
            None => Ok(()),
        }
    }

    async fn create(&self, sandbox: SandboxId) -> Result<(), Stop> {
        let reserve = self.core.settings().disk_reserve_bytes;
        let spec = self.sandbox_spec();
        let mut attempt = 1;
        loop {
            self.core.host_disk.check_room(reserve).map_err(|error| Stop::NoRoom(error.to_string()))?;
            let started = Instant::now();
            match self.core.backend.create(sandbox, &spec).await {
                Ok(()) => {
                    self.core.metrics.sandbox_created(started.elapsed());
                    return Ok(());
                }
                Err(error) if error.is_disk_full() => return Err(Stop::NoRoom(describe(&error))),
                // A disk shortage stops sandboxes even while they are being created.
                Err(error) if self.core.host_disk.shortage().is_some() => {
                    let _ = self.core.backend.destroy(sandbox).await;
                    return Err(Stop::NoRoom(describe(&error)));
                }
                Err(error) if is_creation_retryable(&error) && attempt < CREATE_ATTEMPTS => {
                    tracing::warn!(job = %self.recorder.job(), error = &error as &dyn std::error::Error, "making the sandbox again");
                    let _ = self.core.backend.destroy(sandbox).await;
                    tokio::time::sleep(CREATE_RETRY_DELAY * attempt).await;
                    attempt += 1;
                }
                Err(error) => return Err(creation_failed(error)),
            }
        }
    }

    /// The client of the job's guest; reopens the link if it is broken.
    pub(super) async fn guest(&self) -> Result<GuestClient, Stop> {
        // Several calls may find the link broken at the same time; only one of them reopens it.
        let _dialing = self.dialing.lock().await;
        if let Some(client) = self.guest.borrow().clone()
            && !client.link().is_closed()
        {
            return Ok(client);
        }
        let view = self.recorder.view().await;
        let sandbox = Self::sandbox_of(&view)?;
        self.connect(sandbox).await.map(|(client, _)| client)
    }

    /// Opens the link. While the backend does not answer, the state of the sandbox is unknown and the job waits.
    async fn connect(&self, sandbox: SandboxId) -> Result<(GuestClient, String), Stop> {
        let mut tries = self.recorder.waiting().tries();
        loop {
            match self.reach(sandbox).await {
                Err(Stop::Failed(error)) if error.is_backend_unavailable() => {
                    self.wait_for_backend(&mut tries, &error).await?;
                }
                reached => return reached,
            }
        }
    }

    /// Returns when the backend answers again. A cancelled job does not wait: its sandbox counts as lost.
    async fn wait_for_backend(&self, tries: &mut Retries<'_>, error: &OrchestratorError) -> Result<(), Stop> {
        self.core.backend_watch.note(error);
        let is_first = tries.count() == 0;
        tries.begin(error);
        if is_first {
            let text = format!("the sandbox cannot be reached: {error}. The work waits until it can");
            let _ = self.recorder.append_now(vec![EventBody::Note { text }.into()]).await;
        }
        let mut control_request = self.control_request.clone();
        tokio::select! {
            () = wait_for_cancel(&mut control_request) => Err(lost(format!("cancelled while it could not be reached: {error}"))),
            () = self.core.backend_watch.answers() => {
                // Nobody could use a bare sandbox in the meantime, so its idle time starts over.
                self.used.now();
                Ok(())
            }
        }
    }

    async fn reach(&self, sandbox: SandboxId) -> Result<(GuestClient, String), Stop> {
        let answer_timeout = self.core.settings().guest_answer_timeout;
        let mut begun = Instant::now();
        // Since when the guest has been answering with errors.
        let mut wrong_since: Option<Instant> = None;
        let mut pause = Duration::from_millis(2);
        loop {
            if self.core.host_disk.shortage().is_some() {
                let mut control_request = self.control_request.clone();
                tokio::select! {
                    () = self.core.host_disk.is_over() => (begun, wrong_since) = (Instant::now(), None),
                    () = wait_for_cancel(&mut control_request) => {}
                }
            }
            let (is_out_of_patience, how) =
                match tokio::time::timeout(answer_timeout, self.dial(sandbox)).await {
                    Ok(Ok(connected)) => return Ok(connected),
                    Ok(Err(Dial::Fatal(stop))) => return Err(stop),
                    Ok(Err(Dial::Again(error))) => {
                        let since = *wrong_since.get_or_insert_with(Instant::now);
                        (since.elapsed() > answer_timeout, format!(": {}", describe(&error)))
                    }
                    Err(_) => {
                        wrong_since = None;
                        (begun.elapsed() > SILENCE_TIMEOUT, String::new())
                    }
                };
            if let Some(ended) = self.ended(sandbox).await? {
                return Err(Stop::Lost(ended));
            }
            if is_out_of_patience {
                return Err(lost(format!("the guest does not answer{how}")));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    async fn dial(&self, sandbox: SandboxId) -> Result<(GuestClient, String), Dial> {
        let stream = self.core.backend.connect(sandbox).await.map_err(|error| Dial::Again(error.into()))?;
        let (client, welcome, incoming) = match GuestClient::connect(stream).await {
            Ok(connected) => connected,
            Err(error @ ProtocolError::Version { .. }) => return Err(Dial::Fatal(lost(describe(&error)))),
            Err(error) => return Err(Dial::Again(error.into())),
        };
        if let Some(egress) = &self.egress {
            egress.serve(&self.core, incoming);
        }
        let watch =
            watch_over(Arc::clone(&self.core), client.clone(), self.recorder.job(), self.link_tasks_token());
        self.core.tasks.spawn(watch);
        self.guest.send_replace(Some(client.clone()));
        Ok((client, welcome.boot_id))
    }

    /// How the sandbox ended; `None` while it is alive.
    pub(super) async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, Stop> {
        match self.core.backend.observe(sandbox).await.map_err(OrchestratorError::from)?.phase {
            Phase::Ended(ended) => Ok(Some(ended)),
            Phase::Missing => {
                Ok(Some(Ended { reason: EndReason::Lost, detail: "the sandbox is gone".into() }))
            }
            Phase::Starting | Phase::Running => Ok(None),
        }
    }

    /// Checks that the guest of a cancelled job answers. The timeout is shorter than for a job that goes on.
    pub(super) async fn ensure_guest_responds(&self) -> Result<(), Stop> {
        let asking = async {
            // A link that breaks is reopened by the next caller that needs it.
            let _ = self.guest().await?.ping().await;
            Ok(())
        };
        let patience = self.core.settings().guest_answer_timeout * 2 / 3;
        let silent = || Err(lost("the guest did not answer when the job was cancelled".into()));
        tokio::time::timeout(patience, asking).await.unwrap_or_else(|_| silent())
    }

    /// Handles a failed request: `Ok` if another attempt on a new link makes sense.
    pub(super) async fn after_break(&self, error: ProtocolError) -> Result<(), Stop> {
        if error.is_retryable() {
            self.forget_broken_guest();
            return self.guest().await.map(drop);
        }
        Err(Stop::Failed(error.into()))
    }
}

enum Dial {
    Again(OrchestratorError),
    Fatal(Stop),
}

/// Closes the link when its guest stops answering, so that callers waiting on it fail, and when the driver ends.
async fn watch_over(core: Arc<Core>, client: GuestClient, job: JobId, driver_ended: CancellationToken) {
    loop {
        tokio::select! {
            end = client.link().closed() => {
                tracing::debug!(%job, %end, "the link to the sandbox has ended");
                return;
            }
            () = driver_ended.cancelled() => break,
            () = tokio::time::sleep(PING_INTERVAL) => {}
        }
        let silence = match core.host_disk.within(PING_TIMEOUT, client.ping()).await {
            Some(Ok(())) => continue,
            Some(Err(error)) => describe(&error),
            None => format!("no answer in {} s", PING_TIMEOUT.as_secs()),
        };
        tracing::warn!(%job, silence, "the guest does not answer, its link is opened again");
        break;
    }
    client.link().close();
}

fn lost(detail: String) -> Stop {
    Stop::Lost(Ended { reason: EndReason::Lost, detail })
}

/// Whether creating the sandbox may be tried again, after its remains are removed.
fn is_creation_retryable(error: &SandboxError) -> bool {
    match error {
        SandboxError::Unavailable { .. } => false,
        // An earlier server process created it, and it has ended since.
        SandboxError::NotRunning { .. } => true,
        error => error.is_retryable(),
    }
}

/// What a failure to create the sandbox means for the job.
fn creation_failed(error: SandboxError) -> Stop {
    match error {
        // What was requested is not available, or not now; the job reports the specific error.
        SandboxError::Unavailable { .. }
        | SandboxError::NoImage(_)
        | SandboxError::InsufficientIsolation { .. }
        | SandboxError::LimitOutOfRange { .. }
        | SandboxError::LimitUnenforceable { .. } => Stop::Failed(error.into()),
        SandboxError::HostUnsupported { .. }
        | SandboxError::NotRunning { .. }
        | SandboxError::Setup { .. }
        | SandboxError::Overcommitted { .. }
        | SandboxError::Io { .. } => {
            Stop::Lost(Ended { reason: EndReason::NotStarted, detail: describe(&error) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_creation_errors_are_retried_waited_for_or_reported() {
        let id = SandboxId::generate();
        let unavailable = || SandboxError::Unavailable { what: "stopped".into(), remedy: "start it".into() };
        let not_running = || SandboxError::NotRunning { id, why: "it has ended".into() };
        let setup = || SandboxError::Setup { id, step: "starting".into(), source: None };
        assert!(
            !is_creation_retryable(&unavailable())
                && is_creation_retryable(&not_running())
                && is_creation_retryable(&setup())
        );
        let code = |error| match creation_failed(error) {
            Stop::Failed(error) => (error.code(), error.needs_operator()),
            Stop::Lost(ended) => {
                assert_eq!(ended.reason, EndReason::NotStarted);
                ("lost", false)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(code(unavailable()), ("backend_unavailable", true));
        assert_eq!(code(SandboxError::NoImage("missing".into())), ("image_not_found", false));
        assert_eq!(code(not_running()), ("lost", false));
        assert_eq!(code(setup()), ("lost", false));
    }
}
