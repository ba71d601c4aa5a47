//! A suite that every backend must pass.
//!
//! A test file of a backend implements [`Subject`] and calls [`crate::conformance_suite`], which makes one test of each
//! promise. The suite speaks to the guest through the link only, so it is the same for all backends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use protocol::{
    CallKey, Exec, ExecEnd, ExecEvent, ExecUpdate, Follow, GuestClient, IncomingStreams, OutputStream,
    Program, TerminalSize,
};

use crate::{
    Backend, EndedReason, Image, Isolation, Limit, Limits, Observed, Phase, SandboxError, SandboxId,
    SandboxSpec,
};

/// A backend under test, with the means to look behind it.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The backend.
    fn backend(&self) -> &dyn Backend;
    /// A second backend on the same infrastructure, as a restarted server would make it.
    fn restarted(&self) -> Box<dyn Backend>;
    /// Everything outside that belongs to a sandbox: processes, mounts, devices, control groups, files.
    fn traces(&self, id: SandboxId) -> Vec<String>;
    /// Kills the guest from outside.
    async fn kill_guest(&self, id: SandboxId);
    /// Kills the process that owns the sandbox.
    async fn kill_owner(&self, id: SandboxId);
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub end: ExecEnd,
    pub stdout: String,
    pub stderr: String,
}

/// A link to the guest of a sandbox.
pub struct Guest {
    pub client: GuestClient,
    _incoming: IncomingStreams,
}

/// The ordinary wish, with limits that are enforced.
#[must_use]
pub fn spec() -> SandboxSpec {
    SandboxSpec {
        image: Image::Host,
        isolation: Isolation::Namespaces,
        limits: Limits {
            memory_mib: Limit::Required(256),
            cpu_millis: Limit::Required(1500),
            pids: Limit::Required(64),
            open_files: Limit::Required(512),
            disk_mib: Limit::Required(64),
        },
        extra_ca: Vec::new(),
        labels: BTreeMap::new(),
    }
}

impl Guest {
    /// Connects to the guest.
    pub async fn of(backend: &dyn Backend, id: SandboxId) -> Self {
        let stream = backend.connect(id).await.expect("connecting to the guest");
        let (client, _, incoming) = GuestClient::connect(stream).await.expect("greeting the guest");
        Self { client, _incoming: incoming }
    }

    /// Runs a command line with `sh` as the agent.
    pub async fn run(&self, script: &str) -> Ran {
        self.run_program(&["sh", "-c", script]).await
    }

    /// Runs a program as the agent.
    pub async fn run_program(&self, program: &[&str]) -> Ran {
        self.run_in(program, None).await
    }

