//! Runs one process in the sandbox and follows it to its end, across link failures and server restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use egress::TrustStores;
use protocol::{
    CallFollower, CallKey, CallStatus, Exec, ExecEvent, ExecOutcome, ExecUpdate, Follow, GuestClient,
    ProtocolError,
};
use tokio::time::{sleep_until, timeout};

use super::{Driver, OutputSink, Stop};
use crate::desktop::is_announced;
use crate::event::{CallRef, ControlRequest};
use crate::request::JobSpec;

/// Port of the egress proxy in the sandbox.
pub(crate) const EGRESS_PORT: u16 = 3128;
/// Paths of the CA certificates in every sandbox.
const TRUST_STORES: TrustStores<'_> =
    TrustStores { bundle: "/etc/ssl/certs/ca-certificates.crt", java: "/etc/ssl/certs/java/cacerts" };

pub(crate) struct ExecCall {
    /// The call in the log.
    pub(crate) call: CallRef,
    /// The request to the guest.
    pub(crate) exec: Exec,
}

impl ExecCall {
    pub(crate) fn key(&self) -> CallKey {
        CallKey::new(self.call.id.clone(), self.call.attempt)
    }
}

/// The environment of everything that runs in a job.
pub(crate) fn environment(spec: &JobSpec, call: &CallRef) -> BTreeMap<String, String> {
    let mut variables = plain_environment();
    let user = format!("{}.{}", call.id, call.attempt);
    variables.extend(egress::environment(&user, EGRESS_PORT, TRUST_STORES));
    if is_announced(spec) {
        variables.insert("DISPLAY".to_owned(), protocol::DISPLAY.to_owned());
    }
    let secrets = spec.egress_settings.secrets.iter();
    variables.extend(secrets.map(|(name, secret)| (name.clone(), secret.placeholder.clone())));
    variables.extend(spec.environment.clone());
    variables
}

