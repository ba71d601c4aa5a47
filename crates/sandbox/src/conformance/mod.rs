//! A conformance suite that every backend must pass.
//!
//! A backend's test file implements [`Subject`] and invokes [`crate::conformance_suite`], which generates one test
//! per guarantee. The suite talks to the guest through the link only, so it is the same for all backends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod calls;
mod isolation;
mod lifecycle;
mod limits;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use protocol::{
    CallKey, Exec, ExecEnd, ExecEvent, ExecUpdate, Follow, GuestClient, IncomingStreams, LinkCredentials,
    OutputStream, Program, TerminalSize,
};

pub use self::calls::*;
pub use self::isolation::*;
pub use self::lifecycle::*;
pub use self::limits::*;
use crate::{
    Backend, Image, Isolation, Limit, Limits, Observed, Phase, SandboxId, SandboxSpec, wait_while_starting,
};

/// A backend under test, with access to its internals.
#[async_trait]
pub trait Subject: Send + Sync {
    fn backend(&self) -> &dyn Backend;
    /// The image for the suite's sandboxes: Debian or similar, with Python.
    fn image(&self) -> Image {
        Image::Host
    }
    /// The minimum isolation that the suite's sandboxes accept.
    fn isolation(&self) -> Isolation {
        spec().isolation
    }
    /// The limits of the suite's sandboxes. A limit that the backend cannot enforce must not be [`Limit::Required`].
    fn limits(&self) -> Limits {
        spec().limits
    }
    /// A second backend on the same infrastructure, as a restarted server would create it.
    fn restarted(&self) -> Box<dyn Backend>;
    /// Everything outside the sandbox that belongs to it: processes, mounts, devices, cgroups, files.
    fn traces(&self, id: SandboxId) -> Vec<String>;
    /// Kills the guest from outside the sandbox.
    async fn kill_guest(&self, id: SandboxId);
    /// Kills the process that owns the sandbox.
    async fn kill_owner(&self, id: SandboxId);
}

/// The result of a command.
#[derive(Debug)]
pub struct CommandResult {
    pub end: ExecEnd,
    pub stdout: String,
    pub stderr: String,
}

/// A link to the guest of a sandbox.
pub struct Guest {
    pub client: GuestClient,
    /// Streams opened by the guest; kept open unless a test takes them.
    pub incoming: Option<IncomingStreams>,
}

/// The default spec, with limits that are enforced.
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
        extra_ca: Default::default(),
        own_ca: None,
        labels: BTreeMap::new(),
    }
}

/// The default spec, with the subject's own image, isolation and limits.
#[must_use]
pub fn spec_for(subject: &dyn Subject) -> SandboxSpec {
    SandboxSpec { image: subject.image(), isolation: subject.isolation(), limits: subject.limits(), ..spec() }
}

impl Guest {
    pub async fn of(backend: &dyn Backend, id: SandboxId) -> Self {
        let stream = backend.connect(id).await.expect("connecting to the guest");
        let (client, _, incoming) = GuestClient::connect(stream, LinkCredentials::new("conformance", 1))
            .await
            .expect("greeting the guest");
        Self { client, incoming: Some(incoming) }
    }

    /// Runs a command line with `sh` as the agent.
    pub async fn run(&self, script: &str) -> CommandResult {
        self.run_program(&["sh", "-c", script]).await
    }

    pub async fn run_program(&self, program: &[&str]) -> CommandResult {
        self.run_in(program, None).await
    }

    /// Runs a program as the agent, on a terminal if one is given.
    pub async fn run_in(&self, program: &[&str], terminal: Option<TerminalSize>) -> CommandResult {
        let exec = exec_of(program, terminal);
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
                    return CommandResult { end: outcome.end, stdout: text(stdout), stderr: text(stderr) };
                }
                ExecUpdate::Event(_) => {}
            }
        }
    }

    /// Runs a command line that must succeed and returns its output without the final newline.
    pub async fn expect(&self, script: &str) -> String {
        let ran = self.run(script).await;
        assert_eq!(ran.end, ExecEnd::Code(0), "{script}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }
}

/// A new call that runs a program as the agent.
fn exec_of(program: &[&str], terminal: Option<TerminalSize>) -> Exec {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let environment = [("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin"), ("HOME", "/home/agent")];
    Exec {
        key: CallKey::new(format!("conformance-{}", CALLS.fetch_add(1, Ordering::Relaxed)), 1),
        program: Program::Arguments(program.iter().map(|word| (*word).to_owned()).collect()),
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal,
        timeout_ms: Some(60_000),
        kill_grace_ms: 100,
    }
}

/// Creates a sandbox and waits until it is ready; panics with the reason if it never is.
pub async fn make(subject: &dyn Subject, spec: &SandboxSpec) -> SandboxId {
    let id = SandboxId::generate();
    subject.backend().create(id, spec).await.unwrap_or_else(|error| panic!("creating a sandbox: {error:?}"));
    wait_until_ready(subject.backend(), id).await;
    id
}

/// Waits until a requested sandbox is ready; panics with the reason if it never is.
pub async fn wait_until_ready(backend: &dyn Backend, id: SandboxId) {
    let observed =
        wait_while_starting(backend, id).await.unwrap_or_else(|error| panic!("observing: {error:?}"));
    assert_eq!(observed.phase, Phase::Ready);
}

/// Removes a sandbox and checks that nothing is left of it.
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

/// Generates one test per guarantee; `$subject` is an expression that evaluates to a [`Subject`]. An optional second
/// argument names what the backend cannot do by design: `one_user` if guest and agent share a user id; `far_away` if,
/// in addition, disks have no size and processes are not counted on this host.
#[macro_export]
macro_rules! conformance_suite {
    ($subject:expr) => {
        $crate::conformance_suite! { $subject, one_user }
        $crate::conformance_suite! { $subject; the_guest_runs_as_another_user }
    };
    ($subject:expr, one_user) => {
        $crate::conformance_suite! { $subject, far_away }
        $crate::conformance_suite! {
            $subject;
            a_sandbox_is_observed_and_listed
            processes_are_limited
            the_disk_is_limited
            killing_the_owner_ends_the_sandbox
        }
    };
    ($subject:expr, far_away) => {
        $crate::conformance_suite! {
            $subject;
            a_sandbox_runs_commands_and_is_gone_after_destroy
            create_is_idempotent
            concurrent_creates_of_one_id_make_one_sandbox
            destroy_removes_a_sandbox_whose_create_was_dropped
            the_newest_of_two_links_works
            a_broken_link_can_be_reconnected
            destroying_twice_and_destroying_nothing_succeed
            connecting_to_a_missing_sandbox_fails
            memory_is_limited_and_the_guest_survives
            open_files_are_limited
            impossible_limits_are_refused
            unavailable_isolation_is_refused
            an_unknown_image_is_refused
            there_is_no_network_but_loopback
            commands_run_as_the_agent_without_rights
            outgoing_connections_reach_only_the_host
            files_can_be_moved_and_linked_across_directories
            cpu_time_is_limited
            killing_a_call_ends_its_daemons
            the_image_is_read_only_to_the_agent
            a_restarted_backend_finds_and_removes_existing_sandboxes
            a_killed_guest_is_reported_as_lost
            a_frozen_sandbox_makes_no_progress_until_thawed
            many_sandboxes_run_at_once
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
