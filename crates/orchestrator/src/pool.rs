//! Keeps sandboxes ready for jobs.

use std::sync::Arc;

use protocol::{GuestClient, LinkCredentials};
use sandbox::{Phase, SandboxError, SandboxId, SandboxSpec, wait_while_starting};

use crate::core::Core;
use crate::core::images;
use crate::core::pool::ANSWER_TIMEOUT;
use crate::core::pool::Kind;
use crate::core::pool::spec_of;
use crate::error::OrchestratorError;

/// Keeps the pool full until the server shuts down, then removes its sandboxes.
pub(crate) async fn run(core: Arc<Core>) {
    fill(&core).await;
    for sandbox in core.pool.close() {
        let _ = core.backend.destroy(sandbox).await;
    }
}

/// Returns when the server shuts down. Finishes a removal in progress, because that sandbox is no longer in any list.
async fn fill(core: &Arc<Core>) {
    while !core.shutdown.is_cancelled() {
        if core.pool.is_wanted() {
            tokio::select! {
                () = core.shutdown.cancelled() => return,
                () = renew(core) => {}
            }
        }
        remove_outdated(core).await;
        while !core.shutdown.is_cancelled()
            && core.backend_watch.outage().is_none()
            && let Some(kind) = core.pool.missing()
        {
            let sandbox = SandboxId::generate();
            core.pool.lock().creating.insert(sandbox);
            let made = make(core, sandbox, &kind.spec).await.map_err(OrchestratorError::from);
            if let Err(error) = &made {
                core.backend_watch.note(error);
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "the pool cannot be filled, trying again"
                );
                let _ = core.backend.destroy(sandbox).await;
            }
            core.pool.settle(sandbox, made.is_ok().then_some(&kind));
            if made.is_err() {
                core.pool.put_off(kind);
            }
            remove_outdated(core).await;
        }
        let changed = async {
            let changed = core.pool.changed.notified();
            // Nothing is created while the backend does not answer; its return triggers `changed`.
            match core.pool.next_try().filter(|_| core.backend_watch.outage().is_none()) {
                // By then the image that failed may have been rebuilt.
                Some(again) => drop(tokio::time::timeout_at(again, changed).await),
                None => changed.await,
            }
        };
        tokio::select! {
            () = core.shutdown.cancelled() => return,
            () = changed => {}
        }
    }
}

async fn remove_outdated(core: &Core) {
    let outdated = std::mem::take(&mut core.pool.lock().outdated);
    for sandbox in outdated {
        // If it fails, the reconciler removes the sandbox, because it is no longer in any list.
        if let Err(error) = core.backend.destroy(sandbox).await {
            tracing::warn!(%sandbox, error = &error as &dyn std::error::Error, "a sandbox of the pool is not gone yet");
        }
    }
}

/// Updates the wanted kinds after changes of images.
async fn renew(core: &Core) {
    let settings = core.settings();
    let names: Vec<Option<&str>> = match settings.pool_images.as_slice() {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let mut kinds = Vec::new();
    for name in names {
        match images::choose(core, name).await {
            Ok(chosen) => {
                let version = images::version(core, &chosen.image);
                let kind = Kind { spec: spec_of(&settings, chosen.image), version };
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            // The pool is notified when the backend answers again.
            Err(error) if error.is_backend_unavailable() => return core.backend_watch.note(&error),
            // Jobs that ask for this image are refused with the same error.
            Err(error) => {
                if let Some(name) = name.filter(|name| core.pool.record_missing_image(name)) {
                    tracing::warn!(image = name, %error, "cannot keep a sandbox ready for an image in pool.images");
                }
            }
        }
    }
    core.pool.change_kinds(kinds);
}

/// Creates a sandbox, waits until its guest has answered, and freezes it. At shutdown it does not wait for an image
/// or an answer: the unfinished sandbox is destroyed with the others, and `destroy` waits until creation has ended.
/// Freezing is not cancelled.
async fn make(core: &Core, sandbox: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
    tokio::select! {
        () = core.shutdown.cancelled() => return Ok(()),
        begun = begin(core, sandbox, spec) => begun?,
    }
    match core.backend.freezer() {
        Some(freezer) => freezer.freeze(sandbox).await,
        None => Ok(()),
    }
}

async fn begin(core: &Core, sandbox: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
    core.backend.create(sandbox, spec).await?;
    if let Phase::Ended(ended) = wait_while_starting(&*core.backend, sandbox).await?.phase {
        return Err(SandboxError::NotRunning { id: sandbox, why: ended.detail });
    }
    let greeting = async {
        let stream = core.backend.connect(sandbox).await?;
        // The first lease of a job has a later generation.
        let credentials = LinkCredentials::new(core.seal.link_secret(sandbox), 0);
        let greeted = GuestClient::connect(stream, credentials).await;
        greeted.map(drop).map_err(|error| SandboxError::Io {
            doing: "greeting a guest of the pool".into(),
            source: std::io::Error::other(error),
        })
    };
    let unanswered = SandboxError::NotRunning { id: sandbox, why: "its guest does not answer".into() };
    tokio::time::timeout(ANSWER_TIMEOUT, greeting).await.unwrap_or(Err(unanswered))
}
