//! Makes the job's sandbox, opens the link to its guest, and opens it again after a break.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::{GuestClient, ProtocolError};
use sandbox::{Ended, EndedReason, Phase, SandboxError, SandboxId, SandboxSpec};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Driver, Stop, describe};
use crate::error::OrchestratorError;
use crate::event::{EventBody, Unenforced};
use crate::ids::JobId;
use crate::state::Happening;
use crate::view::JobView;

/// How long a guest is tried again that says nothing, while its sandbox lives: a crowd of them is asked at once when a server starts on
/// a busy machine, and the work of a sandbox that is given up is lost.
const SILENCE_PATIENCE: Duration = Duration::from_secs(60);
/// How often a sandbox is tried before the job gives up.
const CREATE_ATTEMPTS: u32 = 3;
/// How often the guest is asked whether it is there, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_PATIENCE: Duration = Duration::from_secs(20);

/// The sandbox that a job has asked for.
#[derive(Clone, Copy)]
pub(super) enum Requested {
    /// Yet to be made.
    New(SandboxId),
    /// Made before, for whoever comes; it stands still.
    Pooled(SandboxId),
    /// Asked for by an earlier driver, which may have got to any point.
    Earlier(SandboxId),
}

impl Driver {
    /// Makes the sandbox, or finds it where it was made before; restores the last checkpoint in a new one.
    pub(super) async fn make_sandbox(&mut self, view: &JobView, requested: Requested) -> Result<(), Stop> {
        let (Requested::New(sandbox) | Requested::Pooled(sandbox) | Requested::Earlier(sandbox)) = requested;
        if !matches!(requested, Requested::Pooled(_)) {
            self.create(sandbox).await?;
        }
        // An earlier one may be of an earlier server's pool, taken just before that server died.
        if !matches!(requested, Requested::New(_)) {
            self.thaw(sandbox).await?;
        }
        let (client, boot_id) = self.connect(sandbox).await?;
        if let Some(steps) = view.checkpoint_steps {
            self.restore_checkpoint(&client, steps).await?;
        } else {
            self.bring_uploads(&client).await?;
        }
        self.remember_files(&client).await?;
        let unenforced = self.core.backend.unenforced(sandbox).await.map_err(OrchestratorError::from)?;
        let unenforced = unenforced.into_iter().map(|(limit, why)| Unenforced { limit, why }).collect();
        let ready = EventBody::SandboxReady { sandbox, boot_id, unenforced }.into();
        self.recorder.change(vec![ready], Happening::SandboxReady, None).await?;
        Ok(())
    }

    fn sandbox_spec(&self) -> SandboxSpec {
        SandboxSpec {
            image: self.spec.image.clone(),
            isolation: self.spec.isolation,
            limits: self.spec.limits,
            extra_ca: Arc::clone(&self.core.settings().extra_ca),
            own_ca: self.outward.as_ref().and_then(|outward| outward.certificate()).map(ToOwned::to_owned),
            labels: BTreeMap::from([("job".to_owned(), self.recorder.job().to_string())]),
        }
    }

    /// Says which sandbox the job gets, one that stands ready or a new one, and at the same moment what led to it.
    pub(super) async fn request_sandbox(
        &self,
        happening: Option<Happening>,
    ) -> Result<Requested, OrchestratorError> {
        let spec = self.sandbox_spec();
        let pooled = self.core.pool.take(&spec, self.core.backend.image_version(&spec.image));
        let sandbox = pooled.unwrap_or_else(SandboxId::generate);
        let requested = vec![EventBody::SandboxRequested { sandbox }.into()];
        let recorded = match happening {
            Some(happening) => self.recorder.change_then(happening, requested).await,
            None => self.recorder.append(requested).await.map(drop),
        };
        self.core.pool.released(sandbox);
        recorded?;
        Ok(pooled.map_or(Requested::New(sandbox), Requested::Pooled))
    }

    /// One that came from the pool stands still until it is let go.
    async fn thaw(&self, sandbox: SandboxId) -> Result<(), Stop> {
        match self.core.backend.freezer() {
            Some(freezer) => freezer.thaw(sandbox).await.map_err(|error| not_started(&error)),
            None => Ok(()),
        }
    }

    async fn create(&self, sandbox: SandboxId) -> Result<(), Stop> {
        let spec = self.sandbox_spec();
        let mut attempt = 1;
        loop {
            let started = Instant::now();
            match self.core.backend.create(sandbox, &spec).await {
                Ok(()) => {
                    self.core.metrics.sandbox_created(started.elapsed());
                    return Ok(());
                }
                Err(error) if error.is_retryable() && attempt < CREATE_ATTEMPTS => {
                    tracing::warn!(job = %self.recorder.job(), error = &error as &dyn std::error::Error, "making the sandbox again");
                    let _ = self.core.backend.destroy(sandbox).await;
                    attempt += 1;
                }
                Err(error) => return Err(not_started(&error)),
            }
        }
    }

    /// The guest of the job; opens the link again where it broke.
    pub(super) async fn guest(&self) -> Result<GuestClient, Stop> {
        // Several calls may find the link broken at the same time; one of them opens it again.
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

    async fn connect(&self, sandbox: SandboxId) -> Result<(GuestClient, String), Stop> {
        let answer_timeout = self.core.settings().guest_answer_timeout;
        let begun = Instant::now();
        // Since when it has answered, and not well.
        let mut wrong_since: Option<Instant> = None;
        let mut pause = Duration::from_millis(2);
        loop {
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
                        (begun.elapsed() > SILENCE_PATIENCE, String::new())
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
        if let Some(outward) = &self.outward {
            outward.serve(&self.core, incoming);
        }
        self.core.tasks.spawn(watch_over(client.clone(), self.recorder.job(), self.link_tasks_token()));
        self.guest.send_replace(Some(client.clone()));
        Ok((client, welcome.boot_id))
    }

    /// How the sandbox ended, or `None` while it lives.
    async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, Stop> {
        match self.core.backend.observe(sandbox).await.map_err(OrchestratorError::from)?.phase {
            Phase::Ended(ended) => Ok(Some(ended)),
            Phase::Missing => {
                Ok(Some(Ended { reason: EndedReason::Lost, detail: "the sandbox is gone".into() }))
            }
            Phase::Starting | Phase::Running => Ok(None),
        }
    }

    /// What a broken request means: `Ok` when it is worth another try on a new link.
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

/// Ends a link whose guest has stopped answering, so that whoever waits on it finds out; and with the driver.
async fn watch_over(client: GuestClient, job: JobId, driver_ended: CancellationToken) {
    loop {
        tokio::select! {
            end = client.link().closed() => {
                tracing::debug!(%job, %end, "the link to the sandbox has ended");
                return;
            }
            () = driver_ended.cancelled() => break,
            () = tokio::time::sleep(PING_INTERVAL) => {}
        }
        let silence = match tokio::time::timeout(PING_PATIENCE, client.ping()).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => describe(&error),
            Err(_) => format!("no answer in {} s", PING_PATIENCE.as_secs()),
        };
        tracing::warn!(%job, silence, "the guest does not answer, its link is opened again");
        break;
    }
    client.link().close();
}

fn lost(detail: String) -> Stop {
    Stop::Lost(Ended { reason: EndedReason::Lost, detail })
}

fn not_started(error: &SandboxError) -> Stop {
    Stop::Lost(Ended { reason: EndedReason::NotStarted, detail: describe(error) })
}
