//! A socket for the notebook server in the sandbox: it requests a kernel and receives the kernel's connection, so
//! that users work in the same kernels as the agent.
//!
//! Any process in the sandbox may connect. All it can get is a kernel with the agent's own permissions. A request is
//! a line of JSON, and so is the reply. The socket is abstract, without a path.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::{KernelAction, KernelChoice, Reply};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use crate::kernels::{Kernels, spec};

/// The name of the abstract socket. Each sandbox has a separate namespace for such names.
const NAME: &str = "caisson-kernels";
const MAX_CLIENTS: usize = 8;
const MAX_REQUEST_BYTES: u64 = 256 * 1024;
/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    /// Starts the kernel if it is not running.
    Open,
    Interrupt,
    Restart,
    /// Queries whether the kernel is running.
    Look,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelRequest {
    kernel: String,
    order: Action,
    /// The environment for a kernel that this request starts.
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

/// Binds the socket. Fails if the name is already in use; notebooks then have separate kernels.
pub(crate) fn open() -> io::Result<StdListener> {
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(NAME)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves requests until the guest exits.
pub(crate) async fn answer(kernels: Rc<Kernels>, listener: StdListener) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let permits = Arc::new(Semaphore::new(MAX_CLIENTS));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let kernels = Rc::clone(&kernels);
                spawn_local(async move {
                    let _ = serve(&kernels, stream).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(kernels: &Kernels, mut stream: UnixStream) -> io::Result<()> {
    let mut line = String::new();
    let reading = async {
        let mut reader = BufReader::new((&mut stream).take(MAX_REQUEST_BYTES));
        reader.read_line(&mut line).await
    };
    tokio::time::timeout(REQUEST_TIMEOUT, reading).await??;
    let answer = match serde_json::from_str::<KernelRequest>(&line) {
        Ok(request) => serve_request(kernels, request).await.unwrap_or_else(|error| json!({"error": error})),
        Err(error) => json!({"error": format!("the request is not understood: {error}")}),
    };
    stream.write_all(format!("{answer}\n").as_bytes()).await?;
    stream.shutdown().await
}

async fn serve_request(kernels: &Kernels, request: KernelRequest) -> Result<Value, String> {
    let running = kernels.running(&request.kernel);
    match (request.order, &running) {
        (Action::Look, _) => return Ok(json!({"alive": running.is_some()})),
        (Action::Interrupt | Action::Restart, Some(_)) => {
            let action = if request.order == Action::Restart {
                KernelAction::Restart
            } else {
                KernelAction::Interrupt
            };
            if let Reply::Refused { message } = kernels.act(&request.kernel, action).await {
                return Err(message);
            }
        }
        (Action::Interrupt, None) => return Err(format!("the kernel `{}` does not run", request.kernel)),
        (Action::Open | Action::Restart, _) => {}
    }
    let home = request.environment.get("HOME").map_or(super::HOME, String::as_str);
    let spec = spec::choose(&KernelChoice::Name(request.kernel), spec::find_all(home.as_ref()))?;
    let (kernel, note) = kernels.get_or_start(&spec, request.environment).await?;
    // Keep the note for the agent's next cell instead of this client.
    if let Some(note) = note {
        kernel.note.replace(Some(note));
    }
    Ok(json!({"connection": kernel.connection.describe(), "pid": kernel.pid}))
}
