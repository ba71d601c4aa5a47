//! `[limits]` and `[limits.max]`: the limits of jobs that specify none, and the maximum that a request may ask for.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use job::{CeilingRules, Ceilings, Role, cpu_millis};
use sandbox::{Limit, LimitKind, Limits, allowed_range};
use serde::Deserialize;

const MEBIBYTE: u64 = 1 << 20;

/// `[limits]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawLimits {
    pub(crate) memory_mib: Option<u64>,
    pub(crate) cpus: Option<f64>,
    pub(crate) pids: Option<u64>,
    pub(crate) open_files: Option<u64>,
    pub(crate) disk_mib: Option<u64>,
    pub(crate) max: RawMax,
}

/// `[limits.max]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMax {
    pub(crate) memory_mib: Option<u64>,
    pub(crate) cpus: Option<f64>,
    pub(crate) pids: Option<u64>,
    pub(crate) open_files: Option<u64>,
    pub(crate) disk_mib: Option<u64>,
    pub(crate) wall_clock_s: Option<u64>,
    pub(crate) step_timeout_s: Option<u64>,
    pub(crate) ttl_s: Option<u64>,
    pub(crate) running: Option<u32>,
    pub(crate) sandboxes: Option<u32>,
    pub(crate) roles: BTreeMap<String, Ceilings>,
    pub(crate) keys: BTreeMap<String, Ceilings>,
}

/// The total resources of a host; `None` if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct HostTotals {
    pub(crate) memory_mib: Option<u64>,
    pub(crate) cpus: Option<f64>,
    pub(crate) pids: Option<u64>,
    pub(crate) open_files: Option<u64>,
    pub(crate) disk_mib: Option<u64>,
}

impl HostTotals {
    /// The totals of this host; the disk is the one with the data folder.
    pub(crate) fn measure(data: &Path) -> Self {
        let memory = rustix::system::sysinfo();
        #[expect(clippy::useless_conversion, reason = "the types differ between architectures")]
        let bytes = u64::from(memory.totalram).saturating_mul(u64::from(memory.mem_unit));
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let cpus = std::thread::available_parallelism().map(|count| count.get() as f64);
        // The folder may not exist yet.
        let disk = data.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
        Self {
            memory_mib: Some(bytes / MEBIBYTE),
            cpus: cpus.ok(),
            pids: kernel_number("kernel/pid_max")
                .into_iter()
                .chain(kernel_number("kernel/threads-max"))
                .min(),
            open_files: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .maximum
                .or_else(|| kernel_number("fs/nr_open")),
            disk_mib: disk.map(|disk| disk.f_blocks.saturating_mul(disk.f_frsize) / MEBIBYTE),
        }
    }
}

fn kernel_number(name: &str) -> Option<u64> {
    fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?.trim().parse().ok()
}

impl RawLimits {
    /// The limits of jobs that specify none.
    pub(crate) fn defaults(&self, defaults: Limits) -> Result<Limits> {
        let pick = |name: &str, value: Option<u64>, default: Limit, kind: LimitKind| {
            let (least, most) = allowed_range(kind);
            match value {
                None => Ok(default),
                Some(value) if value < least => bail!("limits.{name}: {value} is less than {least}"),
                Some(value) if value > most => bail!("limits.{name}: {value} is more than {most}"),
                Some(value) => Ok(Limit::Default(value)),
            }
        };
        Ok(Limits {
            memory_mib: pick("memory_mib", self.memory_mib, defaults.memory_mib, LimitKind::Memory)?,
            cpu_millis: match self.cpus {
                None => defaults.cpu_millis,
                Some(cpus) => Limit::Default(cpu_millis("limits.cpus", cpus)?),
            },
            pids: pick("pids", self.pids, defaults.pids, LimitKind::Pids)?,
            open_files: pick("open_files", self.open_files, defaults.open_files, LimitKind::OpenFiles)?,
            disk_mib: pick("disk_mib", self.disk_mib, defaults.disk_mib, LimitKind::Disk)?,
        })
    }

    /// The maximum that a request may ask for. The default is the host's total, and never less than the default
    /// limits of a job.
    pub(crate) fn ceilings(&self, defaults: Limits, host: HostTotals) -> Result<CeilingRules> {
        let max = &self.max;
        let derived = |host: Option<u64>, default: Limit, kind: LimitKind| {
            let (_, most) = allowed_range(kind);
            host.map(|host| host.max(default.value()).min(most))
        };
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        let cpus = host.cpus.map(|cpus| cpus.max(defaults.cpu_millis.value() as f64 / 1000.0).min(1024.0));
        let everybody = Ceilings {
            memory_mib: max.memory_mib.or(derived(host.memory_mib, defaults.memory_mib, LimitKind::Memory)),
            cpus: max.cpus.or(cpus),
            pids: max.pids.or(derived(host.pids, defaults.pids, LimitKind::Pids)),
            // Defaults above the host's maximum are lowered anyway, so the ceiling need not be higher.
            open_files: max
                .open_files
                .or(host.open_files.map(|host| host.min(allowed_range(LimitKind::OpenFiles).1))),
            disk_mib: max.disk_mib.or(derived(host.disk_mib, defaults.disk_mib, LimitKind::Disk)),
            wall_clock_s: max.wall_clock_s,
            step_timeout_s: max.step_timeout_s,
            ttl_s: max.ttl_s,
            running: max.running,
            sandboxes: max.sandboxes,
        };
        check("limits.max", &everybody)?;
        let mut roles = BTreeMap::new();
        for (name, of_role) in &max.roles {
            let key = format!("limits.max.roles.{name}");
            let role: Role = name.parse().map_err(|problem: String| anyhow!("{key}: {problem}"))?;
            check(&key, of_role)?;
            roles.insert(role, *of_role);
        }
        for (name, of_key) in &max.keys {
            check(&format!("limits.max.keys.{name}"), of_key)?;
        }
        Ok(CeilingRules { everybody, roles, keys: max.keys.clone() })
    }
}

