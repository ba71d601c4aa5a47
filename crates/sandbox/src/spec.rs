//! The specification of a sandbox, and what a backend observes of it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The id of a sandbox: a UUIDv7 in lower case, valid as a file name, a DNS label and a Kubernetes name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SandboxId(Uuid);

impl SandboxId {
    /// Generates an id that sorts after all earlier ones.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// The creation time since 1970, if the id contains it.
    #[must_use]
    pub(crate) fn made_at(self) -> Option<Duration> {
        let (seconds, nanoseconds) = self.0.get_timestamp()?.to_unix();
        Some(Duration::new(seconds, nanoseconds))
    }

    /// The id as a number, for spreading sandboxes over slots.
    #[must_use]
    pub fn as_u128(self) -> u128 {
        self.0.as_u128()
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl FromStr for SandboxId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text).map(Self)
    }
}

/// The kinds of infrastructure, by the names used in flags, settings and reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// Linux namespaces on this host.
    #[default]
    Namespace,
    /// Containers of a Docker engine.
    Docker,
}

impl BackendKind {
    pub const ALL: [Self; 2] = [Self::Namespace, Self::Docker];
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Namespace => "namespace",
            Self::Docker => "docker",
        })
    }
}

/// A name that no backend has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a backend; there are namespace and docker")]
pub struct UnknownBackend(String);

impl FromStr for BackendKind {
    type Err = UnknownBackend;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| UnknownBackend(text.to_owned()))
    }
}

/// Isolation levels, weakest first. A job gets the level it asked for or a stronger one, never a weaker one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Landlock and seccomp only.
    Landlock,
    /// Linux namespaces, Landlock and seccomp.
    Namespaces,
    MicroVm,
}

impl fmt::Display for Isolation {
    /// The spelling in requests and settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Landlock => "landlock",
            Self::Namespaces => "namespaces",
            Self::MicroVm => "micro_vm",
        })
    }
}

/// The root file system of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Image {
    /// The host's `/usr` and its dependencies, read-only, with a clean `/etc`.
    Host,
    /// A root file system in this directory.
    Directory(std::path::PathBuf),
    /// An image that the backend knows by this name; `default` is the agent's standard image.
    Named(String),
}

/// The value of a limit, and whether the job requires it to be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// A default: if the host cannot enforce it, the sandbox is created anyway and reports it as unenforced.
    Default(u64),
    /// Required: if the host cannot enforce it, creating the sandbox fails.
    Required(u64),
}

impl Limit {
    #[must_use]
    pub fn value(self) -> u64 {
        match self {
            Self::Default(value) | Self::Required(value) => value,
        }
    }
}

/// A resource that can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Memory of all processes together.
    Memory,
    /// CPU time.
    Cpu,
    /// Processes and threads.
    Pids,
    /// Open files of one process.
    OpenFiles,
    /// Data written to disk.
    Disk,
}

impl LimitKind {
    pub const ALL: [Self; 5] = [Self::Memory, Self::Cpu, Self::Pids, Self::OpenFiles, Self::Disk];
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::OpenFiles => "open_files",
            Self::Disk => "disk",
        })
    }
}

/// Resource limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub memory_mib: Limit,
    /// Thousandths of a CPU.
    pub cpu_millis: Limit,
    /// Processes and threads.
    pub pids: Limit,
    /// Open files of one process.
    pub open_files: Limit,
    /// Mebibytes of disk for everything that is written.
    pub disk_mib: Limit,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: Limit::Default(4096),
            cpu_millis: Limit::Default(2000),
            pids: Limit::Default(1024),
            open_files: Limit::Default(16384),
            disk_mib: Limit::Default(8192),
        }
    }
}

/// What to create: image, isolation, limits, certificates and labels of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    pub image: Image,
    /// The minimum acceptable isolation.
    pub isolation: Isolation,
    pub limits: Limits,
    /// Certificates (PEM) that the sandbox trusts in addition to the image's own. In an `Arc` because the
    /// certificates that a host trusts take a quarter of a megabyte.
    pub extra_ca: Arc<[String]>,
    /// A certificate (PEM) that only this sandbox trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_ca: Option<String>,
    /// For finding the sandbox again and for operators: `job`, `server`.
    pub labels: BTreeMap<String, String>,
}

/// The state of a sandbox as observed from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub phase: Phase,
    pub usage: Usage,
    /// Limits of the spec that are not enforced, with the reason.
    pub unenforced: Vec<(LimitKind, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// There is no such sandbox.
    Missing,
    /// It was requested, and cannot be used yet.
    Starting {
        /// What it waits for.
        message: String,
    },
    /// The guest runs and accepts links.
    Ready,
    /// It was requested, and is over: the guest is gone, or never ran.
    Ended(Ended),
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Machine-readable reason.
    pub reason: EndReason,
    /// Human-readable description.
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The kernel killed the guest because the sandbox ran out of memory.
    OutOfMemory,
    /// The guest or what owns it was killed or crashed.
    Lost,
    /// The infrastructure ended the sandbox because its host ran short of something.
    Evicted,
    /// The infrastructure ended the sandbox in favor of more important work.
    Preempted,
    /// The host that ran the sandbox is gone or does not answer.
    HostLost,
    /// The sandbox could not be set up.
    NotStarted,
    /// Data written to the sandbox's disk did not reach storage.
    WorkspaceDamaged,
}

/// The host file system that holds the disks of sandboxes, and those of its disks that are sparse files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostDisk {
    pub free_bytes: u64,
    /// The disks of running sandboxes.
    pub disks: Vec<SparseDisk>,
}

/// A sandbox's disk that allocates space on the host only as it fills up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseDisk {
    pub sandbox: SandboxId,
    /// How much more space it can allocate.
    pub unallocated_bytes: u64,
    /// Dirty data that its sandbox has written and the kernel has not stored yet.
    pub unwritten_bytes: u64,
}

/// Whether a disk holds everything that was written to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskState {
    /// All data was stored.
    Whole,
    /// Data was lost for good; holds a human-readable description.
    Damaged(String),
}

/// Resource usage of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Current memory.
    pub memory_bytes: u64,
    /// Peak memory.
    pub memory_peak_bytes: u64,
    /// CPU time so far.
    pub cpu_micros: u64,
    /// Current number of processes and threads.
    pub pids: u64,
    /// Number of processes that the kernel killed because memory ran out.
    pub oom_kills: u64,
    /// Number of forks that failed because of the limit.
    pub pids_refused: u64,
}

/// What a backend supports on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The strongest isolation available.
    pub isolation: Isolation,
    /// Limits that are enforced.
    pub enforced: Vec<LimitKind>,
    /// All checks, for `doctor`.
    pub checks: Vec<Check>,
}

impl Capabilities {
    /// Limits that are not enforced for sandboxes on this host.
    pub fn unenforced(&self) -> Vec<LimitKind> {
        LimitKind::ALL.into_iter().filter(|kind| !self.enforced.contains(kind)).collect()
    }
}

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was checked, in a few words.
    pub name: String,
    pub state: CheckState,
    pub found: String,
    /// How to fix it, as a command if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    Good,
    /// Works, but weaker than it could be.
    Weaker,
    /// Does not work.
    Missing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_have_one_name_in_text_and_in_json() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.to_string());
            let error = "podman".parse::<BackendKind>().unwrap_err().to_string();
            assert!(error.contains(&kind.to_string()), "{error}");
        }
    }
}