    /// Runs a program as the agent, on a terminal where one is given.
    pub async fn run_in(&self, program: &[&str], terminal: Option<TerminalSize>) -> Ran {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let environment = [("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin"), ("HOME", "/home/agent")];
        let exec = Exec {
            key: CallKey::new(format!("conformance-{}", CALLS.fetch_add(1, Ordering::Relaxed)), 1),
            program: Program::Arguments(program.iter().map(|word| (*word).to_owned()).collect()),
            environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            directory: None,
            stdin: None,
            keep_stdin_open: false,
            terminal,
            timeout_ms: Some(60_000),
            kill_grace_ms: 100,
        };
        let mut follower = self.client.exec(exec, Follow::Capped).await.expect("starting a command");
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match follower.next().await.expect("following a command") {
                ExecUpdate::Output(chunk) => {
                    let kept = if chunk.stream == OutputStream::Stderr { &mut stderr } else { &mut stdout };
                    kept.extend_from_slice(&chunk.bytes);
                }
                ExecUpdate::Event(ExecEvent::Ended(outcome)) => {
                    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                    return Ran { end: outcome.end, stdout: text(stdout), stderr: text(stderr) };
                }
                ExecUpdate::Event(_) => {}
            }
        }
    }

    /// Runs a command line that must succeed; gives what it printed, without the last line end.
    pub async fn expect(&self, script: &str) -> String {
        let ran = self.run(script).await;
        assert_eq!(ran.end, ExecEnd::Code(0), "{script}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }
}

/// Makes a sandbox, or says why not.
pub async fn make(subject: &dyn Subject, spec: &SandboxSpec) -> SandboxId {
    let id = SandboxId::generate();
    subject.backend().create(id, spec).await.unwrap_or_else(|error| panic!("creating a sandbox: {error:?}"));
    id
}

/// Removes a sandbox and checks that nothing is left.
pub async fn remove(subject: &dyn Subject, id: SandboxId) {
    subject.backend().destroy(id).await.unwrap_or_else(|error| panic!("destroying a sandbox: {error:?}"));
    assert_eq!(subject.traces(id), Vec::<String>::new(), "left behind");
}

async fn wait_until(subject: &dyn Subject, id: SandboxId, wanted: impl Fn(&Observed) -> bool) -> Observed {
    loop {
        let observed = subject.backend().observe(id).await.unwrap();
        if wanted(&observed) {
            return observed;
        }
        tokio::task::yield_now().await;
    }
}

pub async fn a_sandbox_runs_commands_and_is_gone_after_destroy(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    assert!(!subject.traces(id).is_empty(), "the traces of a sandbox can be seen");
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("pwd; echo hello > greeting; cat /app/greeting").await, "/workspace\nhello");
    remove(subject, id).await;
    assert_eq!(subject.backend().observe(id).await.unwrap().phase, Phase::Missing);
}

pub async fn creating_the_same_id_again_changes_nothing(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    Guest::of(subject.backend(), id).await.expect("echo here > kept").await;
    subject.backend().create(id, &spec()).await.unwrap();
    assert_eq!(Guest::of(subject.backend(), id).await.expect("cat kept").await, "here");
    remove(subject, id).await;
}

pub async fn two_creates_of_one_id_at_once_make_one_sandbox(subject: &dyn Subject) {
    let id = SandboxId::generate();
    let spec = spec();
    let (first, second) =
        tokio::join!(subject.backend().create(id, &spec), subject.backend().create(id, &spec));
    first.unwrap();
    second.unwrap();
    Guest::of(subject.backend(), id).await.expect("true").await;
    remove(subject, id).await;
}

pub async fn a_sandbox_is_observed_and_listed(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    let observed = subject.backend().observe(id).await.unwrap();
    assert_eq!(observed.phase, Phase::Running);
    assert_eq!(observed.unenforced, Vec::new());
    assert!(observed.usage.pids >= 1 && observed.usage.memory_bytes > 0, "{:?}", observed.usage);
    assert!(subject.backend().list().await.unwrap().contains(&id));
    remove(subject, id).await;
    assert!(!subject.backend().list().await.unwrap().contains(&id));
}

pub async fn the_newest_of_two_links_works(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    let _first = Guest::of(subject.backend(), id).await;
    let second = Guest::of(subject.backend(), id).await;
    assert_eq!(second.expect("echo second").await, "second");
    remove(subject, id).await;
}

pub async fn a_broken_link_can_be_made_again(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    let first = Guest::of(subject.backend(), id).await;
    first.expect("echo before > file").await;
    drop(first);
    assert_eq!(Guest::of(subject.backend(), id).await.expect("cat file").await, "before");
    remove(subject, id).await;
}

pub async fn destroying_twice_and_destroying_nothing_succeed(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    remove(subject, id).await;
    remove(subject, id).await;
    remove(subject, SandboxId::generate()).await;
}

pub async fn connecting_to_nothing_is_refused(subject: &dyn Subject) {
    let result = subject.backend().connect(SandboxId::generate()).await;
    assert!(matches!(result, Err(SandboxError::NotRunning { .. })));
}

