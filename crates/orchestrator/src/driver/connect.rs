//! Opens the link to the guest of the job's sandbox, and reopens it after a failure.

use std::sync::Arc;
use std::time::Duration;

use job::{EventBody, JobId};
use protocol::{GuestClient, LinkCredentials, ProtocolError};
use sandbox::{EndReason, Ended, Phase, SandboxId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::stop::wait_for_cancel;
use super::{Driver, DriverExit, describe};
use crate::core::Core;
use crate::error::OrchestratorError;
use crate::recorder::operator_wait::Retries;

/// How long to retry a guest that does not answer while its sandbox is alive. After a server start on a busy host,
/// many guests are contacted at once, and giving up on a sandbox loses its work.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of the pings to the guest, and how long an answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

impl Driver {
    /// The client of the job's guest; reopens the link if it is broken.
    pub(super) async fn guest(&self) -> Result<GuestClient, DriverExit> {
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
    pub(super) async fn connect(&self, sandbox: SandboxId) -> Result<(GuestClient, String), DriverExit> {
        let mut tries = self.recorder.waiting().tries();
        loop {
            match self.reach(sandbox).await {
                Err(DriverExit::Failed(error)) if error.is_backend_unavailable() => {
                    self.wait_for_backend(&mut tries, &error).await?;
                }
                Ok(reached) => {
                    self.record_thaw(sandbox).await?;
                    return Ok(reached);
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Records that the sandbox runs again if an earlier server process has frozen it: that one cannot.
    async fn record_thaw(&self, sandbox: SandboxId) -> Result<(), DriverExit> {
        let is_frozen_in_log = self.recorder.with_view(|view| view.frozen_since_ms.is_some()).await;
        if is_frozen_in_log && self.core.host_disk.shortage().is_none() {
            self.recorder.record(EventBody::SandboxResumed { sandbox }).await?;
        }
        Ok(())
    }

    /// Returns when the backend answers again. A cancelled job does not wait: its sandbox counts as lost.
    async fn wait_for_backend(
        &self,
        tries: &mut Retries<'_>,
        error: &OrchestratorError,
    ) -> Result<(), DriverExit> {
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

    async fn reach(&self, sandbox: SandboxId) -> Result<(GuestClient, String), DriverExit> {
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
                return Err(DriverExit::Lost(ended));
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
        let secret = self.core.seal.link_secret(sandbox);
        let credentials = LinkCredentials::new(secret, self.recorder.generation().0);
        let (client, welcome, incoming) = match GuestClient::connect(stream, credentials).await {
            Ok(connected) => connected,
            Err(error @ ProtocolError::Version { .. }) => return Err(Dial::Fatal(lost(describe(&error)))),
            Err(error @ ProtocolError::LinkRefused(_)) => {
                return Err(Dial::Fatal(self.refused(&error).await));
            }
            Err(error) => return Err(Dial::Again(error.into())),
        };
        if let Err(ended) = self.known_boot.check(sandbox, &welcome.boot_id) {
            client.link().close();
            return Err(Dial::Fatal(DriverExit::Lost(ended)));
        }
        if let Some(egress) = &self.egress {
            egress.serve(&self.core, incoming);
        }
        let watch =
            watch_over(Arc::clone(&self.core), client.clone(), self.recorder.job(), self.link_tasks_token());
        self.core.tasks.spawn(watch);
        self.guest.send_replace(Some(client.clone()));
        Ok((client, welcome.boot_id))
    }

    /// Handles a guest that refuses this server. Whether there is a later owner is for the store to say, not for the guest:
    /// if there is one, the append fails as fenced, and this driver must not touch the sandbox.
    async fn refused(&self, error: &ProtocolError) -> DriverExit {
        let detail = describe(error);
        let text = format!("the sandbox does not accept this server: {detail}");
        match self.recorder.append_now(vec![EventBody::Note { text }.into()]).await {
            Ok(_) => lost(detail),
            Err(error) => error.into(),
        }
    }

    /// How the sandbox ended; `None` while it is alive.
    pub(super) async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, DriverExit> {
        Ok(end_of(self.core.backend.observe(sandbox).await.map_err(OrchestratorError::from)?.phase))
    }

    /// Checks that the guest of a cancelled job answers. The timeout is shorter than for a job that goes on.
    pub(super) async fn ensure_guest_responds(&self) -> Result<(), DriverExit> {
        let asking = async {
            // A link that breaks is reopened by the next caller that needs it.
            let _ = self.guest().await?.ping().await;
            Ok(())
        };
        let patience = self.core.settings().guest_answer_timeout * 2 / 3;
        let silent = || Err(lost("the guest did not answer after the cancellation".into()));
        tokio::time::timeout(patience, asking).await.unwrap_or_else(|_| silent())
    }

    /// Handles a failed request: `Ok` if another attempt on a new link makes sense.
    pub(super) async fn after_break(&self, error: ProtocolError) -> Result<(), DriverExit> {
        if error.is_retryable() {
            self.forget_broken_guest();
            return self.guest().await.map(drop);
        }
        Err(DriverExit::Failed(error.into()))
    }
}

enum Dial {
    Again(OrchestratorError),
    Fatal(DriverExit),
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

/// How a sandbox in this phase ended; `None` if it may still be used.
pub(super) fn end_of(phase: Phase) -> Option<Ended> {
    match phase {
        Phase::Ended(ended) => Some(ended),
        Phase::Missing => Some(Ended { reason: EndReason::Lost, detail: "the sandbox is gone".into() }),
        Phase::Starting { .. } | Phase::Ready => None,
    }
}

fn lost(detail: String) -> DriverExit {
    DriverExit::Lost(Ended { reason: EndReason::Lost, detail })
}
