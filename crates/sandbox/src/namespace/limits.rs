//! Which limits this host can enforce.

use async_trait::async_trait;
use launcher::cgroup::{Controller, Hierarchy};
use launcher::{LaunchLimits, delegation};
use rustix::process::{Resource, getrlimit};

use super::users::Identity;
use super::{NamespaceBackend, NamespaceConfig, create};
use crate::Admission;
use crate::error::SandboxError;
use crate::host::disk::{Owners, disk_obstacle};
use crate::host::limits::host_open_files_share;
use crate::limits::{LimitSupport, Plan};
use crate::spec::{Isolation, LimitKind, Limits};

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

impl HostLimits {
    /// What the host supports for sandboxes with namespaces.
    pub(super) fn find(config: &NamespaceConfig, identity: &Identity) -> Self {
        let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let (found, no_groups, no_disks) = match identity.owners() {
            Owners::AsInside => (Hierarchy::find(), None, disk_obstacle()),
            Owners::Server => (
                delegation::find(),
                Some("no cgroup is delegated to this user".into()),
                Some("loop devices need root".into()),
            ),
        };
        let hierarchy = found.filter(|hierarchy| match hierarchy.prepare_parent(&config.cgroup_parent) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(step = error.step, error = %error.source, "cannot use cgroups");
                false
            }
        });
        let no_groups = no_groups.filter(|_| hierarchy.is_none());
        let host_open_files_share = host_open_files_share();
        Self { hierarchy, no_groups, no_disks, no_pids: None, open_files, host_open_files_share }
    }

    /// What it supports for sandboxes without namespaces.
    pub(super) fn without_namespaces(&self, identity: &Identity) -> Self {
        let each = "without a cgroup only single processes can be limited";
        let shared = "the kernel counts them together with all other processes of this user";
        let has_groups = self.hierarchy.is_some();
        Self {
            hierarchy: self.hierarchy.clone(),
            no_groups: (!has_groups).then(|| each.into()),
            no_disks: Some("sandbox disks need a mount namespace".into()),
            no_pids: (!has_groups && identity.owners() == Owners::Server).then(|| shared.into()),
            open_files: self.open_files,
            host_open_files_share: self.host_open_files_share,
        }
    }
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
        let missing = || format!("the host has no {} cgroup controller for it", controller.name());
        (!controllers.contains(&controller)).then(|| self.no_groups.clone().unwrap_or_else(missing))
    }

    fn max_open_files(&self) -> u64 {
        self.open_files
    }

    fn max_total_open_files(&self) -> Option<u64> {
        self.host_open_files_share
    }
}

#[async_trait]
impl Admission for NamespaceBackend {
    async fn check_limits(&self, limits: &Limits, isolation: Isolation) -> Result<(), SandboxError> {
        let limits = *limits;
        self.blocking(move |inner| create::check_limits(inner, &limits, isolation)).await
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
        assert!(offer.obstacle(LimitKind::Cpu).unwrap().contains("no cpu cgroup controller"));
        let without = HostLimits { hierarchy: None, no_groups: Some("not delegated".into()), ..offer };
        assert_eq!(without.obstacle(LimitKind::Memory).unwrap(), "not delegated");
    }
}
