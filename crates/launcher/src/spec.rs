//! The launch specification, and what the launcher leaves behind for others to read in the [`crate::launch_file`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupUsage, Group};
use crate::limits::LaunchLimits;

/// The log of files that processes of the sandbox touch, as JSON lines.
pub const FILES_FILE: &str = "files.jsonl";
/// Output of the guest and errors of the launcher; the file exists only if something was written.
pub const LOG_FILE: &str = "launcher.log";
/// Name of the directory of the guest's journal. The guest gets it as a descriptor; it has no path inside.
pub const GUEST_DIRECTORY: &str = "guest";
/// Number of user ids of a root sandbox: 0 is the guest, 1000 is the user that it runs processes as.
pub const UIDS_PER_SANDBOX: u32 = 65_536;
/// The descriptor of the guest's listening socket.
pub const LISTEN_FD: i32 = 3;
/// The descriptor of the directory of the guest's journal.
pub const STATE_FD: i32 = 4;
/// The descriptor of the listener for outgoing connections, in a sandbox without namespaces.
pub const PROXY_FD: i32 = 5;
/// Directories in the tree of a sandbox without namespaces.
pub const LANDLOCK_ONLY_DIRECTORIES: [&str; 3] = ["workspace", "home", "tmp"];
/// Directories that the root of every disk must have: two for the overlay, two mount points, and the workspace.
pub const DISK_DIRECTORIES: [&str; 5] = ["upper", "work", "lower", "root", "workspace"];
/// Programs of the package `uidmap` that map subordinate user and group ids into a namespace, which an unprivileged
/// user may not do directly.
pub const ID_MAP_PROGRAMS: [&str; 2] = ["/usr/bin/newuidmap", "/usr/bin/newgidmap"];
/// User and group id that own the workspace inside the sandbox.
pub const AGENT_ID: u32 = 1000;

/// Everything that the launcher needs to know about one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSpec {
    /// The sandbox's directory on the host; holds the files named in this module.
    pub directory: PathBuf,
    /// Where the guest listens for the link.
    pub socket: PathBuf,
    /// The guest's executable on the host.
    pub guest: PathBuf,
    /// Arguments of the guest, without the program name.
    pub guest_arguments: Vec<String>,
    pub root: Root,
    /// Where all writes go.
    pub disk: Disk,
    pub users: Users,
    /// `None` if the host has no usable cgroups.
    pub cgroup: Option<Group>,
    pub limits: LaunchLimits,
    /// The seccomp program as hexadecimal bytes.
    pub seccomp: String,
    /// Directories inside that are writable as far as their permissions allow; everything else is read-only.
    pub writable: Vec<String>,
    /// The AppArmor profile of the guest, if the host has it.
    pub apparmor_profile: Option<String>,
    pub trace: Trace,
    /// How the sandbox is isolated from the host.
    #[serde(default)]
    pub seal: Seal,
    /// Whether to record the files that processes touch.
    #[serde(default)]
    pub file_audit: FileAuditing,
    #[serde(default)]
    pub network: Network,
}

/// Where a sandbox's network namespace comes from. Either way it has only a loopback device, and no other sandbox
/// uses it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Created for the sandbox and removed with it.
    #[default]
    Own,
    /// Passed with the launch request, as a descriptor.
    Lent,
}

/// Whether touched files are recorded in [`FILES_FILE`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAuditing {
    /// Enabled if the host allows it.
    WherePossible,
    #[default]
    Off,
}

/// How a sandbox is isolated from the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seal {
    /// Namespaces, with Landlock and seccomp inside.
    #[default]
    Namespaces,
    /// Landlock and seccomp only. The `root` and `disk` of the specification are ignored.
    LandlockOnly(LandlockOnly),
}

/// What a sandbox without namespaces may access on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LandlockOnly {
    /// Holds everything that is writable; contains the [`LANDLOCK_ONLY_DIRECTORIES`].
    pub tree: PathBuf,
    /// Files and directories that may be read and executed.
    pub readable: Vec<PathBuf>,
    /// Devices that may be read and written.
    pub devices: Vec<PathBuf>,
    /// Marks every process of this sandbox; see [`crate::process_mark`].
    pub mark: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    /// The lower layer, read-only. The owner holds a shared lock on it for the sandbox's lifetime.
    pub lower: PathBuf,
    /// An optional second read-only layer over the first: files that every sandbox needs, whatever its image
    /// contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<PathBuf>,
    /// Host directories that are bind-mounted read-only.
    pub binds: Vec<Bind>,
}

/// A host directory that is bind-mounted read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// Path on the host.
    pub source: PathBuf,
    /// Path inside the sandbox, relative to the root.
    pub target: PathBuf,
}

/// Where all writes go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disk {
    /// A file with an ext4 file system; its size is the limit.
    Image(PathBuf),
    /// A host directory, without a limit.
    Directory(PathBuf),
}

/// How the user ids of a sandbox map to host ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Users {
    /// The launcher is root. Each sandbox has an exclusive range of ids, and its mounts are id-mapped.
    Ranges(Slots),
    /// The launcher is an unprivileged user with subordinate ids: 0 inside is that user, 1000 is a subordinate id.
    Lent {
        /// Subordinate user ids, one for each sandbox.
        slots: Slots,
        /// The group id that pairs with the first of them.
        first_gid: u32,
    },
    /// The launcher is an unprivileged user: 0 inside is that user, and there are no other users.
    Single,
}

/// User ids that are divided into slots; each sandbox holds one slot exclusively.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slots {
    /// Holds one lock file per slot.
    pub directory: PathBuf,
    /// First user id of slot 0.
    pub first_uid: u32,
    /// Number of slots.
    pub count: u32,
    /// The slot to try first.
    pub preferred: u32,
}

/// A directory tree to delete, whichever of the sandbox's users owns its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    pub users: Users,
    pub directory: PathBuf,
}

/// A check of whether the host allows creating namespaces and mounting file systems in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    pub users: Users,
    /// An empty directory on the file system that would hold disks.
    pub directory: PathBuf,
}

/// Whether the launcher logs the duration of each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trace {
    Off,
    On,
}

/// The single line that the launcher prints before it closes its standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The guest is running.
    Ready,
    /// The guest is running, but the files that it touches are not recorded.
    ReadyWithoutFileAudit {
        cause: String,
        /// The cause as an error number, if it came from the operating system.
        errno: Option<i32>,
    },
    /// The guest could not be started.
    Failed {
        /// What was being done.
        step: String,
        cause: String,
        /// The cause as an error number, if it came from the operating system.
        errno: Option<i32>,
    },
}

/// The resources of a running sandbox; recorded before [`Report::Ready`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The guest's process id on the host.
    pub guest_pid: u32,
    /// The kernel's start time of the guest, which distinguishes it from a later process with the same id.
    pub guest_started: u64,
    /// The loop device under the disk.
    pub loop_device: Option<u32>,
    #[serde(default)]
    pub network: Network,
    /// Whether the launcher holds the disk open and syncs it on request.
    #[serde(default)]
    pub syncs_disk: bool,
}

/// How a sandbox ended that was not asked to terminate; recorded after the last process is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    pub end: GuestEnd,
    /// Total resource usage of the sandbox.
    pub usage: CgroupUsage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestEnd {
    /// The exit code.
    Code(i32),
    /// The signal that killed it.
    Signal(i32),
}
