//! A backend that only knows the contract: it sends each method as a request to a socket.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{
    Backend, BackendKind, Capabilities, Check, CheckState, GuestStream, Observed, Phase, SandboxError,
    SandboxId, SandboxSpec, Usage,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::wire::{Refusal, Reply, Request, State};

/// Speaks to a [`Service`](super::service::Service). Clones share the lock.
#[derive(Clone)]
pub(crate) struct SocketBackend {
    socket: PathBuf,
    /// Held by requests that change something, also when their caller is gone.
    changing: Arc<Mutex<()>>,
}

impl SocketBackend {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket, changing: Arc::default() }
    }

    /// Sends a request; returns the answer, and the stream for what follows it.
    async fn ask(&self, request: &Request) -> Result<(Reply, UnixStream), SandboxError> {
        let away = |source| SandboxError::Io { doing: "asking the service".into(), source };
        let mut stream = UnixStream::connect(&self.socket).await.map_err(away)?;
        let mut line = serde_json::to_vec(request).map_err(|error| away(error.into()))?;
        line.push(b'\n');
        stream.write_all(&line).await.map_err(away)?;
        let mut answer = Vec::new();
        // Byte by byte: whatever follows the line belongs to the guest.
        while answer.last() != Some(&b'\n') {
            answer.push(stream.read_u8().await.map_err(away)?);
        }
        let reply = serde_json::from_slice(&answer).map_err(|error| away(error.into()))?;
        Ok((reply, stream))
    }

    /// Sends a request that runs to its end even if the caller is dropped.
    async fn change(&self, id: SandboxId, request: Request) -> Result<(), SandboxError> {
        let turn = Arc::clone(&self.changing).lock_owned().await;
        let backend = self.clone();
        let asked = tokio::spawn(async move {
            let answer = backend.ask(&request).await;
            drop(turn);
            answer
        });
        match asked.await.map_err(|error| other(error.to_string()))??.0 {
            Reply::Done => Ok(()),
            Reply::Refused(refusal) => Err(refused(id, refusal)),
            reply => Err(other(format!("unexpected answer {reply:?}"))),
        }
    }
}

fn other(text: String) -> SandboxError {
    SandboxError::Io { doing: "asking the service".into(), source: std::io::Error::other(text) }
}

fn refused(id: SandboxId, refusal: Refusal) -> SandboxError {
    match refusal {
        Refusal::NoImage(name) => SandboxError::NoImage(name),
        Refusal::NotRunning(why) => SandboxError::NotRunning { id, why },
        Refusal::OutOfRange { limit, value, allowed } => {
            SandboxError::LimitOutOfRange { limit, value, allowed }
        }
        Refusal::Unenforceable { limit, why } => SandboxError::LimitUnenforceable { limit, why },
    }
}

#[async_trait]
impl Backend for SocketBackend {
    /// There is no kind for it: it is of use for tests alone.
    fn kind(&self) -> BackendKind {
        BackendKind::Namespace
    }

    /// Refuses: nothing isolates plain processes, and no server may start with them.
    async fn preflight(&self) -> Result<Capabilities, SandboxError> {
        Err(SandboxError::HostUnsupported {
            what: "plain processes are not isolated".into(),
            remedy: "use another backend".into(),
        })
    }

    async fn checks(&self) -> Vec<Check> {
        vec![Check {
            name: "isolation".into(),
            state: CheckState::Missing,
            found: "plain processes".into(),
            remedy: Some("use another backend".into()),
        }]
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
        self.change(id, Request::Create { id, spec: spec.clone() }).await
    }

    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError> {
        let (reply, _) = self.ask(&Request::Observe { id }).await?;
        let Reply::Observed { state, unenforced } = reply else {
            return Err(other(format!("unexpected answer {reply:?}")));
        };
        let phase = match state {
            State::Missing => Phase::Missing,
            State::Starting { message } => Phase::Starting { message },
            State::Ready => Phase::Ready,
            State::Ended(ended) => Phase::Ended(ended),
        };
        Ok(Observed { phase, usage: Usage::default(), unenforced })
    }

    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError> {
        match self.ask(&Request::List).await?.0 {
            Reply::Listed(ids) => Ok(ids),
            reply => Err(other(format!("unexpected answer {reply:?}"))),
        }
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError> {
        match self.ask(&Request::Connect { id }).await? {
            (Reply::Done, stream) => Ok(Box::new(stream)),
            (Reply::Refused(refusal), _) => Err(refused(id, refusal)),
            (reply, _) => Err(other(format!("unexpected answer {reply:?}"))),
        }
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError> {
        self.change(id, Request::Destroy { id }).await
    }
}
