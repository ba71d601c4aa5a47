//! Validates the limits that a sandbox asks for, in the same way for every backend. A backend only reports which
//! limits it cannot enforce, and why.

use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::spec::{Limit, LimitKind, Limits};

const MEBIBYTE: u64 = 1 << 20;
const MEMORY_MIB: (u64, u64) = (16, 1 << 24);
const CPU_MILLIS: (u64, u64) = (10, 1_024_000);
const PIDS: (u64, u64) = (8, 1 << 22);
/// The kernel's upper bound for `fs.nr_open`; hosts are configured lower.
const OPEN_FILES: (u64, u64) = (64, 1 << 30);
const DISK_MIB: (u64, u64) = (16, 1 << 24);

/// A limit that is not enforced, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unenforced {
    pub(crate) limit: LimitKind,
    pub(crate) why: String,
}

/// Validated limits.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) memory_bytes: u64,
    pub(crate) cpu_millis: u64,
    pub(crate) pids: u64,
    pub(crate) open_files: u64,
    /// `None` if the disk is not limited.
    pub(crate) disk_mib: Option<u64>,
    pub(crate) unenforced: Vec<Unenforced>,
}

/// The limits that a host supports.
pub(crate) trait LimitSupport {
    /// Why a limit cannot be enforced; `None` if it can.
    fn obstacle(&self, kind: LimitKind) -> Option<String>;

    /// The maximum number of open files per process.
    fn max_open_files(&self) -> u64;

    /// The maximum number of open files of all processes of a sandbox together; `None` if the host has no such limit.
    fn max_total_open_files(&self) -> Option<u64> {
        None
    }

    /// The limits that are enforced.
    fn enforced(&self) -> Vec<LimitKind> {
        LimitKind::ALL.into_iter().filter(|kind| self.obstacle(*kind).is_none()).collect()
    }

    /// Validates the limits of a spec: a required limit must be enforceable, a default may be weaker and is then
    /// listed in `unenforced`.
    fn plan(&self, asked: &Limits) -> Result<Plan, SandboxError> {
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
        let memory_bytes = check(LimitKind::Memory, asked.memory_mib, MEMORY_MIB)? * MEBIBYTE;
        let cpu_millis = check(LimitKind::Cpu, asked.cpu_millis, CPU_MILLIS)?;
        let pids = check(LimitKind::Pids, asked.pids, PIDS)?;
        let disk_mib = check(LimitKind::Disk, asked.disk_mib, DISK_MIB)?;
        // The kernel limits open files only per process; per sandbox it limits the number of processes. So each
        // process gets a share.
        let share = self.max_total_open_files().map(|all| (all / pids).max(OPEN_FILES.0));
        let most = self.max_open_files().min(share.unwrap_or(u64::MAX));
        let open_files = match asked.open_files {
            // A default above the host's maximum means that maximum.
            Limit::Default(value) => value.min(most),
            Limit::Required(value) => value,
        };
        Ok(Plan {
            memory_bytes,
            cpu_millis,
            pids,
            open_files: in_range(LimitKind::OpenFiles, open_files, (OPEN_FILES.0, most))?,
            disk_mib: self.obstacle(LimitKind::Disk).is_none().then_some(disk_mib),
            unenforced,
        })
    }
}

/// The minimum and maximum of a limit on any host.
#[must_use]
pub fn allowed_range(kind: LimitKind) -> (u64, u64) {
    match kind {
        LimitKind::Memory => MEMORY_MIB,
        LimitKind::Cpu => CPU_MILLIS,
        LimitKind::Pids => PIDS,
        LimitKind::OpenFiles => OPEN_FILES,
        LimitKind::Disk => DISK_MIB,
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

    /// A host that cannot enforce one kind of limit.
    struct Without(Option<LimitKind>);

    /// A host with a low limit on open files of all processes.
    struct FewFiles;

    impl LimitSupport for FewFiles {
        fn obstacle(&self, _: LimitKind) -> Option<String> {
            None
        }

        fn max_open_files(&self) -> u64 {
            1000
        }

        fn max_total_open_files(&self) -> Option<u64> {
            Some(20_000)
        }
    }

    #[test]
    fn sandboxes_leave_open_files_to_the_host() {
        let with = |pids, open_files| Limits { pids: Limit::Required(pids), open_files, ..Limits::default() };
        let open_files = |asked: &Limits| FewFiles.plan(asked).unwrap().open_files;
        assert_eq!(open_files(&with(100, Limit::Default(16_384))), 200);
        assert_eq!(open_files(&with(10, Limit::Default(16_384))), 1000);
        assert_eq!(open_files(&with(1000, Limit::Default(16_384))), 64, "fewer would be of no use");
        assert_eq!(open_files(&with(100, Limit::Required(200))), 200);
        let error = FewFiles.plan(&with(100, Limit::Required(201))).unwrap_err();
        assert!(error.to_string().contains("64 to 200"), "{error}");
    }

    impl LimitSupport for Without {
        fn obstacle(&self, kind: LimitKind) -> Option<String> {
            (self.0 == Some(kind)).then(|| "far away".into())
        }

        fn max_open_files(&self) -> u64 {
            1000
        }
    }

    #[test]
    fn unenforceable_defaults_are_reported() {
        let plan = Without(Some(LimitKind::Cpu)).plan(&Limits::default()).unwrap();
        assert_eq!(plan.unenforced, [Unenforced { limit: LimitKind::Cpu, why: "far away".into() }]);
        assert_eq!(plan.open_files, 1000, "the host's own limit");
        assert_eq!(Without(Some(LimitKind::Cpu)).enforced().len(), 4);
        assert!(Without(None).plan(&Limits::default()).unwrap().unenforced.is_empty());
    }

    #[test]
    fn required_limits_that_cannot_be_enforced_are_refused() {
        let asked = Limits { cpu_millis: Limit::Required(500), ..Limits::default() };
        let error = Without(Some(LimitKind::Cpu)).plan(&asked).unwrap_err();
        assert!(matches!(error, SandboxError::LimitUnenforceable { limit: LimitKind::Cpu, .. }));
        let asked = Limits { disk_mib: Limit::Required(64), ..Limits::default() };
        let unsized_disk = Without(Some(LimitKind::Disk));
        assert!(matches!(
            unsized_disk.plan(&asked),
            Err(SandboxError::LimitUnenforceable { limit: LimitKind::Disk, .. })
        ));
        assert_eq!(unsized_disk.plan(&Limits::default()).unwrap().disk_mib, None);
        assert_eq!(Without(None).plan(&asked).unwrap().disk_mib, Some(64));
    }

    #[test]
    fn impossible_values_are_refused() {
        for asked in [
            Limits { memory_mib: Limit::Required(1), ..Limits::default() },
            Limits { pids: Limit::Default(0), ..Limits::default() },
            Limits { open_files: Limit::Required(1001), ..Limits::default() },
            Limits { disk_mib: Limit::Default(u64::MAX), ..Limits::default() },
        ] {
            let refused = Without(None).plan(&asked);
            assert!(matches!(refused, Err(SandboxError::LimitOutOfRange { .. })), "{asked:?}");
        }
    }
}
