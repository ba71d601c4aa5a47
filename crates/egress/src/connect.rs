//! `CONNECT`: bytes both ways until both sides are done.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional_with_sizes;

use crate::gate::Admitted;
use crate::refusal::ReasonCode;

/// The buffer of each direction.
const BUFFER: usize = 16 * 1024;

/// A connection that was allowed and waits for its answer to be sent.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    admitted: Admitted,
    idle_timeout: Duration,
}

impl Tunnel {
    pub(crate) fn new(client: OnUpgrade, admitted: Admitted, idle_timeout: Duration) -> Self {
        Self { client, admitted, idle_timeout }
    }

    /// Passes bytes until both sides have closed, one breaks, or none has passed for too long. A side that closes
    /// its direction leaves the other open.
    pub(crate) async fn run(self) {
        let Admitted { mut stream, meter, record } = self.admitted;
        let mut client = match self.client.await {
            Ok(client) => TokioIo::new(client),
            Err(error) => return record.close(None, format!("the client was gone: {error}")).await,
        };
        let (code, reason) = tokio::select! {
            copied = copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER, BUFFER) => match copied {
                Ok(_) => (None, "closed by both sides".into()),
                Err(error) => (None, format!("broken: {error}")),
            },
            () = meter.idle(self.idle_timeout) => {
                (Some(ReasonCode::Timeout), format!("ended, no byte passed for {:?}", self.idle_timeout))
            }
        };
        // The log may make this wait; the two sides must not.
        drop((client, stream));
        record.close(code, reason).await;
    }
}
