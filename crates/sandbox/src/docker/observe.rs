//! Observing a sandbox from outside: through the engine, and through its cgroup where that is readable.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::models::{ContainerState, ContainerStateStatusEnum};
use bollard::query_parameters::{EventsOptionsBuilder, StatsOptionsBuilder};
use futures::StreamExt;
use launcher::cgroup::{Group, Hierarchy};

use super::create::inspect;
use super::layout::{self, UNENFORCED_LABEL};
use super::locality::Locality;
use super::{Inner, Ready, destroy};
use crate::error::SandboxError;
use crate::limits::Unenforced;
use crate::spec::{EndReason, Ended, Observed, Phase, SandboxId, Usage};

/// Shells and engines add this to the number of the signal that ended a process.
const SIGNAL_BASE: i64 = 128;
const SIGKILL: i64 = 9;
/// Length of a container id in hexadecimal digits.
const CONTAINER_ID_LENGTH: usize = 64;
/// Timeout for querying past events from the engine.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(2);
/// Start of the zero timestamp with which the engine says "never".
const NEVER: &str = "0001-";

pub(super) async fn observe(inner: &Inner, ready: &Ready, id: SandboxId) -> Result<Observed, SandboxError> {
    let Some(found) = inspect(inner, ready, id).await? else {
        let phase = match destroy::has_remains(inner, ready, id).await? {
            false => Phase::Missing,
            true => ended(EndReason::NotStarted, "the sandbox could not be set up".into()),
        };
        return Ok(Observed { phase, usage: Usage::default(), unenforced: Vec::new() });
    };
    let state = found.state.unwrap_or_default();
    let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
    let unenforced: Vec<Unenforced> =
        labels.get(UNENFORCED_LABEL).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let phase = phase_of(&state);
    let usage = match phase {
        Phase::Ready => usage(ready, id, &state, found.id.as_deref()).await,
        _ => Usage { oom_kills: u64::from(state.oom_killed == Some(true)), ..Usage::default() },
    };
    let unenforced = unenforced.into_iter().map(|entry| (entry.limit, entry.why)).collect();
    Ok(Observed { phase, usage, unenforced })
}

fn ended(reason: EndReason, detail: String) -> Phase {
    Phase::Ended(Ended { reason, detail })
}

fn phase_of(state: &ContainerState) -> Phase {
    use ContainerStateStatusEnum as Status;
    match state.status {
        Some(Status::CREATED) => Phase::Starting { message: "the engine is starting the container".into() },
        Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING) => Phase::Ready,
        _ => explain(state),
    }
}

fn explain(state: &ContainerState) -> Phase {
    let said = state.error.as_deref().unwrap_or_default();
    if state.started_at.as_deref().is_none_or(|time| time.is_empty() || time.starts_with(NEVER)) {
        return ended(EndReason::NotStarted, format!("the engine could not start the container: {said}"));
    }
    let code = state.exit_code.unwrap_or_default();
    match code - SIGNAL_BASE {
        SIGKILL if state.oom_killed == Some(true) => ended(
            EndReason::OutOfMemory,
            "the kernel killed the guest because the sandbox was out of memory".into(),
        ),
        signal @ 1..=64 => ended(EndReason::Lost, format!("the guest was killed by signal {signal}")),
        _ => ended(EndReason::Lost, format!("the guest exited with code {code}")),
    }
}

async fn usage(ready: &Ready, id: SandboxId, state: &ContainerState, container: Option<&str>) -> Usage {
    let group = state.pid.and_then(group_of).filter(|group| match ready.locality {
        Locality::Shared => true,
        // The engine may still be on this host, for example with `link = "exec"`.
        Locality::Remote(_) => container.is_some_and(|container| is_group_of(group, container)),
    });
    match group {
        Some(group) => group.usage().into(),
        None => stats(ready, id).await,
    }
}

/// The cgroup of a process on this host.
fn group_of(pid: i64) -> Option<Group> {
    let hierarchy = Hierarchy::find()?;
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let wanted = match hierarchy {
        Hierarchy::V2 { .. } => "",
        Hierarchy::V1 { .. } => "memory",
    };
    let name = text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let controllers = parts.nth(1)?;
        controllers.split(',').any(|controller| controller == wanted).then(|| parts.next())?
    })?;
    Some(Group { hierarchy, name: name.trim_matches('/').to_owned() })
}