fn check(key: &str, ceilings: &Ceilings) -> Result<()> {
    ceilings.check().map_err(|wrong| anyhow!("{key}.{}: {}", wrong.field, wrong.problem))
}

/// The general ceilings as text; `None` if memory, CPUs and disk are all unbounded.
pub(crate) fn described(everybody: &Ceilings) -> Option<String> {
    let Ceilings { memory_mib, cpus, pids, open_files, disk_mib, .. } = *everybody;
    let (memory_mib, cpus, disk_mib) = (memory_mib?, cpus?, disk_mib?);
    let more = [(pids, "processes"), (open_files, "open files")];
    let more: String =
        more.iter().filter_map(|(most, what)| Some(format!(", {} {what}", (*most)?))).collect();
    Some(format!("at most {memory_mib} MiB of memory, {cpus} CPUs, {disk_mib} MiB of disk{more}"))
}

/// A general ceiling as it would be written in the file.
pub(crate) fn as_toml(key: &str, everybody: &Ceilings) -> Option<String> {
    let name = key.strip_prefix("limits.max.")?;
    let all = serde_json::to_value(everybody).ok()?;
    all.get(name).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostTotals = HostTotals {
        memory_mib: Some(23_000),
        cpus: Some(2.0),
        pids: Some(32_768),
        open_files: Some(4096),
        disk_mib: Some(100_000),
    };

    fn read(text: &str) -> Result<(Limits, CeilingRules)> {
        let raw: RawLimits = toml::from_str(text)?;
        let defaults = raw.defaults(Limits::default())?;
        Ok((defaults, raw.ceilings(defaults, HOST)?))
    }

    #[test]
    fn default_ceiling_is_the_hosts_total() {
        let everybody = read("").unwrap().1.everybody;
        assert_eq!(
            (everybody.memory_mib, everybody.cpus, everybody.disk_mib),
            (Some(23_000), Some(2.0), Some(100_000))
        );
        assert_eq!(everybody.open_files, Some(4096));
        let small = HostTotals { memory_mib: Some(1000), ..HOST };
        let raised = RawLimits::default().ceilings(Limits::default(), small).unwrap();
        assert_eq!(raised.everybody.memory_mib, Some(4096), "never less than the default");
        assert_eq!((everybody.wall_clock_s, everybody.sandboxes), (None, None));
        let raised = read("memory_mib = 50000\ncpus = 3.5").unwrap().1.everybody;
        assert_eq!((raised.memory_mib, raised.cpus), (Some(50_000), Some(3.5)));
        let unknown = RawLimits::default().ceilings(Limits::default(), HostTotals::default()).unwrap();
        assert_eq!(unknown.everybody, Ceilings::default(), "an engine elsewhere");
        let this = HostTotals::measure(Path::new("/nowhere/at/all"));
        assert!(
            this.memory_mib > Some(0)
                && this.cpus > Some(0.0)
                && this.disk_mib > Some(0)
                && this.pids > Some(0)
        );
    }

    #[test]
    fn ceilings_apply_per_server_role_and_key() {
        let text = "[max]\nmemory_mib = 1000\nsandboxes = 5\n[max.roles.operator]\nmemory_mib = 2000\n[max.keys.big]\ncpus = 64.0";
        let rules = read(text).unwrap().1;
        let of = |role, key| rules.of(role, key).effective();
        assert_eq!(of(None, None).memory_mib, Some(1000));
        assert_eq!(of(Some(Role::Operator), None).memory_mib, Some(2000));
        assert_eq!(of(Some(Role::Submitter), Some("big")).cpus, Some(64.0));
        assert_eq!(as_toml("limits.max.memory_mib", &rules.everybody).as_deref(), Some("1000"));
        assert_eq!(as_toml("limits.max.ttl_s", &rules.everybody), None);
        let shown = described(&rules.everybody).unwrap();
        assert!(
            shown.starts_with("at most 1000 MiB of memory, 2 CPUs, 100000 MiB of disk, 32768 processes"),
            "{shown}"
        );
        assert_eq!(described(&Ceilings::default()), None);
    }

    #[test]
    fn invalid_ceilings_are_reported_with_their_key() {
        for (text, named) in [
            ("[max]\nmemory_mib = 1", "limits.max.memory_mib: 1 is not between"),
            ("[max]\ncpus = nan", "limits.max.cpus: NaN is not between"),
            ("[max.roles.king]\ncpus = 1.0", "limits.max.roles.king: `king` is not a role"),
            ("[max.roles.viewer]\nsandboxes = 0", "limits.max.roles.viewer.sandboxes: 0"),
            ("[max.keys.ada]\nttl_s = 0", "limits.max.keys.ada.ttl_s: 0"),
            ("[max.keys.ada]\ncolour = 0", "unknown field `colour`"),
            ("cpus = nan", "limits.cpus: NaN is not between"),
        ] {
            let shown = format!("{:#}", read(text).unwrap_err());
            assert!(shown.contains(named), "{text}: {shown}");
        }
    }
}
