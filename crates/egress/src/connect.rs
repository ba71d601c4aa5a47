//! A tunnel: checks its first bytes, then copies bytes in both directions until both sides are done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::time::timeout;

use crate::event::Record;
use crate::gate::{Admitted, Asker, Gate};
use crate::opening::{Kind, Opening, UNRECOGNIZED_NAME, check_server_name, read_opening};
use crate::policy::{Grant, Sight};
use crate::prefixed::Prefixed;
use crate::refusal::{ReasonCode, Refusal};
use crate::secret::Secrets;
use crate::stray::Watched;
use crate::target::Target;

/// The buffer size of each direction.
const BUFFER: usize = 16 * 1024;
/// How long a client may take to read the refusal.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(15);

/// A tunnel that was allowed as far as can be decided before its first byte.
pub(crate) struct Tunnel<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) asker: &'a Asker,
    pub(crate) target: &'a Target,
    pub(crate) secrets: Arc<Secrets>,
}

/// Why a tunnel has ended.
type End = (Option<ReasonCode>, String);

impl Tunnel<'_> {
    /// Copies bytes until both sides have closed, one fails, or the idle timeout passes. A side that closes its
    /// direction leaves the other one open.
    pub(crate) async fn carry<C>(self, client: C, admitted: Admitted)
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let Admitted { stream, meter, mut record, grant } = admitted;
        let idle_timeout = self.gate.settings().idle_timeout;
        let ledger = self.gate.ledger();
        let stream = Watched::new(stream, Arc::clone(&self.secrets), self.target.clone());
        // `select!` drops both streams here. Writing the log may block, and they must not stay open meanwhile.
        let (code, reason) = tokio::select! {
            ended = self.pass(client, stream, &grant, &mut record) => ended,
            () = ledger.all_used_up() => ledger.ending(),
            () = meter.idle(idle_timeout) => {
                (Some(ReasonCode::Timeout), format!("ended, no byte passed for {idle_timeout:?}"))
            }
        };
        record.close(code, reason).await;
    }

    async fn pass<C, S>(
        &self,
        mut client: C,
        mut stream: Watched<S>,
        grant: &Grant,
        record: &mut Record,
    ) -> End
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let opening = match read_opening(&mut client, &mut stream).await {
            Ok(opening) => opening,
            Err(error) => return (None, format!("broken: {error}")),
        };
        let is_tls = matches!(opening.kind, Kind::Tls(_));
        match self.check(&opening, grant).await {
            Ok(()) if opening.kind == Kind::Other => record.set_without_tls(),
            Ok(()) => {}
            Err(_) if opening.kind == Kind::Closed => return (None, "closed without a byte".into()),
            Err(refusal) => {
                // The connection itself was allowed and logged, so the reason for ending it must be logged too.
                self.gate.refuse(self.asker.clone(), Some(self.target), &refusal).await;
                let told = if is_tls { UNRECOGNIZED_NAME.to_vec() } else { refusal.written().into_bytes() };
                let _ = timeout(REFUSAL_PATIENCE, client.write_all(&told)).await;
                let _ = timeout(REFUSAL_PATIENCE, client.shutdown()).await;
                return (Some(refusal.code), refusal.reason);
            }
        }
        if let Err(error) = client.write_all(&opening.from_server).await {
            return (None, format!("broken: {error}"));
        }
        let mut client = Prefixed { first: opening.from_client.freeze(), stream: client };
        let stray = stream.stray();
        match copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER, BUFFER).await {
            Ok(_) => (None, "closed by both sides".into()),
            Err(error) if stray.load(Ordering::Relaxed) => {
                (Some(ReasonCode::SecretElsewhere), format!("ended: {error}"))
            }
            Err(error) => (None, format!("broken: {error}")),
        }
    }

    /// Decides from its first bytes whether a tunnel may continue.
    async fn check(&self, opening: &Opening, grant: &Grant) -> Result<(), Refusal> {
        match &opening.kind {
            Kind::Tls(server_name) => check_server_name(server_name.as_deref(), self.target),
            Kind::Other | Kind::Closed => {
                let decided = self.gate.decide_request(self.asker, self.target, Sight::WithoutTls, grant);
                decided.await.map(drop)
            }
        }
    }
}
