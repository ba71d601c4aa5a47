//! A model server that plays recorded answers over real HTTP, in the dialect in which it is asked, with the faults that
//! providers have. For tests and for `caisson demo`; the answers are recorded and must be said to be so.
//!
//! It keeps what it was asked, so that a test can look at every byte that left the house.

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

/// A request as it came.
#[derive(Debug, Clone, Serialize)]
pub struct Recorded {
    /// Such as `/v1/messages`.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Value,
    /// Which answer of the script was played, counted from 0; nothing when none fitted.
    pub answer: Option<usize>,
}

impl Recorded {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What connections share.
#[derive(Debug)]
struct Shared {
    script: Script,
    played: Mutex<play::Played>,
    requests: Mutex<Vec<Recorded>>,
    count: watch::Sender<usize>,
    /// How often [`ScriptedServer::release`] was called.
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

/// A running server. Ends when it is dropped.
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
    /// Plays a script on a free port of this machine, on the runtime of the caller.
    pub async fn start(script: Script) -> std::io::Result<Self> {
        Self::listen(script, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Plays a script at an address, on the runtime of the caller.
    pub async fn listen(script: Script, address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = share(script);
        let task = tokio::spawn(connection::serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, _end: End::Task(task) })
    }

    /// Plays a script on a free port, on a thread of its own: for callers without a runtime.
    pub fn start_on_thread(script: Script) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What to set as `base_url` for a provider of this dialect; for chat completions also as the model's name.
    pub fn base_url(&self, dialect: Dialect) -> String {
        let version = if dialect == Dialect::Gemini { "v1beta" } else { "v1" };
        format!("http://{}/{version}", self.address)
    }

    /// What connects to it in this dialect, with a model that speaks it; nothing is tried twice.
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

    /// All requests for an answer so far.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.requests()
    }

    /// Waits until so many requests have come.
    pub async fn wait_for_requests(&self, count: usize) {
        // The sender lives as long as this server.
        let _ = self.shared.count.subscribe().wait_for(|so_far| *so_far >= count).await;
    }

    /// Lets answers continue to their next stop, see [`ScriptedAnswer::hold_after_events`]. Counts for all answers.
    pub fn release(&self) {
        self.shared.releases.send_modify(|releases| *releases += 1);
    }

    /// How many answers of the script were not played yet.
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