pub async fn memory_is_limited_and_the_guest_survives(subject: &dyn Subject) {
    let mut spec = spec();
    spec.limits.memory_mib = Limit::Required(64);
    let id = make(subject, &spec).await;
    let guest = Guest::of(subject.backend(), id).await;
    let ran = guest.run_program(&["tail", "/dev/zero"]).await;
    assert_eq!(ran.end, ExecEnd::Signal(9));
    assert!(subject.backend().observe(id).await.unwrap().usage.oom_kills >= 1);
    assert_eq!(guest.expect("echo alive").await, "alive");
    remove(subject, id).await;
}

pub async fn processes_are_limited(subject: &dyn Subject) {
    let mut spec = spec();
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
    let id = make(subject, &spec()).await;
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
    let id = make(subject, &spec()).await;
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("ulimit -Sn; ulimit -Hn").await, "512\n512");
    remove(subject, id).await;
}

pub async fn limits_that_are_impossible_are_refused(subject: &dyn Subject) {
    let mut spec = spec();
    spec.limits.memory_mib = Limit::Required(0);
    let id = SandboxId::generate();
    let error = subject.backend().create(id, &spec).await.unwrap_err();
    assert!(matches!(error, SandboxError::LimitOutOfRange { .. }), "{error:?}");
    remove(subject, id).await;
}

pub async fn more_isolation_than_there_is_is_refused(subject: &dyn Subject) {
    let mut spec = spec();
    spec.isolation = Isolation::MicroVm;
    let given = subject.backend().preflight().await.unwrap().isolation;
    let result = subject.backend().create(SandboxId::generate(), &spec).await;
    assert!(given >= Isolation::MicroVm || matches!(result, Err(SandboxError::TooWeak { .. })));
}

pub async fn an_unknown_image_is_refused(subject: &dyn Subject) {
    let mut spec = spec();
    spec.image = Image::Directory("/nonexistent/image".into());
    let id = SandboxId::generate();
    let error = subject.backend().create(id, &spec).await.unwrap_err();
    assert!(matches!(error, SandboxError::NoImage(_)), "{error:?}");
    remove(subject, id).await;
}

pub async fn there_is_no_network_but_loopback(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo");
    assert_eq!(guest.expect("tail -n +2 /proc/net/route | wc -l").await, "0");
    remove(subject, id).await;
}

pub async fn commands_run_as_the_agent_and_the_guest_as_another_user(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    let guest = Guest::of(subject.backend(), id).await;
    assert_eq!(guest.expect("id -u; id -g; id -G").await, "1000\n1000\n1000");
    assert_eq!(guest.expect("grep Uid /proc/1/status").await, "Uid:\t0\t0\t0\t0");
    assert_eq!(guest.expect("grep -c 'Cap[PE].*:.*0000000000000000' /proc/self/status").await, "2");
    remove(subject, id).await;
}

pub async fn the_image_is_read_only_to_the_agent(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    let guest = Guest::of(subject.backend(), id).await;
    for path in ["/usr/x", "/usr/bin/x", "/etc/x", "/x", "/bin/x"] {
        let ran = guest.run(&format!("echo x > {path}")).await;
        assert_ne!(ran.end, ExecEnd::Code(0), "{path} was written");
    }
    guest.expect("echo x > /tmp/x; echo x > ~/x; echo x > /var/tmp/x; echo x > /dev/shm/x").await;
    remove(subject, id).await;
}

pub async fn a_restarted_backend_finds_and_removes_what_is_there(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    Guest::of(subject.backend(), id).await.expect("echo kept > file").await;
    let restarted = subject.restarted();
    assert!(restarted.list().await.unwrap().contains(&id));
    assert_eq!(restarted.observe(id).await.unwrap().phase, Phase::Running);
    assert_eq!(Guest::of(&*restarted, id).await.expect("cat file").await, "kept");
    restarted.destroy(id).await.unwrap();
    assert_eq!(subject.traces(id), Vec::<String>::new());
}

