//! A tunnel: checks its first bytes, then copies bytes in both directions until both sides are done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::time::timeout;

use crate::gate::{Admitted, Gate, Requester};
use crate::http::serialized_refusal;
use crate::log::Record;
use crate::policy::{Grant, Visibility};
use crate::prefixed::Prefixed;
use crate::refusal::{ReasonCode, Refusal};
use crate::secrets::{LeakScanStream, Secrets};
use crate::target::Target;
use crate::tls::{FirstBytes, Kind, UNRECOGNIZED_NAME, check_server_name, read_first_bytes};

/// The buffer size of each direction.
const BUFFER: usize = 16 * 1024;
/// How long a client may take to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(15);

/// A tunnel that was allowed as far as can be decided before its first byte.
pub(crate) struct Tunnel<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) requester: &'a Requester,
    pub(crate) target: &'a Target,
    pub(crate) secrets: Arc<Secrets>,
}

/// Why a tunnel has ended.
type End = (Option<ReasonCode>, String);

impl Tunnel<'_> {
    /// Copies bytes until both sides have closed, one fails, or the idle timeout passes. A side that closes its
    /// direction leaves the other one open.
    pub(crate) async fn run<C>(self, client: C, admitted: Admitted)
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let Admitted { stream, meter, mut record, grant } = admitted;
        let idle_timeout = self.gate.settings().idle_timeout;
        let ledger = self.gate.ledger();
        let stream = LeakScanStream::new(stream, Arc::clone(&self.secrets), self.target.clone());
        // `select!` drops both streams here. Writing the log may block, and they must not stay open meanwhile.
        let (code, reason) = tokio::select! {
            ended = self.forward(client, stream, &grant, &mut record) => ended,
            () = ledger.limit_reached() => ledger.ending(),
            () = meter.idle(idle_timeout) => {
                (Some(ReasonCode::Timeout), format!("ended, no byte passed for {idle_timeout:?}"))
            }
        };
        record.close(code, reason).await;
    }

    async fn forward<C, S>(
        &self,
        mut client: C,
        mut stream: LeakScanStream<S>,
        grant: &Grant,
        record: &mut Record,
    ) -> End
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let first_bytes = match read_first_bytes(&mut client, &mut stream).await {
            Ok(first_bytes) => first_bytes,
            Err(error) => return (None, format!("broken: {error}")),
        };
        let is_tls = matches!(first_bytes.kind, Kind::Tls(_));
        match self.check(&first_bytes, grant).await {
            Ok(()) if first_bytes.kind == Kind::Other => record.set_without_tls(),
            Ok(()) => {}
            Err(_) if first_bytes.kind == Kind::Closed => return (None, "closed without data".into()),
            Err(refusal) => {
                // The connection itself was allowed and logged, so the reason for ending it must be logged too.
                self.gate.refuse(self.requester.clone(), Some(self.target), &refusal).await;
                let reply = if is_tls {
                    UNRECOGNIZED_NAME.to_vec()
                } else {
                    serialized_refusal(&refusal).into_bytes()
                };
                let _ = timeout(REFUSAL_TIMEOUT, client.write_all(&reply)).await;
                let _ = timeout(REFUSAL_TIMEOUT, client.shutdown()).await;
                return (Some(refusal.code), refusal.reason);
            }
        }
        if let Err(error) = client.write_all(&first_bytes.from_server).await {
            return (None, format!("broken: {error}"));
        }
        let mut client = Prefixed { first: first_bytes.from_client.freeze(), stream: client };
        let leaked = stream.leaked();
        match copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER, BUFFER).await {
            Ok(_) => (None, "closed by both sides".into()),
            Err(error) if leaked.load(Ordering::Relaxed) => {
                (Some(ReasonCode::SecretHostMismatch), format!("ended: {error}"))
            }
            Err(error) => (None, format!("broken: {error}")),
        }
    }

    /// Decides from its first bytes whether a tunnel may continue.
    async fn check(&self, first_bytes: &FirstBytes, grant: &Grant) -> Result<(), Refusal> {
        match &first_bytes.kind {
            Kind::Tls(server_name) => check_server_name(server_name.as_deref(), self.target),
            Kind::Other | Kind::Closed => {
                let decided =
                    self.gate.decide_request(self.requester, self.target, Visibility::WithoutTls, grant);
                decided.await.map(drop)
            }
        }
    }
}
