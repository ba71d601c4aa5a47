//! What a sandbox shall be, and what is seen of it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Names a sandbox: a UUIDv7 in lower case, good as a file name, a DNS label and a Kubernetes name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SandboxId(Uuid);

impl SandboxId {
    /// A new id, later than all before.
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// When it was made, since 1970, where the id tells.
    #[must_use]
    pub(crate) fn made_at(self) -> Option<Duration> {
        let (seconds, nanoseconds) = self.0.get_timestamp()?.to_unix();
        Some(Duration::new(seconds, nanoseconds))
    }

    /// The id as a number, for spreading over slots.
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

/// A kind of infrastructure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// Linux namespaces on this host.
    Namespace,
    /// Containers of a Docker engine.
    Docker,
}

/// How strongly a sandbox is sealed, weakest first. A job gets what it asked for or better, never less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Landlock and seccomp alone.
    Landlock,
    /// Linux namespaces, Landlock and seccomp.
    Namespaces,
    /// A virtual machine.
    MicroVm,
}

impl fmt::Display for Isolation {
    /// As it is written in requests and settings.
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
    /// The host's `/usr` and what it needs, read-only, with a clean `/etc`.
    Host,
    /// A root file system in this directory.
    Directory(std::path::PathBuf),
    /// An image that the backend knows by this name; `default` is the agent's computer.
    Named(String),
}

/// How much, and whether the job insists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// A default: where the host cannot enforce it, the sandbox is made all the same and says so.
    Default(u64),
    /// Asked for: where the host cannot enforce it, the sandbox is refused.
    Required(u64),
}

impl Limit {
    /// The number.
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
    /// Processor time.
    Cpu,
    /// Processes and threads.
    Pids,
    /// Open files of one process.
    OpenFiles,
    /// What can be written to disk.
    Disk,
}

impl LimitKind {
    /// All of them.
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

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Mebibytes of memory.
    pub memory_mib: Limit,
    /// Thousandths of a processor.
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

/// What a sandbox shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Root file system.
    pub image: Image,
    /// The least isolation that is acceptable.
    pub isolation: Isolation,
    /// What it may use.
    pub limits: Limits,
    /// Certificates (PEM) that the sandbox trusts beside the image's own. Shared: all that a host trusts are a quarter of
    /// a megabyte.
    pub extra_ca: Arc<[String]>,
    /// A certificate (PEM) that this sandbox trusts and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_ca: Option<String>,
    /// For finding it again and for people: `job`, `server`.
    pub labels: BTreeMap<String, String>,
}

/// What is seen of a sandbox from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Where it stands.
    pub phase: Phase,
    /// What it uses and has used.
    pub usage: Usage,
    /// Limits of the spec that are not enforced, with the reason.
    pub unenforced: Vec<(LimitKind, String)>,
}

/// Where a sandbox stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    Missing,
    /// Being made.
    Starting,
    /// The guest runs.
    Running,
    /// The guest is gone.
    Ended(Ended),
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// For programs.
    pub reason: EndedReason,
    /// For people.
    pub detail: String,
}

/// Why a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedReason {
    /// The kernel ended the guest because the sandbox's memory was used up.
    OutOfMemory,
    /// The guest or the launcher was killed or has crashed.
    Lost,
    /// The sandbox could not be set up.
    NotStarted,
    /// Something that was written to its disk did not reach it.
    WorkspaceDamaged,
}

/// The file system of the host that holds the disks of sandboxes, and those of its disks that take room there only as they are
/// filled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostDisk {
    /// What can still be written to it.
    pub free_bytes: u64,
    /// The disks of sandboxes that run.
    pub disks: Vec<SparseDisk>,
}

/// The disk of a sandbox that takes room on the host only as it is filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseDisk {
    /// Whose it is.
    pub sandbox: SandboxId,
    /// How much more room it can take.
    pub unallocated_bytes: u64,
    /// What its sandbox has written and the kernel has not stored yet.
    pub unwritten_bytes: u64,
}

/// Whether a disk holds everything that was written to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskState {
    /// It does.
    Whole,
    /// It does not, and never will; for people.
    Damaged(String),
}

/// What a sandbox uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of memory now.
    pub memory_bytes: u64,
    /// The most bytes of memory so far.
    pub memory_peak_bytes: u64,
    /// Processor time so far.
    pub cpu_micros: u64,
    /// Processes and threads now.
    pub pids: u64,
    /// How often the kernel has ended a process because the memory was used up.
    pub oom_kills: u64,
    /// How often a process could not be made because of the limit.
    pub pids_refused: u64,
}

/// What a backend can do on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The best isolation.
    pub isolation: Isolation,
    /// Limits that are really enforced.
    pub enforced: Vec<LimitKind>,
    /// Each thing that was looked at, for `doctor`.
    pub checks: Vec<Check>,
}

impl Capabilities {
    /// Limits that sandboxes go without here.
    pub fn unenforced(&self) -> Vec<LimitKind> {
        LimitKind::ALL.into_iter().filter(|kind| !self.enforced.contains(kind)).collect()
    }
}

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at, a few words.
    pub name: String,
    /// How it stands.
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// What would change it, as a command where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// How a check stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// Good.
    Good,
    /// Works, but something is weaker than it could be.
    Weaker,
    /// Does not work.
    Missing,
}
