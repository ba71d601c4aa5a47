//! The resource usage of a sandbox whose cgroup is on this host.

use launcher::cgroup::CgroupUsage;

use crate::spec::Usage;

impl From<CgroupUsage> for Usage {
    fn from(usage: CgroupUsage) -> Self {
        let CgroupUsage { memory_bytes, memory_peak_bytes, cpu_micros, pids, oom_kills, pids_refused } =
            usage;
        Self { memory_bytes, memory_peak_bytes, cpu_micros, pids, oom_kills, pids_refused }
    }
}
