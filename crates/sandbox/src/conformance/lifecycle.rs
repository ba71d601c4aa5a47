//! Creating, finding, losing and removing a sandbox.

use std::time::Duration;

use protocol::{ExecEnd, TerminalSize};

use super::{Guest, Subject, make, remove, spec_for, wait_until, wait_until_ready};
use crate::{EndReason, Phase, SandboxError, SandboxId};

pub async fn a_sandbox_runs_commands_and_is_gone_after_destroy(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    assert!(!subject.traces(id).is_empty(), "the traces of a sandbox can be seen");
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("pwd; echo hello > greeting; cat /app/greeting").await, "/workspace\nhello");
    remove(subject, id).await;
    assert_eq!(subject.backend().observe(id).await.unwrap().phase, Phase::Missing);
}

pub async fn create_is_idempotent(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    Guest::of(subject.backend(), id).await.expect("echo here > kept").await;
    subject.backend().create(id, &spec_for(subject)).await.unwrap();
    assert_eq!(Guest::of(subject.backend(), id).await.expect("cat kept").await, "here");
    remove(subject, id).await;
}

pub async fn concurrent_creates_of_one_id_make_one_sandbox(subject: &dyn Subject) {
    let id = SandboxId::generate();
    let spec = spec_for(subject);
    let (first, second) =
        tokio::join!(subject.backend().create(id, &spec), subject.backend().create(id, &spec));
    first.unwrap();
    second.unwrap();
    wait_until_ready(subject.backend(), id).await;
    Guest::of(subject.backend(), id).await.expect("true").await;
    remove(subject, id).await;
}

pub async fn destroy_removes_a_sandbox_whose_create_was_dropped(subject: &dyn Subject) {
    let spec = spec_for(subject);
    // One-time preparation must not happen in the creations that are dropped below.
    let first = make(subject, &spec).await;
    remove(subject, first).await;
    let mut ids = Vec::new();
    for step in 0..16 {
        let id = SandboxId::generate();
        let patience = Duration::from_millis(step * step);
        let _ = tokio::time::timeout(patience, subject.backend().create(id, &spec)).await;
        remove(subject, id).await;
        ids.push(id);
    }
    // Nothing may appear later either. A dropped creation that went on would have completed by the time that a later
    // sandbox is created, used and removed.
    let later = make(subject, &spec).await;
    Guest::of(subject.backend(), later).await.expect("true").await;
    remove(subject, later).await;
    for id in ids {
        assert_eq!(subject.traces(id), Vec::<String>::new(), "came later");
        assert_eq!(subject.backend().observe(id).await.unwrap().phase, Phase::Missing);
    }
}

pub async fn a_sandbox_is_observed_and_listed(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let observed = subject.backend().observe(id).await.unwrap();
    assert_eq!(observed.phase, Phase::Ready);
    assert_eq!(observed.unenforced, Vec::new());
    assert!(observed.usage.pids >= 1 && observed.usage.memory_bytes > 0, "{:?}", observed.usage);
    assert!(subject.backend().list().await.unwrap().contains(&id));
    remove(subject, id).await;
    assert!(!subject.backend().list().await.unwrap().contains(&id));
}

pub async fn the_newest_of_two_links_works(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let _first = Guest::of(subject.backend(), id).await;
    let second = Guest::of(subject.backend(), id).await;
    assert_eq!(second.expect("echo second").await, "second");
    remove(subject, id).await;
}

pub async fn a_broken_link_can_be_reconnected(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let first = Guest::of(subject.backend(), id).await;
    first.expect("echo before > file").await;
    drop(first);
    assert_eq!(Guest::of(subject.backend(), id).await.expect("cat file").await, "before");
    remove(subject, id).await;
}

pub async fn destroying_twice_and_destroying_nothing_succeed(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    remove(subject, id).await;
    remove(subject, id).await;
    remove(subject, SandboxId::generate()).await;
}

pub async fn connecting_to_a_missing_sandbox_fails(subject: &dyn Subject) {
    let result = subject.backend().connect(SandboxId::generate()).await;
    assert!(matches!(result, Err(SandboxError::NotRunning { .. })));
}

