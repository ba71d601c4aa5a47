//! Observing a sandbox from outside: its launcher's lock, the records on disk, its cgroup.

use launcher::cgroup::{CgroupUsage, Group};
use launcher::launch_file::LaunchFileContents;
use launcher::spec::{EndRecord, GuestEnd};

use super::create::Record;
use super::layout::failed;
use super::{Inner, launcher_process};
use crate::error::SandboxError;
use crate::spec::{EndReason, Ended, LimitKind, Observed, Phase, SandboxId, Usage};

pub(super) fn observe(inner: &Inner, id: SandboxId) -> Result<Observed, SandboxError> {
    let directory = inner.layout.sandbox(id);
    if !directory.exists() {
        return Ok(Observed { phase: Phase::Missing, usage: Usage::default(), unenforced: Vec::new() });
    }
    // Look for the launcher first: once it is gone, its records are complete.
    let looking = |source| failed("looking at", &directory, source);
    let owned = launcher_process::find(&directory).map_err(looking)?.is_some();
    let text = LaunchFileContents::read(&directory).map_err(looking)?;
    let ran = text.as_ref().is_some_and(|text| text.running().is_some());
    let ended = text.as_ref().and_then(LaunchFileContents::ended);
    let record: Option<Record> = text.map(|text| text.record()).transpose().map_err(looking)?.flatten();
    let group = record.as_ref().and_then(|record| record.cgroup.as_ref());
    let live = || group.map(Group::usage).unwrap_or_default();
    let usage = ended.as_ref().map_or_else(live, |ended| ended.usage);
    let is_earlier = !ran && directory.join(launcher_process::LEGACY_LAUNCH_FILE).exists();
    let phase = match (owned, ran, ended) {
        _ if is_earlier => Phase::Ended(Ended {
            reason: EndReason::Lost,
            detail: "it was made by an earlier version of the server, which kept other records".into(),
        }),
        (_, true, Some(ended)) => Phase::Ended(explain(&ended)),
        (true, true, None) => Phase::Running,
        (true, false, None) => Phase::Starting,
        (false, true, None) => Phase::Ended(Ended {
            reason: EndReason::Lost,
            detail: "the launcher was killed, and the sandbox with it".into(),
        }),
        (_, false, _) => Phase::Ended(Ended {
            reason: EndReason::NotStarted,
            detail: "the sandbox could not be set up".into(),
        }),
    };
    Ok(Observed { phase, usage: usage.into(), unenforced: unenforced_of(record) })
}

/// The limits that are not enforced for a sandbox, as recorded when it was created.
pub(super) fn unenforced(inner: &Inner, id: SandboxId) -> Result<Vec<(LimitKind, String)>, SandboxError> {
    let directory = inner.layout.sandbox(id);
    let looking = |source| failed("looking at", &directory, source);
    let text = LaunchFileContents::read(&directory).map_err(looking)?;
    Ok(unenforced_of(text.map(|text| text.record()).transpose().map_err(looking)?.flatten()))
}

fn unenforced_of(record: Option<Record>) -> Vec<(LimitKind, String)> {
    let unenforced = record.map(|record| record.unenforced).unwrap_or_default();
    unenforced.into_iter().map(|entry| (entry.limit, entry.why)).collect()
}

fn explain(record: &EndRecord) -> Ended {
    const SIGKILL: i32 = 9;
    match record.end {
        GuestEnd::Signal(SIGKILL) if record.usage.oom_kills > 0 => Ended {
            reason: EndReason::OutOfMemory,
            detail: "the kernel ended the guest because the sandbox's memory was used up".into(),
        },
        GuestEnd::Signal(signal) => {
            Ended { reason: EndReason::Lost, detail: format!("signal {signal} ended the guest") }
        }
        GuestEnd::Code(code) => {
            Ended { reason: EndReason::Lost, detail: format!("the guest exited with code {code}") }
        }
    }
}

impl From<CgroupUsage> for Usage {
    fn from(usage: CgroupUsage) -> Self {
        let CgroupUsage { memory_bytes, memory_peak_bytes, cpu_micros, pids, oom_kills, pids_refused } =
            usage;
        Self { memory_bytes, memory_peak_bytes, cpu_micros, pids, oom_kills, pids_refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(end: GuestEnd, oom_kills: u64) -> EndRecord {
        EndRecord { end, usage: CgroupUsage { oom_kills, ..CgroupUsage::default() } }
    }

    #[test]
    fn oom_killed_guest_is_recognized() {
        assert_eq!(explain(&record(GuestEnd::Signal(9), 1)).reason, EndReason::OutOfMemory);
        assert_eq!(explain(&record(GuestEnd::Signal(9), 0)).reason, EndReason::Lost);
        assert_eq!(explain(&record(GuestEnd::Code(0), 3)).reason, EndReason::Lost);
    }
}
