//! Plain VNC for native viewers, which cannot send an API key.

use std::future::Future;
use std::time::Duration;

use futures::StreamExt;
use orchestrator::{Gate, Orchestrator, PortStream, SandboxCaller};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

use crate::streams::{InputMode, ViewerFilter};

/// The number of concurrent viewers.
const MAX_VIEWERS: usize = 32;
/// How long to wait after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Forwards plain VNC connections to the desktop of the newest running job until `ended` completes.
pub async fn forward_desktop(
    listener: TcpListener,
    orchestrator: Orchestrator,
    ended: impl Future<Output = ()> + Send,
) {
    let connections =
        futures::stream::unfold(
            listener,
            |listener| async move { Some((listener.accept().await, listener)) },
        );
    let carrying = connections.for_each_concurrent(MAX_VIEWERS, |accepted| {
        let orchestrator = orchestrator.clone();
        async move {
            let Ok((connection, _)) = accepted else {
                return tokio::time::sleep(ACCEPT_PAUSE).await;
            };
            let _ = connection.set_nodelay(true);
            if orchestrator.requires_authentication() {
                tracing::warn!("expose.vnc: disabled, because plain VNC cannot authenticate with API keys");
                return;
            }
            let Ok(Some(newest)) = orchestrator.newest_running(None).await else { return };
            let job = newest.job_id;
            match orchestrator.open_desktop(job).await {
                Ok(stream) => {
                    carry(connection, stream, orchestrator.gate(job, SandboxCaller::default())).await
                }
                Err(error) => tracing::info!(%job, %error, "cannot show the desktop"),
            }
        }
    });
    tokio::select! {
        () = carrying => {}
        () = ended => {}
    }
}

/// Forwards a viewer's connection. While a user has taken the sandbox over, the viewer can only watch.
async fn carry(connection: TcpStream, desktop: PortStream, gate: Gate) {
    let (mut from_viewer, mut to_viewer) = connection.into_split();
    let (mut from_desktop, mut to_desktop) = tokio::io::split(desktop);
    let inwards = async {
        let mut viewer = ViewerFilter::new();
        let mut piece = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from_viewer.read(&mut piece).await {
            let input_mode = if gate.check().is_ok() { InputMode::Full } else { InputMode::ViewOnly };
            let Ok(passed) = viewer.take(&piece[..count], input_mode) else { return };
            if to_desktop.write_all(&passed).await.is_err() || to_desktop.flush().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = inwards => {}
        _ = copy(&mut from_desktop, &mut to_viewer) => {}
    }
}
