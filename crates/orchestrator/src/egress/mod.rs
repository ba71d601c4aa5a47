//! Network egress of one job: its policy, its allowance, the secrets that are injected into its requests, and the log
//! of all connections. Created once per driver; links come and go.

mod approvals;
mod audit;
mod network;
mod secrets;

use std::sync::Arc;

use egress::{EgressEvent, Policy, Proxy, ProxySettings, TlsInterception, Upstream};
use job::{CallRef, Event, EventBody, InvalidField, JobSpec, NewEvent};
use protocol::{GuestRequest, IncomingStreams};
use tokio::sync::{mpsc, oneshot};

use self::approvals::EgressApprovals;
use self::audit::Audit;
use crate::core::Core;
use crate::core::last_use::LastUse;
use crate::error::OrchestratorError;
use crate::recorder::Recorder;

pub(crate) use self::audit::complete_lists;
pub use self::network::{Download, NetworkReport, NetworkTotals};
pub(crate) use self::network::{Provenance, provenance};

/// Capacity of the queue of egress events that are to be logged.
const WAITING_EVENTS: usize = 256;

pub(crate) struct JobEgress {
    proxy: Proxy,
    recorder: Arc<Recorder>,
    certificate: Option<String>,
}

impl JobEgress {
    /// Creates it from the job's spec, the operator's ceiling, and the connections already in the log. `used` says
    /// whether users work in the sandbox.
    pub(crate) async fn open(
        core: &Arc<Core>,
        recorder: &Arc<Recorder>,
        spec: &JobSpec,
        past: &[Event],
        used: LastUse,
    ) -> Result<Self, OrchestratorError> {
        let settings = core.settings();
        let policy = policy_of_accepted_job(spec, &settings)
            .map_err(|error| InvalidField { field: "egress".into(), problem: error.to_string() })?;
        let before = network::earlier_connections(past);
        let ended = recorder.append(entries(&before.unfinished, recorder).await).await?;
        let audit = Audit::start(&core.folder.network_log(recorder.job()), past, &ended)?;
        let (sender, events) = mpsc::channel(WAITING_EVENTS);
        let proxy_settings = ProxySettings {
            first_id: before.next_id,
            allowance: spec.egress_settings.allowance,
            used: before.used,
            approval_timeout: spec.egress_settings.wait,
            ..ProxySettings::default()
        };
        let approvals = EgressApprovals::new(Arc::clone(recorder), used);
        let mut proxy = Proxy::new(policy, sender, proxy_settings).with_approver(Arc::new(approvals));
        let mut certificate = None;
        if !spec.egress_settings.secrets.is_empty() {
            let kept = secrets::open(core, recorder.job(), spec).await?;
            recorder.cover(kept.secrets.redactor());
            certificate = Some(kept.authority.certificate().to_owned());
            let upstream = Upstream::load(&settings.extra_ca).map_err(secrets::unavailable)?;
            proxy = proxy.with_tls_interception(TlsInterception::new(kept.secrets, kept.authority, upstream));
        }
        let (flushes, flush_requests) = mpsc::channel(1);
        recorder.set_connection_flusher(flushes);
        core.tasks.spawn(log_connections(events, flush_requests, audit, Arc::clone(recorder)));
        Ok(Self { proxy, recorder: Arc::clone(recorder), certificate })
    }

    /// The certificate (PEM) of the CA that signs for the hosts of secrets; `None` if the job has no secrets.
    pub(crate) fn certificate(&self) -> Option<&str> {
        self.certificate.as_deref()
    }

    /// The job's egress proxy, for clients on the host that connect on behalf of the job. Connections through it are
    /// in the job's log.
    pub(crate) fn proxy(&self) -> Proxy {
        self.proxy.clone()
    }

    /// Serves the egress streams that the guest opens, for as long as the link is open.
    pub(crate) fn serve(&self, core: &Core, mut incoming: IncomingStreams) {
        let proxy = self.proxy.clone();
        // The streams end with the link, and the link ends with the driver.
        core.tasks.spawn(async move {
            while let Some(mut stream) = incoming.next().await {
                let proxy = proxy.clone();
                tokio::spawn(async move {
                    if let Ok(GuestRequest::Egress) = stream.receive_message::<GuestRequest>().await {
                        proxy.serve(stream.into_raw()).await;
                    }
                });
            }
        });
    }

