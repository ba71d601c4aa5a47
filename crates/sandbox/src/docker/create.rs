//! Creating a sandbox: the image, directories or volumes, the container, and the guest in it.

use std::io;
use std::time::{Duration, Instant};

use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum};
use bollard::query_parameters::{InspectContainerOptions, LogsOptionsBuilder, StartContainerOptions};
use futures::StreamExt;

use super::engine::{self, NOT_FOUND};
use super::locality::Locality;
use super::{
    DockerBackend, Inner, Ready, connect, container, destroy, disk, image, layout, named_containers, own_ca,
};
use crate::error::SandboxError;
use crate::limits::{LimitSupport as _, Plan};
use crate::spec::{Isolation, SandboxId, SandboxSpec};

/// The isolation level of this backend: containers use the same kernel features as namespace sandboxes.
pub(super) const ISOLATION: Isolation = Isolation::Namespaces;
/// Poll interval for the guest's socket, and for asking the engine whether the guest is still alive.
const TICK: Duration = Duration::from_millis(1);
const ENGINE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum length of the guest's final output in an error, in bytes.
const FINAL_OUTPUT_BYTES: usize = 2000;

/// Creates a sandbox, or finds it already created. Dropping the future while it waits for an image, which may take
/// minutes, cancels the wait; requests already sent to the engine run to completion.
pub(super) async fn create(
    backend: &DockerBackend,
    id: SandboxId,
    spec: &SandboxSpec,
) -> Result<(), SandboxError> {
    let turn = backend.locks.turn(id).await;
    let inner = &backend.inner;
    if spec.isolation > ISOLATION {
        return Err(SandboxError::InsufficientIsolation { asked: spec.isolation, given: ISOLATION });
    }
    // Checked before the engine is asked: an invalid reference is invalid on every engine.
    image::reference(inner, &spec.image)?;
    let ready = backend.ready().await?;
    if is_running_already(backend, ready, id).await? {
        return Ok(());
    }
    let plan = ready.offer.plan(&spec.limits)?;
    image::get(inner, ready, &spec.image, &trusted(ready, spec)).await?;
    let (backend, spec) = (backend.clone(), spec.clone());
    let made = async move {
        let ready = backend.ready().await?;
        let result = make(&backend, ready, id, &spec, &plan).await;
        if result.is_err() {
            destroy::remove(&backend, ready, id).await?;
        }
        result
    };
    turn.run_to_completion(made).await
}

/// Checks what an earlier attempt left: a running sandbox, or the remains of one that never ran, which are removed.
async fn is_running_already(
    backend: &DockerBackend,
    ready: &Ready,
    id: SandboxId,
) -> Result<bool, SandboxError> {
    let inner = &backend.inner;
    let Some(found) = inspect(inner, ready, id).await? else {
        if inner.layout.sandbox(id).exists() {
            destroy::remove(backend, ready, id).await?;
        }
        return Ok(false);
    };
    match found.state.as_ref().and_then(|state| state.status) {
        Some(ContainerStateStatusEnum::RUNNING | ContainerStateStatusEnum::PAUSED) => {
            // The server may have died before it released the disk.
            release(backend, id).await?;
            Ok(true)
        }
        Some(ContainerStateStatusEnum::CREATED) => {
            destroy::remove(backend, ready, id).await?;
            Ok(false)
        }
        _ => {
            let why = "it has ended and must be destroyed before it can be created again".into();
            Err(SandboxError::NotRunning { id, why })
        }
    }
}

async fn make(
    backend: &DockerBackend,
    ready: &Ready,
    id: SandboxId,
    spec: &SandboxSpec,
    plan: &Plan,
) -> Result<(), SandboxError> {
    let inner = &backend.inner;
    let trusted = trusted(ready, spec);
    let mut prepared = image::get(inner, ready, &spec.image, &trusted).await?;
    if ready.locality == Locality::Shared {
        let (plan, prepared, own) = (plan.clone(), prepared.clone(), spec.own_ca.clone());
        let prepare = move |inner: &Inner| {
            disk::prepare(inner, id, &plan, &prepared.home)?;
            own.map_or(Ok(()), |own| own_ca::write(inner, id, &prepared, &own))
        };
        backend.blocking(prepare).await?;
    }
    let name = layout::container(id);
    let mut is_second = false;
    loop {
        let body = container::describe(inner, ready, id, spec, plan, &prepared.reference)?;
        match named_containers::create(&inner.config, &ready.client, &name, &body).await {
            Ok(()) => break,
            // The prepared image was removed in the meantime.
            Err(error) if engine::status(&error) == Some(NOT_FOUND) && !is_second => {
                image::clear_cache(inner).await;
                prepared = image::get(inner, ready, &spec.image, &trusted).await?;
                is_second = true;
            }
            Err(error) => return Err(creation_error(inner, id, "creating the container", error)),
        }
    }
    let started = ready.client.start_container(&name, None::<StartContainerOptions>).await;
    started.map_err(|error| creation_error(inner, id, "starting the container", error))?;
    wait_for_guest(backend, ready, id).await?;
    release(backend, id).await
}

