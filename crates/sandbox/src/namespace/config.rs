//! Settings of the namespace backend.

use std::path::PathBuf;
use std::time::Duration;

use launcher::spec::Trace;

/// Settings of the namespace backend.
#[derive(Debug, Clone)]
pub struct NamespaceConfig {
    /// Directory of everything that must outlive the server: sandboxes, disks, images.
    pub state_dir: PathBuf,
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
    /// Control group below which each sandbox has its own.
    pub cgroup_parent: String,
    /// Port on the sandbox's loopback where outgoing connections enter.
    pub egress_port: u16,
    /// How many empty disks of each size are kept ready.
    pub ready_disks: usize,
    /// How long a start may take.
    pub start_timeout: Duration,
    /// How long an end may take before it is forced.
    pub stop_timeout: Duration,
    /// Whether the launcher logs the time of each step.
    pub trace: Trace,
}

impl NamespaceConfig {
    /// Settings with defaults.
    pub fn new(
        state_dir: impl Into<PathBuf>,
        run_dir: impl Into<PathBuf>,
        launcher: impl Into<PathBuf>,
        guest: impl Into<PathBuf>,
    ) -> Self {
        Self {
            state_dir: state_dir.into(),
            run_dir: run_dir.into(),
            slots_dir: "/run/caisson/slots".into(),
            launcher: launcher.into(),
            guest: guest.into(),
            first_uid: 1 << 30,
            slots: 4096,
            cgroup_parent: "caisson".into(),
            egress_port: 3128,
            ready_disks: 16,
            start_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(10),
            trace: Trace::Off,
        }
    }
}