    /// Returns when everything that has happened so far is in the log.
    pub(crate) async fn flush(&self) {
        self.proxy.flush_refusals().await;
        self.recorder.flush_connections().await;
    }
}

/// The policy of an accepted job. If the ceiling has been lowered since, connections above it are refused, but the
/// job goes on.
fn policy_of_accepted_job(
    spec: &JobSpec,
    settings: &crate::core::settings::Settings,
) -> Result<Policy, egress::EgressError> {
    let policy = Policy::new(spec.egress.clone(), settings.egress_ranges.clone())?;
    Ok(match &settings.egress_ceiling {
        Some(ceiling) => policy.capped(ceiling.clone()),
        None => policy,
    })
}

/// The policy of a new job; an error if it exceeds the operator's ceiling.
pub(crate) fn policy_of(
    spec: &JobSpec,
    settings: &crate::core::settings::Settings,
) -> Result<Policy, egress::EgressError> {
    let policy = Policy::new(spec.egress.clone(), settings.egress_ranges.clone())?;
    match &settings.egress_ceiling {
        Some(ceiling) => policy.under(ceiling.clone()),
        None => Ok(policy),
    }
}

/// Logs the connections in batches.
async fn log_connections(
    mut events: mpsc::Receiver<EgressEvent>,
    mut flushes: mpsc::Receiver<oneshot::Sender<()>>,
    mut audit: Audit,
    recorder: Arc<Recorder>,
) {
    let mut batch = Vec::new();
    loop {
        let mut asked = None;
        tokio::select! {
            count = events.recv_many(&mut batch, WAITING_EVENTS) => if count == 0 { return },
            Some(done) = flushes.recv() => {
                asked = Some(done);
                while let Ok(event) = events.try_recv() {
                    batch.push(event);
                }
            }
        }
        if !batch.is_empty() {
            match recorder.append(entries(&batch, &recorder).await).await {
                // As logged: with the values of secrets redacted.
                Ok(written) => audit.append(&written),
                Err(error) => {
                    tracing::warn!(job = %recorder.job(), %error, "an outgoing connection was not logged")
                }
            }
            batch.clear();
        }
        if let Some(done) = asked {
            let _ = done.send(());
        }
    }
}

/// Clients state which call a connection belongs to. The log entry is attributed to that call only if it exists; the
/// claim itself stays in the event.
async fn entries(events: &[EgressEvent], recorder: &Recorder) -> Vec<NewEvent> {
    let mut entries = Vec::with_capacity(events.len());
    for event in events {
        let call = match event.call().and_then(parse_call) {
            Some(call) if recorder.has_started_call(&call).await => Some(call),
            _ => None,
        };
        entries.push(NewEvent { call, ..EventBody::Egress(event.clone()).into() });
    }
    entries
}

/// Parses the call that a client passes as its proxy user: `<call>.<attempt>`.
fn parse_call(user: &str) -> Option<CallRef> {
    let (id, attempt) = user.rsplit_once('.')?;
    Some(CallRef { id: id.to_owned(), attempt: attempt.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_job_survives_a_lowered_egress_ceiling_and_excess_connections_are_refused() {
        let job = serde_json::json!({"steps": [{"tool": "shell", "command": "true"}], "egress": "open"});
        let job: job::NewJob = serde_json::from_value(job).unwrap();
        let spec = job.check(&job::JobDefaults::default()).unwrap();
        let settings = crate::core::settings::Settings {
            egress_ceiling: Some(egress::Mode::Packages),
            ..crate::core::settings::Settings::default()
        };
        assert!(policy_of(&spec, &settings).is_err(), "a new job is not taken");
        let policy = policy_of_accepted_job(&spec, &settings).unwrap();
        let host: egress::Host = "elsewhere.example".parse().unwrap();
        let refusal =
            policy.check(&egress::Target { host, port: 443 }, egress::Visibility::Bytes).unwrap_err();
        assert_eq!(refusal.code, egress::ReasonCode::AboveCeiling);
        assert_eq!(policy.ceiling(), Some(&egress::Mode::Packages));
    }
}
