//! Which limits the engine can enforce.

use bollard::models::SystemInfo;

use crate::limits::Obstacles;
use crate::spec::LimitKind;

/// What the engine and its host offer for limits.
#[derive(Debug, Clone, Default)]
pub(super) struct Offer {
    /// Why memory cannot be limited, where it cannot.
    pub(super) no_memory: Option<String>,
    /// Why processor time cannot be limited.
    pub(super) no_cpu: Option<String>,
    /// Why processes cannot be limited.
    pub(super) no_pids: Option<String>,
    /// Why disks cannot be sized.
    pub(super) no_disk: Option<String>,
    /// The most open files that a process can have.
    pub(super) open_files: u64,
}

impl Offer {
    /// What an engine tells of itself.
    pub(super) fn of(info: &SystemInfo, no_disk: Option<String>, open_files: u64) -> Self {
        let without = |there: Option<bool>, what: &str| {
            (there != Some(true)).then(|| format!("the engine's host has no control group for {what}"))
        };
        Self {
            no_memory: without(info.memory_limit, "memory"),
            no_cpu: without(info.cpu_cfs_quota, "processor time"),
            no_pids: without(info.pids_limit, "processes"),
            no_disk,
            open_files,
        }
    }
}

impl Obstacles for Offer {
    fn obstacle(&self, kind: LimitKind) -> Option<String> {
        match kind {
            LimitKind::Memory => self.no_memory.clone(),
            LimitKind::Cpu => self.no_cpu.clone(),
            LimitKind::Pids => self.no_pids.clone(),
            LimitKind::OpenFiles => None,
            LimitKind::Disk => self.no_disk.clone(),
        }
    }

    fn most_open_files(&self) -> u64 {
        self.open_files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_cannot_do_is_not_promised() {
        let bare = Offer::of(&SystemInfo::default(), None, 1000);
        assert_eq!(bare.enforced(), [LimitKind::OpenFiles, LimitKind::Disk]);
        let info = SystemInfo { pids_limit: Some(true), ..SystemInfo::default() };
        let far = Offer::of(&info, Some("far away".into()), 1000);
        assert_eq!(far.enforced(), [LimitKind::Pids, LimitKind::OpenFiles]);
    }
}
