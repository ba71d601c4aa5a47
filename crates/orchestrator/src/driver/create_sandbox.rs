//! Creates the job's sandbox and fills it with the job's files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use job::{EventBody, JobView, Transition, Unenforced};
use sandbox::{EndReason, Ended, Phase, SandboxError, SandboxId, SandboxSpec, wait_while_starting};
use tokio::time::Instant;

use super::connect::end_of;
use super::stop::wait_for_cancel;
use super::{Driver, DriverExit, describe};
use crate::core::images;
use crate::error::OrchestratorError;

/// How often to try to create a sandbox before the job fails.
const CREATE_ATTEMPTS: u32 = 3;
/// Delay before the second attempt; it grows by the same amount with each further one. The container runtime may be
/// about to stop.
const CREATE_RETRY_DELAY: Duration = Duration::from_millis(300);

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
    ) -> Result<(), DriverExit> {
        if view.losses > 0 {
            // The loss is in the log, and nobody can reach the new guest yet.
            self.kernels.lose();
        }
        let (sandbox, unenforced) = match requested {
            SandboxChoice::New(sandbox) => (sandbox, self.create(sandbox).await?),
            // It may come from an earlier server's pool, taken just before that server died.
            SandboxChoice::Earlier(sandbox) => {
                let unenforced = self.create(sandbox).await?;
                self.thaw(sandbox).await.map_err(creation_failed)?;
                (sandbox, unenforced)
            }
            SandboxChoice::Pooled(sandbox) => match self.thaw(sandbox).await {
                Ok(()) => (sandbox, self.wait_until_ready(sandbox).await?),
                // It ended while it was pooled. The reconciler removes it, since the log names another sandbox.
                Err(SandboxError::NotRunning { why, .. }) => {
                    tracing::warn!(job = %self.recorder.job(), %sandbox, why, "a sandbox of the pool has ended, making another one");
                    let sandbox = SandboxId::generate();
                    self.recorder.append(vec![EventBody::SandboxRequested { sandbox }.into()]).await?;
                    (sandbox, self.create(sandbox).await?)
                }
                Err(error) => return Err(creation_failed(error)),
            },
        };
        let boot_id = self.fill(sandbox, view).await?;
        self.known_boot.set(sandbox, &boot_id);
        let ready = EventBody::SandboxReady { sandbox, boot_id, unenforced }.into();
        self.recorder.change(vec![ready], Transition::SandboxReady, None).await?;
        Ok(())
    }

    /// Brings the job's files into a new sandbox. If the link breaks meanwhile, it is reopened, which also detects a
    /// dead sandbox.
    async fn fill(&self, sandbox: SandboxId, view: &JobView) -> Result<String, DriverExit> {
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
                Err(DriverExit::Failed(OrchestratorError::Link(error)))
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
        let pooled = self.core.pool.take(&spec, images::version(&self.core, &spec.image));
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

    /// Requests a sandbox and waits until it is ready; returns the limits that are not enforced for it.
    async fn create(&self, sandbox: SandboxId) -> Result<Vec<Unenforced>, DriverExit> {
        let reserve = self.core.settings().disk_reserve_bytes;
        let spec = self.sandbox_spec();
        let mut attempt = 1;
        loop {
            self.core.host_disk.check_room(reserve).map_err(|error| DriverExit::NoRoom(error.to_string()))?;
            let started = Instant::now();
            let mut control_request = self.control_request.clone();
            let created = tokio::select! {
                biased;
                // An image may take minutes to pull. Whatever the backend has made by then is destroyed with the job.
                () = wait_for_cancel(&mut control_request) => return Err(DriverExit::Cancelled),
                created = self.core.backend.create(sandbox, &spec) => created,
            };
            match created {
                Ok(()) => {
                    let unenforced = self.wait_until_ready(sandbox).await?;
                    self.core.metrics.sandbox_created(started.elapsed());
                    return Ok(unenforced);
                }
                Err(error) if error.is_disk_full() => return Err(DriverExit::NoRoom(describe(&error))),
                // A disk shortage stops sandboxes even while they are being created.
                Err(error) if self.core.host_disk.shortage().is_some() => {
                    let _ = self.core.backend.destroy(sandbox).await;
                    return Err(DriverExit::NoRoom(describe(&error)));
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

    /// Waits until a requested sandbox is ready, or the job is cancelled while the sandbox is starting. Returns the
    /// limits that are not enforced for it.
    async fn wait_until_ready(&self, sandbox: SandboxId) -> Result<Vec<Unenforced>, DriverExit> {
        let backend = &*self.core.backend;
        let mut observed = backend.observe(sandbox).await.map_err(OrchestratorError::from)?;
        if let Phase::Starting { .. } = observed.phase {
            let mut control_request = self.control_request.clone();
            observed = tokio::select! {
                observed = wait_while_starting(backend, sandbox) => observed.map_err(OrchestratorError::from)?,
                () = wait_for_cancel(&mut control_request) => return Err(DriverExit::Cancelled),
            };
        }
        if let Some(ended) = end_of(observed.phase) {
            return Err(DriverExit::Lost(ended));
        }
        Ok(observed.unenforced.into_iter().map(|(limit, why)| Unenforced { limit, why }).collect())
    }
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
fn creation_failed(error: SandboxError) -> DriverExit {
    match error {
        // What was requested is not available, or not now; the job reports the specific error.
        SandboxError::Unavailable { .. }
        | SandboxError::NoImage(_)
        | SandboxError::InsufficientIsolation { .. }
        | SandboxError::LimitOutOfRange { .. }
        | SandboxError::LimitUnenforceable { .. } => DriverExit::Failed(error.into()),
        SandboxError::HostUnsupported { .. }
        | SandboxError::NotRunning { .. }
        | SandboxError::Setup { .. }
        | SandboxError::Overcommitted { .. }
        | SandboxError::Io { .. } => {
            DriverExit::Lost(Ended { reason: EndReason::NotStarted, detail: describe(&error) })
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
            DriverExit::Failed(error) => (error.code(), error.needs_operator()),
            DriverExit::Lost(ended) => {
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
