//! What the launcher is told, and what it leaves behind for others to read, in the [`crate::launch_file`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupUsage, Group};

/// The list of files that the processes of the sandbox touch; a line of JSON each.
pub const FILES_FILE: &str = "files.jsonl";
/// What the guest says for people to read; there is none where it said nothing.
pub const LOG_FILE: &str = "launcher.log";
/// Name of the directory of the guest's journal. The guest has it as a descriptor; it has no path inside.
pub const GUEST_DIRECTORY: &str = "guest";
/// How many user ids a sandbox of root's has: 0 is the guest, 1000 what it runs.
pub const UIDS_PER_SANDBOX: u32 = 65_536;
/// The descriptor on which the guest finds its listening socket.
pub const LISTEN_FD: i32 = 3;
/// The descriptor on which the guest finds the directory of its journal.
pub const STATE_FD: i32 = 4;
/// The descriptor on which the guest of a sandbox without namespaces finds the entrance for outgoing connections.
pub const ENTRANCE_FD: i32 = 5;
/// Directories in the tree of a sandbox without namespaces.
pub const SHELTER_DIRECTORIES: [&str; 3] = ["workspace", "home", "tmp"];
/// Directories that the root of every disk must have: two for the overlay, two as mount points, the workspace.
pub const DISK_DIRECTORIES: [&str; 5] = ["upper", "work", "lower", "root", "workspace"];
/// Programs of the package `uidmap` that give lent user and group ids to a namespace; an ordinary user may not.
pub const ID_HELPERS: [&str; 2] = ["/usr/bin/newuidmap", "/usr/bin/newgidmap"];
/// User and group id that the workspace belongs to, inside.
pub const AGENT_ID: u32 = 1000;

/// All that the launcher needs to know of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSpec {
    /// The sandbox's directory on the host; holds the files named in this module.
    pub directory: PathBuf,
    /// Where the guest listens for the link.
    pub socket: PathBuf,
    /// The guest's program on the host.
    pub guest: PathBuf,
    /// Its arguments, without the program's name.
    pub guest_arguments: Vec<String>,
    /// What the root file system is made of.
    pub root: Root,
    /// Where everything that is written goes.
    pub disk: Disk,
    /// Whose user ids the sandbox has.
    pub users: Users,
    /// The control group, where the host has them.
    pub cgroup: Option<Group>,
    /// What the sandbox may use.
    pub limits: LaunchLimits,
    /// The seccomp program as hexadecimal bytes.
    pub seccomp: String,
    /// Directories inside that may be written to as far as their permissions allow; all else is read-only.
    pub writable: Vec<String>,
    /// The AppArmor profile that the guest runs under, where the host has it.
    pub apparmor_profile: Option<String>,
    /// Whether the time of each step goes to the log.
    pub trace: Trace,
    /// What keeps the sandbox apart from the host.
    #[serde(default)]
    pub seal: Seal,
    /// Whether the files that its processes touch are listed.
    #[serde(default)]
    pub file_audit: FileAuditing,
    /// Where the sandbox has its network from.
    #[serde(default)]
    pub network: Network,
}

/// Where a sandbox has its network from. Either way it has nothing but a loopback device, and nobody else has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// It is made for the sandbox and goes with it.
    #[default]
    Own,
    /// It comes with the order, as a descriptor.
    Lent,
}

/// Whether files that are touched are listed, in [`FILES_FILE`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAuditing {
    /// Where the host allows it.
    WherePossible,
    /// Never.
    #[default]
    Off,
}

/// What keeps a sandbox apart from the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seal {
    /// Namespaces, and Landlock and seccomp within.
    #[default]
    Namespaces,
    /// Landlock and seccomp alone. Root file system and disk of the specification are not looked at.
    Shelter(Shelter),
}

/// What a sandbox without namespaces may reach of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shelter {
    /// Holds all that may be written; has the [`SHELTER_DIRECTORIES`].
    pub tree: PathBuf,
    /// Files and directories that may be read and executed.
    pub readable: Vec<PathBuf>,
    /// Devices that may be read and written.
    pub devices: Vec<PathBuf>,
    /// Marks every process of this sandbox; see [`crate::mark`].
    pub mark: u64,
}

/// Layers of the root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    /// The lower layer, read-only. It is locked (shared) as long as the sandbox has an owner.
    pub lower: PathBuf,
    /// A second read-only layer that lies over the first: what every sandbox must find, whatever its image has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<PathBuf>,
    /// Directories of the host that are shown read-only inside.
    pub binds: Vec<Bind>,
}

/// A directory of the host that is shown read-only inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// Inside, relative to the root.
    pub target: PathBuf,
}

/// Where everything that is written goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disk {
    /// A file with an ext4 file system; its size is the limit.
    Image(PathBuf),
    /// A directory of the host, without a limit.
    Directory(PathBuf),
}

/// Whose user ids a sandbox has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Users {
    /// The launcher is root. Each sandbox has a range of ids that nobody else has, and its mounts map ids.
    Ranges(Slots),
    /// The launcher is an ordinary user to whom the host lends ids: 0 inside is that user, 1000 is a lent one.
    Lent {
        /// Lent user ids, one for each sandbox.
        slots: Slots,
        /// The group id that goes with the first of them.
        first_gid: u32,
    },
    /// The launcher is an ordinary user: 0 inside is that user, and there is no other.
    Single,
}

/// User ids of which each sandbox has its part for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slots {
    /// Holds one lock file for each slot.
    pub directory: PathBuf,
    /// First user id of slot 0.
    pub first_uid: u32,
    /// How many there are.
    pub count: u32,
    /// The slot to try first.
    pub preferred: u32,
}

/// A tree that shall be deleted, whoever of a sandbox's users its files belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    /// Whose user ids the sandbox had.
    pub users: Users,
    /// The tree.
    pub directory: PathBuf,
}

/// A question to the host: can namespaces be made and file systems be mounted in them?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Whose user ids a sandbox would have.
    pub users: Users,
    /// An empty directory on the file system that would hold disks.
    pub directory: PathBuf,
}

/// What a sandbox may use; the disk's limit is its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchLimits {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Thousandths of a processor.
    pub cpu_millis: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Open files of one process.
    pub open_files: u64,
}

/// Whether the time of each step goes to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trace {
    /// No.
    Off,
    /// Yes.
    On,
}

/// The one line that the launcher prints before it closes its standard output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The guest runs.
    Ready,
    /// It does not.
    Failed {
        /// What was being done.
        step: String,
        /// The cause.
        cause: String,
        /// The cause as a number, where it came from the operating system.
        errno: Option<i32>,
    },
}

/// What a running sandbox holds; written before [`Report::Ready`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The guest's process id on the host.
    pub guest_pid: u32,
    /// When it started, as the kernel counts: tells it from a later process with the same id.
    pub guest_started: u64,
    /// Number of the loop device under the disk.
    pub loop_device: Option<u32>,
    /// Where its network is from.
    #[serde(default)]
    pub network: Network,
    /// Whether the launcher holds the disk open and syncs it when asked.
    #[serde(default)]
    pub syncs_disk: bool,
}

/// How a sandbox ended that nobody asked to end; written after the last process is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// How the guest ended.
    pub end: GuestEnd,
    /// What the sandbox had used.
    pub usage: CgroupUsage,
}

/// How the guest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestEnd {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}