/// Whether a cgroup of this host belongs to the container. With a remote engine, the process id may match a local
/// process by coincidence.
fn is_group_of(group: &Group, container: &str) -> bool {
    let is_whole = container.len() == CONTAINER_ID_LENGTH;
    // `docker/ID`, or `system.slice/docker-ID.scope` if systemd manages the cgroups.
    is_whole && group.name.split('/').any(|part| part.contains(container))
}

/// The engine's own statistics. They have fewer fields and do not count refused forks.
async fn stats(ready: &Ready, id: SandboxId) -> Usage {
    let options = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
    let mut answers = std::pin::pin!(ready.client.stats(&layout::container(id), Some(options)));
    let Some(Ok(stats)) = answers.next().await else { return Usage::default() };
    let memory = stats.memory_stats.unwrap_or_default();
    let bytes = memory.usage.unwrap_or_default();
    let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage);
    Usage {
        memory_bytes: bytes,
        memory_peak_bytes: memory.max_usage.unwrap_or(bytes).max(bytes),
        cpu_micros: cpu.unwrap_or_default() / 1000,
        pids: stats.pids_stats.and_then(|pids| pids.current).unwrap_or_default(),
        oom_kills: oom_events(ready, id).await,
        pids_refused: 0,
    }
}

/// The number of OOM events of the container, as far back as the engine remembers.
async fn oom_events(ready: &Ready, id: SandboxId) -> u64 {
    let filter =
        HashMap::from([("container", vec![layout::container(id)]), ("event", vec!["oom".to_owned()])]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let options = EventsOptionsBuilder::new()
        // All events the engine remembers; container names are never reused.
        .since("1")
        .until(&format!("{}.{:09}", now.as_secs(), now.subsec_nanos()))
        .filters(&filter)
        .build();
    let events = ready.client.events(Some(options)).filter(|event| std::future::ready(event.is_ok())).count();
    // With an engine whose clock is behind ours, the request would wait for future events.
    tokio::time::timeout(EVENTS_TIMEOUT, events).await.unwrap_or_default() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(code: i64, oom: bool, started: &str) -> ContainerState {
        ContainerState {
            status: Some(ContainerStateStatusEnum::EXITED),
            exit_code: Some(code),
            oom_killed: Some(oom),
            started_at: Some(started.into()),
            error: Some("no such runtime".into()),
            ..ContainerState::default()
        }
    }

    #[test]
    fn cgroup_belongs_to_container_if_it_contains_its_id() {
        let id = "0123456789abcdef".repeat(4);
        let group = |name: String| Group { hierarchy: Hierarchy::V2 { root: "/sys/fs/cgroup".into() }, name };
        assert!(is_group_of(&group(format!("docker/{id}")), &id));
        assert!(is_group_of(&group(format!("system.slice/docker-{id}.scope")), &id));
        assert!(!is_group_of(&group("user.slice/session-1.scope".into()), &id));
        assert!(!is_group_of(&group(format!("docker/{}", "f".repeat(64))), &id));
        assert!(!is_group_of(&group("docker/".into()), ""));
    }

    #[test]
    fn container_exit_reason_is_explained() {
        let reason = |state: &ContainerState| match phase_of(state) {
            Phase::Ended(ended) => (ended.reason, ended.detail),
            other => panic!("{other:?}"),
        };
        let started = "2026-01-01T00:00:00Z";
        assert_eq!(reason(&state(137, true, started)).0, EndReason::OutOfMemory);
        assert_eq!(reason(&state(137, false, started)).1, "the guest was killed by signal 9");
        assert_eq!(reason(&state(1, true, started)).1, "the guest exited with code 1");
        let (kind, detail) = reason(&state(128, false, "0001-01-01T00:00:00Z"));
        assert_eq!(kind, EndReason::NotStarted);
        assert!(detail.contains("no such runtime"));
    }
}
