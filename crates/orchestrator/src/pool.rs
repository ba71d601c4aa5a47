//! Sandboxes that are made ahead of time, stand frozen, and are handed out in less than a millisecond.
//!
//! All are made for the operator's defaults. A job that asks for anything else gets a new one. What stands ready costs
//! memory but no processor time. A server that was killed leaves its pool behind; the next one's reconcile removes it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::GuestClient;
use sandbox::{Image, Isolation, SandboxError, SandboxId, SandboxSpec};
use tokio::sync::Notify;

use crate::core::{Core, Settings};

/// How long to wait after a sandbox could not be made.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How long a new guest may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);

/// Sandboxes that are ready.
pub(crate) struct Pool {
    size: usize,
    spec: SandboxSpec,
    members: Mutex<Members>,
    taken: Notify,
}

#[derive(Default)]
struct Members {
    ready: VecDeque<SandboxId>,
    /// Being made or being handed out; known all the time, so that nobody takes them for garbage.
    coming: HashSet<SandboxId>,
}

impl Pool {
    pub(crate) fn new(settings: &Settings) -> Self {
        let spec = SandboxSpec {
            image: Image::Host,
            isolation: Isolation::Namespaces,
            limits: settings.defaults.limits,
            extra_ca: settings.extra_ca.clone(),
            labels: BTreeMap::new(),
        };
        Self { size: settings.pool_size, spec, members: Mutex::default(), taken: Notify::new() }
    }

    /// A ready sandbox for this specification; still frozen. It counts as the pool's until it is [`Pool::released`].
    pub(crate) fn take(&self, spec: &SandboxSpec) -> Option<SandboxId> {
        let wanted = SandboxSpec { labels: BTreeMap::new(), ..spec.clone() };
        if self.size == 0 || wanted != self.spec {
            return None;
        }
        let mut members = self.lock();
        let sandbox = members.ready.pop_front();
        members.coming.extend(sandbox);
        drop(members);
        self.taken.notify_one();
        sandbox
    }

    /// The log of its job has the sandbox now.
    pub(crate) fn released(&self, sandbox: SandboxId) {
        self.lock().coming.remove(&sandbox);
    }

    /// Every sandbox that belongs to the pool.
    pub(crate) fn members(&self) -> Vec<SandboxId> {
        let members = self.lock();
        members.ready.iter().chain(&members.coming).copied().collect()
    }

    /// One that was coming has come, or has not.
    fn settle(&self, sandbox: SandboxId, is_ready: bool) {
        let mut members = self.lock();
        members.coming.remove(&sandbox);
        if is_ready {
            members.ready.push_back(sandbox);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the pool full until the server goes down, then removes it.
pub(crate) async fn run(core: Arc<Core>) {
    if core.pool.size == 0 {
        return;
    }
    let shutdown = core.shutdown.clone();
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = fill(&core) => {}
    }
    for sandbox in core.pool.members() {
        let _ = core.backend.destroy(sandbox).await;
    }
}

async fn fill(core: &Arc<Core>) {
    loop {
        while core.pool.lock().ready.len() < core.pool.size {
            let sandbox = SandboxId::generate();
            core.pool.lock().coming.insert(sandbox);
            let made = make(core, sandbox).await;
            if let Err(error) = &made {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "the pool cannot be filled, trying again"
                );
                let _ = core.backend.destroy(sandbox).await;
            }
            core.pool.settle(sandbox, made.is_ok());
            if made.is_err() {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        core.pool.taken.notified().await;
    }
}

/// Makes a sandbox, waits until its guest has answered, and freezes it.
async fn make(core: &Core, sandbox: SandboxId) -> Result<(), SandboxError> {
    core.backend.create(sandbox, &core.pool.spec).await?;
    let greeting = async {
        let stream = core.backend.connect(sandbox).await?;
        let greeted = GuestClient::connect(stream).await;
        greeted.map(drop).map_err(|error| SandboxError::Io {
            doing: "greeting a guest of the pool".into(),
            source: std::io::Error::other(error),
        })
    };
    match tokio::time::timeout(ANSWER_PATIENCE, greeting).await {
        Ok(greeted) => greeted?,
        Err(_) => {
            return Err(SandboxError::NotRunning { id: sandbox, why: "its guest does not answer".into() });
        }
    }
    match core.backend.freezer() {
        Some(freezer) => freezer.freeze(sandbox).await,
        None => Ok(()),
    }
}