pub async fn a_killed_owner_takes_the_sandbox_with_it(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    let guest = Guest::of(subject.backend(), id).await;
    guest.expect("sleep 1000 > /dev/null 2>&1 &").await;
    // Opening a terminal changes ids for a moment, and the kernel unties a process that does so from its parent.
    let size = TerminalSize { rows: 24, columns: 80 };
    assert_eq!(guest.run_in(&["true"], Some(size)).await.end, ExecEnd::Code(0));
    subject.kill_owner(id).await;
    // The link ends with the guest, not with its owner.
    let gone = tokio::time::timeout(std::time::Duration::from_secs(20), guest.client.link().closed()).await;
    assert!(gone.is_ok(), "the guest lives on without its owner");
    let observed = wait_until(subject, id, |observed| observed.phase != Phase::Running).await;
    let Phase::Ended(ended) = observed.phase else { panic!("{observed:?}") };
    assert_eq!(ended.reason, EndedReason::Lost);
    remove(subject, id).await;
}

pub async fn a_killed_guest_is_seen_as_lost(subject: &dyn Subject) {
    let id = make(subject, &spec()).await;
    Guest::of(subject.backend(), id).await.expect("sleep 1000 > /dev/null 2>&1 &").await;
    subject.kill_guest(id).await;
    let observed = wait_until(subject, id, |observed| observed.phase != Phase::Running).await;
    let Phase::Ended(ended) = observed.phase else { panic!("{observed:?}") };
    assert_eq!(ended.reason, EndedReason::Lost);
    let error = subject.backend().create(id, &spec()).await.unwrap_err();
    assert!(
        matches!(error, SandboxError::NotRunning { .. }),
        "an ended sandbox is not started again: {error:?}"
    );
    remove(subject, id).await;
}

pub async fn a_frozen_sandbox_stands_still_and_goes_on(subject: &dyn Subject) {
    let freezer =
        subject.backend().freezer().expect("this backend cannot freeze: leave this test out by name");
    let id = make(subject, &spec()).await;
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

pub async fn many_sandboxes_at_once_all_live(subject: &dyn Subject) {
    let spec = spec();
    let ids: Vec<_> = (0..20).map(|_| SandboxId::generate()).collect();
    let started = futures_join(ids.iter().map(|id| subject.backend().create(*id, &spec))).await;
    assert!(started.iter().all(Result::is_ok), "{started:?}");
    for id in &ids {
        assert_eq!(Guest::of(subject.backend(), *id).await.expect("echo alive").await, "alive");
    }
    let removed = futures_join(ids.iter().map(|id| subject.backend().destroy(*id))).await;
    assert!(removed.iter().all(Result::is_ok), "{removed:?}");
    for id in ids {
        assert_eq!(subject.traces(id), Vec::<String>::new());
    }
}

/// Drives futures together; a sandbox start waits for another process, so one thread is enough.
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

/// Makes a test of every promise; `$subject` is an expression that gives a [`Subject`].
#[macro_export]
macro_rules! conformance_suite {
    ($subject:expr) => {
        $crate::conformance_suite! {
            $subject;
            a_sandbox_runs_commands_and_is_gone_after_destroy
            creating_the_same_id_again_changes_nothing
            two_creates_of_one_id_at_once_make_one_sandbox
            a_sandbox_is_observed_and_listed
            the_newest_of_two_links_works
            a_broken_link_can_be_made_again
            destroying_twice_and_destroying_nothing_succeed
            connecting_to_nothing_is_refused
            memory_is_limited_and_the_guest_survives
            processes_are_limited
            the_disk_is_limited
            open_files_are_limited
            limits_that_are_impossible_are_refused
            more_isolation_than_there_is_is_refused
            an_unknown_image_is_refused
            there_is_no_network_but_loopback
            commands_run_as_the_agent_and_the_guest_as_another_user
            the_image_is_read_only_to_the_agent
            a_restarted_backend_finds_and_removes_what_is_there
            a_killed_owner_takes_the_sandbox_with_it
            a_killed_guest_is_seen_as_lost
            a_frozen_sandbox_stands_still_and_goes_on
            many_sandboxes_at_once_all_live
        }
    };
    ($subject:expr; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                let subject = $subject;
                $crate::conformance::$name(&subject).await;
            }
        )*
    };
}