/// The variables that are the same for every job.
pub(crate) fn plain_environment() -> BTreeMap<String, String> {
    [
        ("HOME", "/home/agent"),
        ("USER", "agent"),
        ("LOGNAME", "agent"),
        ("SHELL", "/bin/bash"),
        ("PATH", "/home/agent/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        // The only category that differs from the C locale. As `LANG`, it would make each program open eleven more
        // files at startup.
        ("LC_CTYPE", "C.UTF-8"),
        ("TERM", "dumb"),
        // Show output as soon as it is printed.
        ("PYTHONUNBUFFERED", "1"),
        // The sandbox takes the place of a virtual environment, so installing packages globally is fine.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("npm_config_prefix", "/home/agent/.local"),
        ("npm_config_update_notifier", "false"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

/// Why following stopped before the process exited.
enum Ending {
    Broken(ProtocolError),
    Stop(Stop),
}

impl Driver {
    /// Runs a process, or follows it if it was started before; `sink` receives its output.
    pub(super) async fn run_exec(
        &mut self,
        call: &ExecCall,
        sink: &mut OutputSink,
    ) -> Result<ExecOutcome, Stop> {
        let mut begun = !self.past.is_empty() || sink.wanted_chunk() > 0;
        loop {
            let client = self.guest().await?;
            let resumed = match begun {
                true => resume(&client, call, sink.wanted_chunk()).await,
                false => Ok(None),
            };
            let followed = match resumed {
                Ok(Some(follower)) => Ok(follower),
                Ok(None) if self.is_cancelled() => return Err(Stop::Cancelled),
                Ok(None) if self.is_time_over() => return Err(Stop::Deadline),
                Ok(None) => begin(&client, call).await,
                Err(error) => Err(error),
            };
            begun = true;
            let ending = match followed {
                Ok(mut follower) => match self.follow(&mut follower, sink).await {
                    Ok(outcome) => {
                        sink.flush_all().await?;
                        return Ok(outcome);
                    }
                    Err(ending) => ending,
                },
                Err(error) => Ending::Broken(error),
            };
            match ending {
                Ending::Broken(error) => self.after_break(error).await?,
                Ending::Stop(stop) => {
                    self.kill(&client, call, sink).await;
                    return Err(stop);
                }
            }
        }
    }

    async fn follow(
        &mut self,
        follower: &mut CallFollower,
        sink: &mut OutputSink,
    ) -> Result<ExecOutcome, Ending> {
        loop {
            // The deadline moves whenever the job has waited for the operator.
            let deadline = self.deadline();
            let flush_at = sink.flush_at();
            tokio::select! {
                update = follower.next() => match update.map_err(Ending::Broken)? {
                    ExecUpdate::Event(ExecEvent::Ended(outcome)) => return Ok(outcome),
                    update => record(update, sink).await?,
                },
                () = sleep_until(flush_at.unwrap_or(deadline)), if flush_at.is_some() => {
                    sink.flush().await.map_err(stop)?;
                }
                () = wait_for_cancel(&mut self.control_request) => return Err(Ending::Stop(Stop::Cancelled)),
                () = sleep_until(deadline) => {
                    if self.is_time_over() {
                        return Err(Ending::Stop(Stop::Deadline));
                    }
                }
            }
        }
    }

    /// Kills a process and records its remaining output. If the guest does not answer in time, the next caller deals
    /// with that.
    async fn kill(&mut self, client: &GuestClient, call: &ExecCall, sink: &mut OutputSink) {
        let killing = async {
            client.kill(call.key()).await?;
            let mut follower = client.follow(call.key(), sink.wanted_chunk(), Follow::Capped).await?;
            loop {
                match follower.next().await? {
                    ExecUpdate::Event(ExecEvent::Ended(_)) => return Ok::<(), ProtocolError>(()),
                    update => drop(record(update, sink).await),
                }
            }
        };
        let answer_timeout = self.core.settings().guest_answer_timeout;
        tokio::select! {
            _ = timeout(answer_timeout, killing) => {}
            // A frozen guest cannot kill anything.
            () = silence(client, answer_timeout / 3) => {}
        }
        let _ = sink.flush_all().await;
    }
}

/// Returns if the guest does not answer a ping within `patience`; otherwise never.
async fn silence(client: &GuestClient, patience: Duration) {
    if timeout(patience, client.ping()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

fn stop(error: crate::error::OrchestratorError) -> Ending {
    Ending::Stop(Stop::Failed(error))
}

async fn record(update: ExecUpdate, sink: &mut OutputSink) -> Result<(), Ending> {
    match update {
        ExecUpdate::Output(chunk) => sink.take(chunk).await.map_err(stop),
        ExecUpdate::Event(ExecEvent::Gap { to_sequence, bytes, .. }) => {
            sink.skip(to_sequence, bytes).await.map_err(stop)
        }
        ExecUpdate::Event(ExecEvent::Started { .. } | ExecEvent::Progress { .. } | ExecEvent::Ended(_)) => {
            Ok(())
        }
    }
}

/// Returns when the job is cancelled; otherwise never.
pub(super) async fn wait_for_cancel(
    control_request: &mut tokio::sync::watch::Receiver<Option<ControlRequest>>,
) {
    if control_request
        .wait_for(|control_request| *control_request == Some(ControlRequest::Cancel))
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

async fn begin(client: &GuestClient, call: &ExecCall) -> Result<CallFollower, ProtocolError> {
    client.exec(call.exec.clone(), Follow::Capped).await
}

/// Looks up a call that may have been sent before; `None` if the guest does not know it.
async fn resume(
    client: &GuestClient,
    call: &ExecCall,
    from_sequence: u64,
) -> Result<Option<CallFollower>, ProtocolError> {
    match client.call_status(call.key()).await? {
        CallStatus::Unknown => Ok(None),
        CallStatus::Running { .. } | CallStatus::Ended(_) => {
            client.follow(call.key(), from_sequence, Follow::Capped).await.map(Some)
        }
        CallStatus::File(_) | CallStatus::Answered => {
            Err(ProtocolError::Unexpected("the result of something else for a process".into()))
        }
    }
}
