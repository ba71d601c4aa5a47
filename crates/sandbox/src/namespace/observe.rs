//! Observing a sandbox from outside: its launcher's lock, the records on disk, its cgroup.

use launcher::cgroup::Group;
use launcher::launch_file::LaunchFileContents;
use launcher::spec::{EndRecord, GuestEnd};

use super::create::Record;
use super::{Inner, launcher_process};
use crate::error::{SandboxError, failed};
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
            detail: "an earlier, incompatible version of the server created it".into(),
        }),
        (_, true, Some(ended)) => Phase::Ended(explain(&ended)),
        (true, true, None) => Phase::Ready,
        (true, false, None) => Phase::Starting { message: "the launcher is setting up the sandbox".into() },
        (false, true, None) => Phase::Ended(Ended {
            reason: EndReason::Lost,
            detail: "the launcher and the sandbox were killed".into(),
        }),
        (_, false, _) => Phase::Ended(Ended {
            reason: EndReason::NotStarted,
            detail: "the sandbox could not be set up".into(),
        }),
    };
    Ok(Observed { phase, usage: usage.into(), unenforced: unenforced_of(record) })
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
            detail: "the kernel killed the guest because the sandbox was out of memory".into(),
        },
        GuestEnd::Signal(signal) => {
            Ended { reason: EndReason::Lost, detail: format!("the guest was killed by signal {signal}") }
        }
        GuestEnd::Code(code) => {
            Ended { reason: EndReason::Lost, detail: format!("the guest exited with code {code}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use launcher::cgroup::CgroupUsage;

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
