//! The container configuration: user, privileges, mounts and limits.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountType, MountVolumeOptions, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use launcher::hidden::{HIDDEN_DIRECTORIES, HIDDEN_FILES, READ_ONLY};

use super::disk::DIRECTORIES;
use super::image::HOME;
use super::layout::{
    self, AGENT_ID, GUEST_PROGRAM, PRIVATE, SOCKET, SPEC_LABEL_PREFIX, STATE, UNENFORCED_LABEL,
};
use super::locality::Locality;
use super::{Inner, Ready, own_ca, seccomp};
use crate::error::SandboxError;
use crate::limits::Plan;
use crate::spec::{SandboxId, SandboxSpec};

/// Paths that are masked in addition to the parts of `/proc` that namespace sandboxes hide too.
const HIDDEN: [&str; 3] = ["/proc/timer_stats", "/sys", "/sys/firmware"];
const CPU_PERIOD_MICROS: i64 = 100_000;

/// Builds the container configuration of a sandbox.
pub(super) fn describe(
    inner: &Inner,
    ready: &Ready,
    id: SandboxId,
    spec: &SandboxSpec,
    plan: &Plan,
    image: &str,
) -> Result<ContainerCreateBody, SandboxError> {
    let port = inner.config.egress_port.to_string();
    let words = [
        "serve",
        "--listen",
        SOCKET,
        "--link-access",
        "group",
        "--state",
        ".",
        "--workspace",
        "/workspace",
        "--home",
        HOME,
        "--egress-port",
        &port,
    ];
    Ok(ContainerCreateBody {
        image: Some(image.to_owned()),
        hostname: Some("caisson".into()),
        user: Some(format!("{AGENT_ID}:{AGENT_ID}")),
        // The runtime enters this directory as root, before it switches to the guest's user. Nothing else that runs
        // inside can enter it.
        working_dir: Some(STATE.into()),
        entrypoint: Some(vec![GUEST_PROGRAM.into()]),
        cmd: Some(words.map(String::from).to_vec()),
        labels: Some(labels(inner, id, spec, plan)?),
        // Disables the image's health check.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        network_disabled: Some(true),
        // PID 1 ignores signals that it has no handler for, so a stopping engine would wait in vain for it to react
        // to SIGTERM.
        stop_signal: Some("SIGKILL".into()),
        host_config: Some(host_config(inner, ready, id, spec, plan)?),
        ..ContainerCreateBody::default()
    })
}

fn labels(
    inner: &Inner,
    id: SandboxId,
    spec: &SandboxSpec,
    plan: &Plan,
) -> Result<HashMap<String, String>, SandboxError> {
    let asked = spec.labels.iter().map(|(name, value)| (format!("{SPEC_LABEL_PREFIX}{name}"), value.clone()));
    let mut labels: HashMap<String, String> = asked.collect();
    let unenforced = serde_json::to_string(&plan.unenforced).map_err(|error| SandboxError::Setup {
        id,
        step: "writing labels".into(),
        source: Some(error.into()),
    })?;
    labels.insert(UNENFORCED_LABEL.into(), unenforced);
    labels.extend(inner.layout.labels(id));
    Ok(labels)
}

fn host_config(
    inner: &Inner,
    ready: &Ready,
    id: SandboxId,
    spec: &SandboxSpec,
    plan: &Plan,
) -> Result<HostConfig, SandboxError> {
    let mut mounts = mounts(inner, ready, id);
    if spec.own_ca.is_some() && ready.locality == Locality::Shared {
        mounts.extend(own_ca::mounts(inner, id));
    }
    let profile = seccomp::profile().map_err(|why| SandboxError::HostUnsupported {
        what: format!("the seccomp profile cannot be made: {why}"),
        remedy: "report this".into(),
    })?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let limit = |name: &str, value: u64| ResourcesUlimits {
        name: Some(name.into()),
        soft: Some(number(value)),
        hard: Some(number(value)),
    };
    let offer = &ready.offer;
    let memory = offer.no_memory.is_none().then(|| number(plan.memory_bytes));
    let quota = number(plan.cpu_millis).saturating_mul(CPU_PERIOD_MICROS) / 1000;
    let log = HashMap::from([("max-size".into(), "64k".into()), ("max-file".into(), "1".into())]);
    Ok(HostConfig {
        network_mode: Some("none".into()),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        cap_drop: Some(vec!["ALL".into()]),
        privileged: Some(false),
        security_opt: Some(vec!["no-new-privileges:true".into(), format!("seccomp={profile}")]),
        readonly_rootfs: Some(true),
        masked_paths: Some(hidden()),
        readonly_paths: Some(READ_ONLY.map(|path| format!("/{path}")).to_vec()),
        mounts: Some(mounts),
        memory,
        // Equal to the memory limit: no swap.
        memory_swap: memory,
        cpu_period: offer.no_cpu.is_none().then_some(CPU_PERIOD_MICROS),
        cpu_quota: offer.no_cpu.is_none().then_some(quota),
        pids_limit: offer.no_pids.is_none().then(|| number(plan.pids)),
        ulimits: Some(vec![limit("nofile", plan.open_files), limit("core", 0)]),
        shm_size: Some(number(plan.memory_bytes / 2)),
        runtime: inner.config.runtime.clone(),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: Some(HostConfigLogConfig { typ: Some("json-file".into()), config: Some(log) }),
        init: Some(false),
        ..HostConfig::default()
    })
}

fn hidden() -> Vec<String> {
    let of_proc = HIDDEN_FILES.iter().chain(&HIDDEN_DIRECTORIES).map(|path| format!("/{path}"));
    of_proc.chain(HIDDEN.map(String::from)).collect()
}

/// All writable mounts: the server's directories if the engine sees them, otherwise volumes of the engine.
fn mounts(inner: &Inner, ready: &Ready, id: SandboxId) -> Vec<Mount> {
    let disk = inner.layout.disk(id);
    let places = DIRECTORIES.iter().map(|(name, path, _)| (*name, *path));
    match ready.locality {
        Locality::Shared => places
            .map(|(name, path)| (disk.join(name), path))
            .chain([(inner.layout.private(id), PRIVATE)])
            .map(|(source, path)| Mount {
                typ: Some(MountType::BIND),
                source: Some(source.display().to_string()),
                target: Some(path.into()),
                ..Mount::default()
            })
            .collect(),
        Locality::Remote(_) => places
            .chain([("private", PRIVATE)])
            .map(|(name, path)| Mount {
                typ: Some(MountType::VOLUME),
                source: Some(layout::volume(id, name)),
                target: Some(path.into()),
                volume_options: Some(MountVolumeOptions {
                    labels: Some(inner.layout.labels(id)),
                    ..MountVolumeOptions::default()
                }),
                ..Mount::default()
            })
            .collect(),
    }
}