/// Certificates that the image itself must trust. If the engine does not see the server's files, the image includes
/// the sandbox's own certificate; otherwise the certificate is mounted as a file.
fn trusted(ready: &Ready, spec: &SandboxSpec) -> Vec<String> {
    let own = spec.own_ca.iter().filter(|_| ready.locality != Locality::Shared);
    spec.extra_ca.iter().chain(own).cloned().collect()
}

/// Turns an error of the engine into a [`SandboxError`], with a remedy if one is known.
fn creation_error(inner: &Inner, id: SandboxId, step: &str, error: bollard::errors::Error) -> SandboxError {
    let message = engine::message(&error);
    match &inner.config.runtime {
        Some(runtime) if message.to_lowercase().contains("runtime") && message.contains(runtime.as_str()) => {
            SandboxError::HostUnsupported {
                what: format!("the Docker engine cannot use the runtime `{runtime}`: {message}"),
                remedy: "add it to the engine's daemon.json, or change [docker] runtime".into(),
            }
        }
        _ if engine::status(&error).is_some() && !engine::is_unreachable(&error) => {
            SandboxError::Setup { id, step: format!("{step}: {message}"), source: None }
        }
        _ => engine::explain(&inner.config, step, error),
    }
}

/// Returns when the guest accepts connections.
async fn wait_for_guest(backend: &DockerBackend, ready: &Ready, id: SandboxId) -> Result<(), SandboxError> {
    let inner = &backend.inner;
    let end = Instant::now() + inner.config.start_timeout;
    let mut ask = Instant::now() + ENGINE_POLL_INTERVAL;
    loop {
        // With a relay there is no socket to wait for, so this only detects a guest that exits immediately.
        let is_listening = match ready.locality {
            Locality::Shared => connect::is_listening(&inner.layout.link_directory(id)),
            Locality::Remote(_) => true,
        };
        let is_time = Instant::now() >= ask || (is_listening && ready.locality != Locality::Shared);
        if is_time {
            ask = Instant::now() + ENGINE_POLL_INTERVAL;
            let found = inspect(inner, ready, id).await?;
            let running = found.and_then(|found| found.state).and_then(|state| state.running);
            if running != Some(true) {
                let words = final_output(ready, id).await;
                let step = format!("the guest exited at once; output: {words}");
                return Err(SandboxError::Setup { id, step, source: None });
            }
        }
        if is_listening {
            return Ok(());
        }
        if Instant::now() > end {
            let source = Some(io::ErrorKind::TimedOut.into());
            return Err(SandboxError::Setup { id, step: "waiting for the guest".into(), source });
        }
        tokio::time::sleep(TICK).await;
    }
}

/// The guest's output.
async fn final_output(ready: &Ready, id: SandboxId) -> String {
    let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail("20").build();
    let mut lines = std::pin::pin!(ready.client.logs(&layout::container(id), Some(options)));
    let mut text = String::new();
    while let Some(Ok(line)) = lines.next().await {
        if text.len() < FINAL_OUTPUT_BYTES {
            text += &line.to_string();
        }
    }
    if text.trim().is_empty() { "nothing".into() } else { text.trim().to_owned() }
}

async fn release(backend: &DockerBackend, id: SandboxId) -> Result<(), SandboxError> {
    let disk = backend.inner.layout.disk(id);
    if disk.exists() {
        backend.blocking(move |_| disk::release(&disk)).await?;
    }
    Ok(())
}

/// The engine's description of a sandbox's container; `None` if there is none.
pub(super) async fn inspect(
    inner: &Inner,
    ready: &Ready,
    id: SandboxId,
) -> Result<Option<ContainerInspectResponse>, SandboxError> {
    match ready.client.inspect_container(&layout::container(id), None::<InspectContainerOptions>).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if engine::status(&error) == Some(NOT_FOUND) => Ok(None),
        Err(error) => Err(engine::explain(&inner.config, &format!("looking at sandbox {id}"), error)),
    }
}
