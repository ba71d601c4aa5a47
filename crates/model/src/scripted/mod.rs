//! A model server that plays scripted answers over real HTTP, in the API format of the request, including the faults
//! that real providers have. It is used in tests and in `caisson demo`, which must label the answers as recorded.
//!
//! It records all requests, so that a test can inspect every byte that was sent.

mod connection;
mod dialect;
mod embeddings;
mod play;
mod script;
mod view;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::name::Dialect;
use crate::secret::Secret;
use crate::settings::Settings;
pub use embeddings::ScriptedEmbeddings;
pub use script::{Fault, Order, Script, ScriptError, ScriptedAnswer, ScriptedCall, Times, When};

/// A recorded request.
#[derive(Debug, Clone, Serialize)]
pub struct Recorded {
    /// Such as `/v1/messages`.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// Index of the answer that was played; `None` if no answer matched.
    pub answer: Option<usize>,
}

impl Recorded {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// State shared by all connections.
#[derive(Debug)]
struct Shared {
    script: Script,
    played: Mutex<play::PlayState>,
    requests: Mutex<Vec<Recorded>>,
    count: watch::Sender<usize>,
    /// Number of calls of [`ScriptedServer::release`].
    releases: watch::Sender<usize>,
}

impl Shared {
    fn record(&self, request: Recorded) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push(request);
        self.count.send_replace(requests.len());
    }

    fn requests(&self) -> Vec<Recorded> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    _end: End,
}

#[derive(Debug)]
enum End {
    Task(JoinHandle<()>),
    Thread(Option<tokio::sync::oneshot::Sender<()>>),
}

impl Drop for End {
    fn drop(&mut self) {
        match self {
            Self::Task(task) => task.abort(),
            Self::Thread(sender) => drop(sender.take()),
        }
    }
}

impl ScriptedServer {
    /// Plays a script on a free local port, on the caller's runtime.
    pub async fn start(script: Script) -> std::io::Result<Self> {
        Self::listen(script, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Plays a script at an address, on the caller's runtime.
    pub async fn listen(script: Script, address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = share(script);
        let task = tokio::spawn(connection::serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, _end: End::Task(task) })
    }

    /// Plays a script on a free local port, on a separate thread: for callers without a runtime.
    pub fn start_on_thread(script: Script) -> std::io::Result<Self> {
        Self::listen_on_thread(script, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Plays a script at an address, on a separate thread.
    pub fn listen_on_thread(script: Script, address: SocketAddr) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = share(script);
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = Arc::clone(&shared);
        std::thread::Builder::new().name("scripted-model".into()).spawn(move || {
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = connection::serve(listener, served) => {}
                    _ = receiver => {}
                }
            });
        })?;
        Ok(Self { address, shared, _end: End::Thread(Some(sender)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The `base_url` for a provider with this API; for chat completions also usable as a model name.
    pub fn base_url(&self, dialect: Dialect) -> String {
        let version = if dialect == Dialect::Gemini { "v1beta" } else { "v1" };
        format!("http://{}/{version}", self.address)
    }

    /// Settings that connect to this server with this API, without retries.
    #[must_use]
    pub fn settings(&self, dialect: Dialect, key: &str) -> Settings {
        let base_url = self.base_url(dialect);
        let name = match dialect {
            Dialect::OpenAi => format!("{base_url}#scripted"),
            Dialect::Responses => "openai/gpt-5".into(),
            Dialect::Anthropic => "anthropic/claude-opus-5".into(),
            Dialect::Gemini => "gemini/gemini-3.1-pro".into(),
        };
        Settings {
            name: Some(name),
            base_url: (dialect != Dialect::OpenAi).then_some(base_url),
            key: Some(Secret::new(key)),
            retries: 0,
            ..Settings::default()
        }
    }

    /// All recorded requests.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.requests()
    }

    /// Waits until this many requests have been recorded.
    pub async fn wait_for_requests(&self, count: usize) {
        // The sender lives as long as this server.
        let _ = self.shared.count.subscribe().wait_for(|so_far| *so_far >= count).await;
    }

    /// Lets answers continue to their next pause; see [`ScriptedAnswer::hold_after_events`]. Applies to all answers.
    pub fn release(&self) {
        self.shared.releases.send_modify(|releases| *releases += 1);
    }

    /// How many answers of the script have not been played yet.
    pub fn remaining(&self) -> usize {
        self.shared.played.lock().unwrap_or_else(PoisonError::into_inner).remaining(&self.shared.script)
    }
}

fn share(script: Script) -> Arc<Shared> {
    Arc::new(Shared {
        script,
        played: Mutex::default(),
        requests: Mutex::default(),
        count: watch::Sender::new(0),
        releases: watch::Sender::new(0),
    })
}
