//! A tunnel: bytes both ways until both sides are done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};

use crate::gate::Admitted;
use crate::ledger::Ledger;
use crate::refusal::ReasonCode;
use crate::secret::Secrets;
use crate::stray::Watched;
use crate::target::Target;

/// The buffer of each direction.
const BUFFER: usize = 16 * 1024;

/// What a tunnel needs beside its two ends.
pub(crate) struct TunnelSettings {
    pub(crate) idle_timeout: Duration,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) secrets: Arc<Secrets>,
}

/// Passes bytes until both sides have closed, one breaks, or none has passed for too long. A side that closes its
/// direction leaves the other open.
pub(crate) async fn tunnel<C>(mut client: C, target: Target, admitted: Admitted, settings: TunnelSettings)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let Admitted { stream, meter, record, .. } = admitted;
    let TunnelSettings { idle_timeout, ledger, secrets } = settings;
    let mut stream = Watched::new(stream, secrets, target);
    let stray = stream.stray();
    let (code, reason) = tokio::select! {
        copied = copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER, BUFFER) => match copied {
            Ok(_) => (None, "closed by both sides".into()),
            Err(error) if stray.load(Ordering::Relaxed) => {
                (Some(ReasonCode::SecretElsewhere), format!("ended: {error}"))
            }
            Err(error) => (None, format!("broken: {error}")),
        },
        () = ledger.all_used_up() => ledger.ending(),
        () = meter.idle(idle_timeout) => {
            (Some(ReasonCode::Timeout), format!("ended, no byte passed for {idle_timeout:?}"))
        }
    };
    // The log may make this wait; the two sides must not.
    drop((client, stream));
    record.close(code, reason).await;
}
