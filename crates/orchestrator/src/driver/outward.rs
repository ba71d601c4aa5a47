//! Serves what the sandbox wants of the outside: every outgoing connection is a stream that the guest opens.

use std::sync::Arc;

use egress::{EgressEvent, Proxy, ProxySettings};
use protocol::{GuestRequest, IncomingStreams};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::event::{CallRef, EventBody, NewEvent};
use crate::recorder::Recorder;

/// Events of outgoing connections that wait to be logged.
const WAITING_EVENTS: usize = 256;

impl Driver {
    /// Serves the streams that the guest opens, for as long as the link stands.
    pub(super) fn serve_outward(&self, mut incoming: IncomingStreams) {
        let (sender, events) = mpsc::channel(WAITING_EVENTS);
        let proxy = Proxy::new(self.policy.clone(), sender, ProxySettings::default());
        self.core.tasks.spawn(log_connections(events, Arc::clone(&self.recorder)));
        // The streams end with the link, and the link ends with the driver.
        self.core.tasks.spawn(async move {
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

    /// Cancelled when the driver ends.
    pub(super) fn link_tasks_token(&self) -> CancellationToken {
        self.link_tasks.clone()
    }
}

/// Writes the connections down, as many at once as have come.
async fn log_connections(mut events: mpsc::Receiver<EgressEvent>, recorder: Arc<Recorder>) {
    let mut batch = Vec::new();
    while events.recv_many(&mut batch, WAITING_EVENTS).await > 0 {
        let entries = batch.drain(..).map(entry).collect();
        if let Err(error) = recorder.append(entries).await {
            tracing::warn!(job = %recorder.job(), %error, "an outgoing connection was not logged");
        }
    }
}

fn entry(event: EgressEvent) -> NewEvent {
    let call = event.connection().call.as_deref().and_then(parse_call);
    NewEvent { call, body: EventBody::Egress(event) }
}

/// The call that a client names as its user: `<call>.<attempt>`.
fn parse_call(user: &str) -> Option<CallRef> {
    let (id, attempt) = user.rsplit_once('.')?;
    Some(CallRef { id: id.to_owned(), attempt: attempt.parse().ok()? })
}
