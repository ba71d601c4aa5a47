//! The checks of the engine: what it supports, what is missing, and how to fix that.

use bollard::Docker;
use bollard::models::SystemInfo;

use super::config::{LinkChoice, Pull};
use super::locality::Locality;
use super::{DockerBackend, Inner, Ready, engine};
use crate::error::SandboxError;
use crate::host::checks::{flawed, free_disk, good, program};
use crate::spec::{Check, CheckState};

/// Runs all checks. Never fails.
pub(super) async fn checks(backend: &DockerBackend) -> Vec<Check> {
    let inner = &backend.inner;
    let ready = match backend.ready().await {
        Ok(ready) => ready,
        Err(error) => return vec![unreachable_engine(error)],
    };
    let mut checks = vec![engine_check(inner, ready).await];
    let Ok(info) = ready.client.info().await else { return checks };
    checks.extend([
        processor(&info),
        runtime(inner, &info),
        seccomp(&info),
        control_groups(ready),
        view(inner, &ready.locality),
        disks(ready),
        default_image(inner, &ready.client).await,
        program("guest", &inner.config.guest),
        free_disk(&inner.config.state_dir),
    ]);
    checks
}

fn unreachable_engine(error: SandboxError) -> Check {
    let (found, remedy) = match error {
        SandboxError::HostUnsupported { what, remedy } | SandboxError::Unavailable { what, remedy } => {
            (what, remedy)
        }
        other => (other.to_string(), "check the engine's log (journalctl -u docker)".into()),
    };
    flawed(CheckState::Missing, "Docker engine", found, &remedy)
}

async fn engine_check(inner: &Inner, ready: &Ready) -> Check {
    match ready.client.version().await {
        Ok(version) => good(
            "Docker engine",
            format!(
                "{} at {}, interface {}",
                version.version.unwrap_or_default(),
                inner.config.host,
                version.api_version.unwrap_or_default()
            ),
        ),
        Err(error) => unreachable_engine(engine::explain(&inner.config, "asking its version", error)),
    }
}

fn processor(info: &SystemInfo) -> Check {
    let name = "processor";
    let found = info.architecture.clone().unwrap_or_default();
    let here = std::env::consts::ARCH;
    if found == here {
        return good(name, found);
    }
    let found = format!("the engine's is {found}, but the guest of this server is built for {here}");
    flawed(CheckState::Missing, name, found, "use a server built for the engine's CPU architecture")
}

fn runtime(inner: &Inner, info: &SystemInfo) -> Check {
    let name = "runtime";
    let mut names: Vec<&str> = info.runtimes.iter().flatten().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match &inner.config.runtime {
        None => good(name, info.default_runtime.clone().unwrap_or_else(|| "the engine's default".into())),
        Some(wanted) if names.contains(&wanted.as_str()) => good(name, wanted.clone()),
        Some(wanted) => flawed(
            CheckState::Missing,
            name,
            format!("the engine has no runtime `{wanted}`; it has {}", names.join(", ")),
            "install it and add it to the engine's daemon.json, or change [docker] runtime",
        ),
    }
}

fn seccomp(info: &SystemInfo) -> Check {
    let options = info.security_options.as_deref().unwrap_or_default();
    if options.iter().any(|option| option.contains("seccomp")) {
        return good("seccomp", "filters");
    }
    let remedy = "use an engine that was built with seccomp, on a kernel with CONFIG_SECCOMP_FILTER";
    flawed(CheckState::Missing, "seccomp", "the engine has none", remedy)
}

fn control_groups(ready: &Ready) -> Check {
    let name = "cgroups";
    let offer = &ready.offer;
    let missing: Vec<&str> =
        [&offer.no_memory, &offer.no_cpu, &offer.no_pids].into_iter().flatten().map(String::as_str).collect();
    if missing.is_empty() {
        return good(name, "memory, cpu, pids and freezer");
    }
    flawed(
        CheckState::Weaker,
        name,
        missing.join("; "),
        "enable the missing controllers on the engine's host",
    )
}

fn view(inner: &Inner, locality: &Locality) -> Check {
    let name = "link";
    match (locality, inner.config.link) {
        (_, LinkChoice::Exec) => good(name, "a relay through the engine's exec, set by [docker] link"),
        (Locality::Shared, _) => good(name, "a socket: engine and server share a file system"),
        (Locality::Remote(why), LinkChoice::Socket) => flawed(
            CheckState::Missing,
            name,
            format!("[docker] link = \"socket\" cannot work: {why}"),
            "set [docker] link = \"auto\"",
        ),
        (Locality::Remote(why), LinkChoice::Auto) => {
            good(name, format!("a relay through the engine's exec: {why}"))
        }
    }
}

fn disks(ready: &Ready) -> Check {
    let name = "sized disks";
    match &ready.offer.no_disk {
        None => good(name, "loop devices and mkfs.ext4"),
        Some(why) => flawed(
            CheckState::Weaker,
            name,
            format!("{why}; disks have no limit"),
            "run the server as root on the engine's host, with loop devices and the package e2fsprogs",
        ),
    }
}

async fn default_image(inner: &Inner, client: &Docker) -> Check {
    let name = "image";
    let reference = &inner.config.default_image;
    match client.inspect_image(reference).await {
        Ok(_) => good(name, reference.clone()),
        Err(_) if inner.config.pull == Pull::Missing => {
            good(name, format!("{reference} is not present yet; it is pulled at first use"))
        }
        Err(error) if engine::status(&error) == Some(engine::NOT_FOUND) => flawed(
            CheckState::Weaker,
            name,
            format!("the engine has no {reference}, the image of jobs that name none"),
            "build or import it (see docs/operations/docker.md), or set [docker] image",
        ),
        Err(error) => flawed(CheckState::Weaker, name, engine::message(&error), "check the engine's log"),
    }
}