pub async fn a_restarted_backend_finds_and_removes_existing_sandboxes(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    Guest::of(subject.backend(), id).await.expect("echo kept > file").await;
    let restarted = subject.restarted();
    assert!(restarted.list().await.unwrap().contains(&id));
    assert_eq!(restarted.observe(id).await.unwrap().phase, Phase::Ready);
    assert_eq!(Guest::of(&*restarted, id).await.expect("cat file").await, "kept");
    restarted.destroy(id).await.unwrap();
    assert_eq!(subject.traces(id), Vec::<String>::new());
}

pub async fn killing_the_owner_ends_the_sandbox(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    guest.expect("sleep 1000 > /dev/null 2>&1 &").await;
    // Opening a terminal briefly changes user ids, and the kernel clears a process's parent-death signal when its ids
    // change.
    let size = TerminalSize { rows: 24, columns: 80 };
    assert_eq!(guest.run_in(&["true"], Some(size)).await.end, ExecEnd::Code(0));
    subject.kill_owner(id).await;
    // The link ends with the guest, not with the sandbox's owner process.
    let gone = tokio::time::timeout(Duration::from_secs(120), guest.client.link().closed()).await;
    assert!(gone.is_ok(), "the guest lives on without its owner");
    let observed = wait_until(subject, id, |observed| observed.phase != Phase::Ready).await;
    let Phase::Ended(ended) = observed.phase else { panic!("{observed:?}") };
    assert_eq!(ended.reason, EndReason::Lost);
    remove(subject, id).await;
}

pub async fn a_killed_guest_is_reported_as_lost(subject: &dyn Subject) {
    let id = make(subject, &spec_for(subject)).await;
    Guest::of(subject.backend(), id).await.expect("sleep 1000 > /dev/null 2>&1 &").await;
    subject.kill_guest(id).await;
    let observed = wait_until(subject, id, |observed| observed.phase != Phase::Ready).await;
    let Phase::Ended(ended) = observed.phase else { panic!("{observed:?}") };
    assert_eq!(ended.reason, EndReason::Lost);
    let error = subject.backend().create(id, &spec_for(subject)).await.unwrap_err();
    assert!(
        matches!(error, SandboxError::NotRunning { .. }),
        "an ended sandbox is not started again: {error:?}"
    );
    remove(subject, id).await;
}

pub async fn a_frozen_sandbox_makes_no_progress_until_thawed(subject: &dyn Subject) {
    let freezer =
        subject.backend().freezer().expect("this backend cannot freeze: leave this test out by name");
    let id = make(subject, &spec_for(subject)).await;
    let guest = Guest::of(subject.backend(), id).await;
    guest.expect("true").await;
    freezer.freeze(id).await.unwrap();
    freezer.freeze(id).await.unwrap();
    let mut ping = Box::pin(guest.client.ping());
    let waited = tokio::time::timeout(std::time::Duration::from_millis(50), &mut ping).await;
    assert!(waited.is_err(), "a frozen guest answered");
    freezer.thaw(id).await.unwrap();
    ping.await.unwrap();
    freezer.freeze(id).await.unwrap();
    remove(subject, id).await;
}

pub async fn many_sandboxes_run_at_once(subject: &dyn Subject) {
    let spec = spec_for(subject);
    let ids: Vec<_> = (0..20).map(|_| SandboxId::generate()).collect();
    let started = futures_join(ids.iter().map(|id| subject.backend().create(*id, &spec))).await;
    assert!(started.iter().all(Result::is_ok), "{started:?}");
    for id in &ids {
        wait_until_ready(subject.backend(), *id).await;
        assert_eq!(Guest::of(subject.backend(), *id).await.expect("echo alive").await, "alive");
    }
    let removed = futures_join(ids.iter().map(|id| subject.backend().destroy(*id))).await;
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    for id in ids {
        assert_eq!(subject.traces(id), Vec::<String>::new());
    }
}

/// Polls futures concurrently on one thread. That is enough because a sandbox start waits for another process.
async fn futures_join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in &mut pending {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
        }
        let done = pending.iter().all(|(_, output)| output.is_some());
        if done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    pending.into_iter().filter_map(|(_, output)| output).collect()
}
