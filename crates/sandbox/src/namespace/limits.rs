//! Which limits this host can enforce.

use launcher::LaunchLimits;
use launcher::cgroup::{Controller, Hierarchy};

use crate::limits::{LimitSupport, Plan};
use crate::spec::LimitKind;

/// The limits that the host supports.
#[derive(Debug, Clone)]
pub(super) struct HostLimits {
    pub(super) hierarchy: Option<Hierarchy>,
    /// Why there are no cgroups; `None` if there are.
    pub(super) no_groups: Option<String>,
    /// Why the size of disks cannot be limited; `None` if it can.
    pub(super) no_disks: Option<String>,
    /// Why the number of processes cannot be limited; `None` if it can.
    pub(super) no_pids: Option<String>,
    /// The host's maximum number of open files per process.
    pub(super) open_files: u64,
    /// The maximum number of open files of all processes of a sandbox together, if the host has a system-wide limit.
    pub(super) host_open_files_share: Option<u64>,
}

impl Plan {
    /// The limits that the launcher enforces; it knows nothing of disk sizes.
    pub(super) fn launch_limits(&self) -> LaunchLimits {
        LaunchLimits {
            memory_bytes: self.memory_bytes,
            cpu_millis: self.cpu_millis,
            pids: self.pids,
            open_files: self.open_files,
        }
    }
}

impl LimitSupport for HostLimits {
    fn obstacle(&self, kind: LimitKind) -> Option<String> {
        let controller = match kind {
            LimitKind::Memory => Controller::Memory,
            LimitKind::Cpu => Controller::Cpu,
            // Without a cgroup, `RLIMIT_NPROC` applies, which counts a user's processes per user namespace, here the
            // sandbox's own.
            LimitKind::Pids => return self.no_pids.clone(),
            LimitKind::OpenFiles => return None,
            LimitKind::Disk => return self.no_disks.clone(),
        };
        let controllers = self.hierarchy.as_ref().map(Hierarchy::controllers).unwrap_or_default();
        let missing = || format!("the host has no {} control group for it", controller.name());
        (!controllers.contains(&controller)).then(|| self.no_groups.clone().unwrap_or_else(missing))
    }

    fn max_open_files(&self) -> u64 {
        self.open_files
    }

    fn max_total_open_files(&self) -> Option<u64> {
        self.host_open_files_share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_host_limits_are_not_promised() {
        let roots = [(Controller::Memory, "/m".into()), (Controller::Pids, "/p".into())].into();
        let offer = HostLimits {
            hierarchy: Some(Hierarchy::V1 { roots }),
            no_groups: None,
            no_disks: Some("no loop devices".into()),
            no_pids: None,
            open_files: 1000,
            host_open_files_share: None,
        };
        assert_eq!(offer.enforced(), [LimitKind::Memory, LimitKind::Pids, LimitKind::OpenFiles]);
        assert!(offer.obstacle(LimitKind::Cpu).unwrap().contains("cpu control group"));
        let without = HostLimits { hierarchy: None, no_groups: Some("not delegated".into()), ..offer };
        assert_eq!(without.obstacle(LimitKind::Memory).unwrap(), "not delegated");
    }
}
