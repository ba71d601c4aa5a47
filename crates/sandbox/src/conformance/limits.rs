//! Resource limits of a sandbox.

use protocol::ExecEnd;

use super::{Guest, Subject, make, remove, spec_for, wait_until};
use crate::{Limit, SandboxError, SandboxId};

pub async fn memory_is_limited_and_the_guest_survives(subject: &dyn Subject) {
    let mut spec = spec_for(subject);
    spec.limits.memory_mib = Limit::Required(64);
    let id = make(subject, &spec).await;
    let guest = Guest::of(subject.backend(), id).await;
    let ran = guest.run_program(&["tail", "/dev/zero"]).await;
    assert_eq!(ran.end, ExecEnd::Signal(9));
    // A remote engine reports OOM kills with a delay.
    wait_until(subject, id, |observed| observed.usage.oom_kills >= 1).await;
    assert_eq!(guest.expect("echo alive").await, "alive");
    remove(subject, id).await;
}

pub async fn processes_are_limited(subject: &dyn Subject) {
    let mut spec = spec_for(subject);
    spec.limits.pids = Limit::Required(32);
    let id = make(subject, &spec).await;
    let guest = Guest::of(subject.backend(), id).await;
    let ran =
        guest.run("for i in 1 2 3 4 5 6 7 8; do for j in 1 2 3 4 5 6 7 8; do sleep 100 & done; done").await;
    assert!(ran.stderr.contains("fork"), "{ran:?}");
    let usage = subject.backend().observe(id).await.unwrap().usage;
    assert!(usage.pids <= 32 && usage.pids_refused >= 1, "{usage:?}");
    remove(subject, id).await;
}

pub async fn the_disk_is_limited(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    for path in ["/workspace/big", "/home/agent/big"] {
        let ran = guest.run(&format!("dd if=/dev/zero of={path} bs=1M count=100")).await;
        assert!(ran.end != ExecEnd::Code(0) && ran.stderr.contains("No space left"), "{ran:?}");
        guest.expect(&format!("rm {path}")).await;
    }
    guest.expect("echo small > small").await;
    remove(subject, id).await;
}

pub async fn open_files_are_limited(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("ulimit -Sn; ulimit -Hn").await, "512\n512");
    remove(subject, id).await;
}

pub async fn cpu_time_is_limited(subject: &dyn Subject) {
    let mut spec = spec_for(subject);
    spec.limits.cpu_millis = Limit::Required(100);
    let id = make(subject, &spec).await;
    let guest = Guest::of(subject.backend(), id).await;
    let before = subject.backend().observe(id).await.unwrap().usage.cpu_micros;
    guest.run("timeout 3 sh -c 'while :; do :; done'").await;
    let used = subject.backend().observe(id).await.unwrap().usage.cpu_micros - before;
    // Without a limit it would use three seconds of CPU, or as much as the machine can give.
    assert!((1..1_500_000).contains(&used), "{used} microseconds of processor time in three seconds");
    remove(subject, id).await;
}

pub async fn impossible_limits_are_refused(subject: &dyn Subject) {
    let mut spec = spec_for(subject);
    spec.limits.memory_mib = Limit::Required(0);
    let id = SandboxId::generate();
    let error = subject.backend().create(id, &spec).await.unwrap_err();
    assert!(matches!(error, SandboxError::LimitOutOfRange { .. }), "{error:?}");
    remove(subject, id).await;
}
