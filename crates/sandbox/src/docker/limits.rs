//! Which limits the engine can enforce.

use async_trait::async_trait;
use bollard::models::SystemInfo;

use super::DockerBackend;
use crate::Admission;
use crate::error::SandboxError;
use crate::limits::LimitSupport;
use crate::spec::{Isolation, LimitKind, Limits};

/// The limits that the engine and its host support.
#[derive(Debug, Clone, Default)]
pub(super) struct HostLimits {
    /// Why memory cannot be limited; `None` if it can.
    pub(super) no_memory: Option<String>,
    /// Why CPU time cannot be limited; `None` if it can.
    pub(super) no_cpu: Option<String>,
    /// Why the number of processes cannot be limited; `None` if it can.
    pub(super) no_pids: Option<String>,
    /// Why the size of disks cannot be limited; `None` if it can.
    pub(super) no_disk: Option<String>,
    /// The maximum number of open files per process.
    pub(super) open_files: u64,
    /// The maximum number of open files of all processes of a sandbox together; known if the engine runs on this host
    /// and the host has a system-wide limit.
    pub(super) host_open_files_share: Option<u64>,
}

impl HostLimits {
    /// Reads the supported limits from the engine's info.
    pub(super) fn of(info: &SystemInfo, no_disk: Option<String>, open_files: u64) -> Self {
        let without = |there: Option<bool>, what: &str| {
            (there != Some(true)).then(|| format!("the engine's host has no cgroup controller for {what}"))
        };
        Self {
            no_memory: without(info.memory_limit, "memory"),
            no_cpu: without(info.cpu_cfs_quota, "CPU time"),
            no_pids: without(info.pids_limit, "processes"),
            no_disk,
            open_files,
            host_open_files_share: None,
        }
    }
}

impl LimitSupport for HostLimits {
    fn obstacle(&self, kind: LimitKind) -> Option<String> {
        match kind {
            LimitKind::Memory => self.no_memory.clone(),
            LimitKind::Cpu => self.no_cpu.clone(),
            LimitKind::Pids => self.no_pids.clone(),
            LimitKind::OpenFiles => None,
            LimitKind::Disk => self.no_disk.clone(),
        }
    }

    fn max_open_files(&self) -> u64 {
        self.open_files
    }

    fn max_total_open_files(&self) -> Option<u64> {
        self.host_open_files_share
    }
}

#[async_trait]
impl Admission for DockerBackend {
    async fn check_limits(&self, limits: &Limits, _: Isolation) -> Result<(), SandboxError> {
        self.ready().await?.offer.plan(limits).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Limit;

    #[test]
    fn unsupported_engine_limits_are_not_promised() {
        let bare = HostLimits::of(&SystemInfo::default(), None, 1000);
        assert_eq!(bare.enforced(), [LimitKind::OpenFiles, LimitKind::Disk]);
        let info = SystemInfo { pids_limit: Some(true), ..SystemInfo::default() };
        let far = HostLimits::of(&info, Some("far away".into()), 1000);
        assert_eq!(far.enforced(), [LimitKind::Pids, LimitKind::OpenFiles]);
    }
    #[test]
    fn containers_leave_open_files_to_the_host() {
        let offer =
            HostLimits { open_files: 1000, host_open_files_share: Some(20_000), ..HostLimits::default() };
        let limits = Limits { pids: Limit::Required(100), ..Limits::default() };
        assert_eq!(offer.plan(&limits).unwrap().open_files, 200);
        let limits = Limits { open_files: Limit::Required(201), ..limits };
        assert!(offer.plan(&limits).unwrap_err().to_string().contains("64 to 200"));
    }
}
