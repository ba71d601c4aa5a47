//! Settings of the namespace backend.

use std::path::PathBuf;
use std::time::Duration;

use launcher::spec::{FileAuditing, Trace};

/// The default number of slots: how many sandboxes can have their own user ids at the same time.
pub const DEFAULT_SLOTS: u32 = 4096;

#[derive(Debug, Clone)]
pub struct NamespaceConfig {
    /// Directory of everything that must outlive the server: sandboxes, disks, images.
    pub state_dir: PathBuf,
    /// Directory of named images, each in `<name>/rootfs`.
    pub images_dir: PathBuf,
    /// Directory of sockets; must be short, because a socket's path has at most 107 bytes.
    pub run_dir: PathBuf,
    /// Directory of the locks on user ids. All servers of a host share it, so that no two sandboxes get the same ids.
    pub slots_dir: PathBuf,
    /// Path of the launcher program.
    pub launcher: PathBuf,
    /// Path of the guest program.
    pub guest: PathBuf,
    /// First of the user ids for sandboxes, 65,536 per sandbox. Must not overlap with those of the host's users.
    pub first_uid: u32,
    /// How many sandboxes can have their own user ids at the same time.
    pub slots: u32,
    pub namespaces: UseNamespaces,
    /// Directory for the data of sandboxes without namespaces if the server is root. Other users must be able to
    /// traverse it.
    pub landlock_only_dir: PathBuf,
    /// Parent cgroup of the sandboxes' cgroups.
    pub cgroup_parent: String,
    /// Port on the sandbox's loopback interface that accepts outgoing connections.
    pub egress_port: u16,
    /// The maximum number of empty disks of each size to keep ready. The pool is refilled when half of them are gone.
    pub ready_disks: usize,
    /// If set, the disks of all sandboxes together may not take more than the host has: this many bytes of the host's
    /// disk must stay free. `None` allows overcommitting.
    pub disk_reserve_unless_overcommitted: Option<u64>,
    /// Timeout for starting a sandbox.
    pub start_timeout: Duration,
    /// Timeout for ending a sandbox gracefully, before it is killed.
    pub stop_timeout: Duration,
    /// Whether the launcher logs the duration of each step.
    pub trace: Trace,
    /// Whether to log the files that sandboxes access, if the host supports it.
    pub file_audit: FileAuditing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseNamespaces {
    /// Wherever the host supports them.
    WherePossible,
    /// Never: sandboxes are created as on a host without namespaces.
    Never,
}

impl NamespaceConfig {
    pub fn new(
        state_dir: impl Into<PathBuf>,
        run_dir: impl Into<PathBuf>,
        launcher: impl Into<PathBuf>,
        guest: impl Into<PathBuf>,
    ) -> Self {
        let state_dir = state_dir.into();
        Self {
            images_dir: state_dir.join("images"),
            state_dir,
            run_dir: run_dir.into(),
            slots_dir: "/run/caisson/slots".into(),
            launcher: launcher.into(),
            guest: guest.into(),
            first_uid: 1 << 30,
            slots: DEFAULT_SLOTS,
            namespaces: UseNamespaces::WherePossible,
            landlock_only_dir: "/var/tmp/caisson-landlock".into(),
            cgroup_parent: "caisson".into(),
            egress_port: 3128,
            ready_disks: 16,
            disk_reserve_unless_overcommitted: None,
            start_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(10),
            trace: Trace::Off,
            file_audit: FileAuditing::WherePossible,
        }
    }
}
