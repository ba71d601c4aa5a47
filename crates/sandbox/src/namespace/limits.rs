//! Which limits this host can enforce, and whether what a sandbox asks for is possible.

use std::collections::BTreeSet;

use launcher::cgroup::{Controller, Hierarchy};
use launcher::spec::LaunchLimits;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::spec::{Limit, LimitKind, Limits};

const MEBIBYTE: u64 = 1 << 20;
const MEMORY_MIB: (u64, u64) = (16, 1 << 24);
const CPU_MILLIS: (u64, u64) = (10, 1_000_000);
const PIDS: (u64, u64) = (8, 1 << 22);
const OPEN_FILES_LEAST: u64 = 64;
const DISK_MIB: (u64, u64) = (16, 1 << 24);

/// What the host offers for limits.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) hierarchy: Option<Hierarchy>,
    /// Why there are no control groups, where there are none.
    pub(super) no_groups: Option<String>,
    /// Why disks cannot be sized, where they cannot.
    pub(super) no_disks: Option<String>,
    /// The most open files that the host lets a process have.
    pub(super) open_files: u64,
}

/// A limit that does not hold, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unenforced {
    pub(super) limit: LimitKind,
    pub(super) why: String,
}

/// Checked limits.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) limits: LaunchLimits,
    /// `None` when the disk has no limit.
    pub(super) disk_mib: Option<u64>,
    pub(super) unenforced: Vec<Unenforced>,
}

impl Offer {
    /// Why a limit cannot be enforced here; `None` when it can.
    fn obstacle(&self, kind: LimitKind) -> Option<String> {
        let controller = match kind {
            LimitKind::Memory => Controller::Memory,
            LimitKind::Cpu => Controller::Cpu,
            // Without a control group the kernel counts a user's processes in its user namespace, which is the sandbox's.
            LimitKind::Pids | LimitKind::OpenFiles => return None,
            LimitKind::Disk => return self.no_disks.clone(),
        };
        let controllers = self.hierarchy.as_ref().map(Hierarchy::controllers).unwrap_or_default();
        let missing = || format!("the host has no {} control group for it", controller.name());
        (!controllers.contains(&controller)).then(|| self.no_groups.clone().unwrap_or_else(missing))
    }

    /// The limits that are really enforced.
    pub(super) fn enforced(&self) -> Vec<LimitKind> {
        let all: BTreeSet<_> =
            [LimitKind::Memory, LimitKind::Cpu, LimitKind::Pids, LimitKind::OpenFiles, LimitKind::Disk]
                .into();
        all.into_iter().filter(|kind| self.obstacle(*kind).is_none()).collect()
    }

    /// Checks what a sandbox asks for.
    pub(super) fn plan(&self, asked: &Limits) -> Result<Plan, SandboxError> {
        let mut unenforced = Vec::new();
        let mut check = |kind, limit: Limit, range: (u64, u64)| -> Result<u64, SandboxError> {
            if let Some(why) = self.obstacle(kind) {
                match limit {
                    Limit::Required(_) => return Err(SandboxError::LimitUnenforceable { limit: kind, why }),
                    Limit::Default(_) => unenforced.push(Unenforced { limit: kind, why }),
                }
            }
            in_range(kind, limit.value(), range)
        };
        let limits = LaunchLimits {
            memory_bytes: check(LimitKind::Memory, asked.memory_mib, MEMORY_MIB)? * MEBIBYTE,
            cpu_millis: check(LimitKind::Cpu, asked.cpu_millis, CPU_MILLIS)?,
            pids: check(LimitKind::Pids, asked.pids, PIDS)?,
            open_files: self.open_files(asked.open_files)?,
        };
        let disk_mib = check(LimitKind::Disk, asked.disk_mib, DISK_MIB)?;
        let disk_mib = self.no_disks.is_none().then_some(disk_mib);
        Ok(Plan { limits, disk_mib, unenforced })
    }

    /// A default above the host's own limit means that limit.
    fn open_files(&self, asked: Limit) -> Result<u64, SandboxError> {
        let value = match asked {
            Limit::Default(value) => value.min(self.open_files),
            Limit::Required(value) => value,
        };
        in_range(LimitKind::OpenFiles, value, (OPEN_FILES_LEAST, self.open_files))
    }
}

fn in_range(limit: LimitKind, value: u64, (least, most): (u64, u64)) -> Result<u64, SandboxError> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(SandboxError::LimitOutOfRange { limit, value, allowed: format!("{least} to {most} are allowed") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let roots = [(Controller::Memory, "/m".into()), (Controller::Pids, "/p".into())].into();
        Offer { hierarchy: Some(Hierarchy::V1 { roots }), no_groups: None, no_disks: None, open_files: 1000 }
    }

    #[test]
    fn defaults_that_cannot_be_enforced_are_named() {
        let plan = offer().plan(&Limits::default()).unwrap();
        assert_eq!(plan.unenforced.len(), 1);
        assert_eq!(plan.unenforced[0].limit, LimitKind::Cpu);
        assert_eq!(plan.limits.open_files, 1000, "the host's own limit");
    }

    #[test]
    fn what_is_asked_for_and_cannot_be_enforced_is_refused() {
        let asked = Limits { cpu_millis: Limit::Required(500), ..Limits::default() };
        let error = offer().plan(&asked).unwrap_err();
        assert!(matches!(error, SandboxError::LimitUnenforceable { limit: LimitKind::Cpu, .. }));
        let asked = Limits { disk_mib: Limit::Required(100), ..Limits::default() };
        let without = Offer { no_disks: Some("no loop devices".into()), ..offer() };
        assert!(without.plan(&asked).is_err());
    }

    #[test]
    fn impossible_values_are_refused() {
        for asked in [
            Limits { memory_mib: Limit::Required(1), ..Limits::default() },
            Limits { pids: Limit::Default(0), ..Limits::default() },
            Limits { open_files: Limit::Required(1001), ..Limits::default() },
            Limits { disk_mib: Limit::Default(u64::MAX), ..Limits::default() },
        ] {
            assert!(matches!(offer().plan(&asked), Err(SandboxError::LimitOutOfRange { .. })), "{asked:?}");
        }
    }
}
