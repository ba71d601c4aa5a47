//! Settings of the namespace backend.

use std::path::PathBuf;
use std::time::Duration;

use launcher::spec::{FileAuditing, Trace};

/// How many sandboxes have user ids at a time, where nothing else is said.
pub const DEFAULT_SLOTS: u32 = 4096;

/// Settings of the namespace backend.
#[derive(Debug, Clone)]
pub struct NamespaceConfig {
    /// Directory of everything that must outlive the server: sandboxes, disks, images.
    pub state_dir: PathBuf,
    /// Directory of images that have names, each as `<name>/rootfs`.
    pub images_dir: PathBuf,
    /// Directory of sockets; short, since a socket's path has at most 107 bytes.
    pub run_dir: PathBuf,
    /// Directory of the locks on user ids. Servers of one host share it, so that no two sandboxes have the same ids.
    pub slots_dir: PathBuf,
    /// The launcher's program.
    pub launcher: PathBuf,
    /// The guest's program.
    pub guest: PathBuf,
    /// First of the user ids that sandboxes get, 65,536 each. Must be far from those of the host's users.
    pub first_uid: u32,
    /// How many sandboxes can have user ids at a time.
    pub slots: u32,
    /// Whether namespaces are used.
    pub namespaces: UseNamespaces,
    /// Where sandboxes without namespaces have what they write, where the server is root: others must be able to pass.
    pub shelter_dir: PathBuf,
    /// Control group below which each sandbox has its own.
    pub cgroup_parent: String,
    /// Port on the sandbox's loopback where outgoing connections enter.
    pub egress_port: u16,
    /// How many empty disks of each size are kept ready at most; more are made when half of them are gone.
    pub ready_disks: usize,
    /// Where the disks of all sandboxes together may not take more than the host has: bytes of the host's disk that must stay
    /// free beside. `None`: they may.
    pub disk_reserve_unless_overcommitted: Option<u64>,
    /// How long a start may take.
    pub start_timeout: Duration,
    /// How long an end may take before it is forced.
    pub stop_timeout: Duration,
    /// Whether the launcher logs the time of each step.
    pub trace: Trace,
    /// Whether the files that sandboxes touch are listed, where the host allows it.
    pub file_audit: FileAuditing,
}

/// Whether namespaces are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseNamespaces {
    /// Wherever the host has them.
    WherePossible,
    /// Never: sandboxes are made as on a host that has none.
    Never,
}

impl NamespaceConfig {
    /// Settings with defaults.
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
            shelter_dir: "/var/tmp/caisson-shelters".into(),
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
