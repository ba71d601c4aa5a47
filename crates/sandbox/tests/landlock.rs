//! Sandboxes without namespaces: of root, which gives each sandbox a separate user, and of an ordinary user, which
//! cannot.
//!
//! The backend is configured not to use namespaces; everything else is real. A test of an ordinary user re-executes
//! itself as that user, see `ordinary_user_host`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod escape_suite;
mod landlock_network;
mod namespace_captor;
mod namespace_host;
mod ordinary_user_host;
mod transfers;

use escape_suite::*;
use landlock_network::{every_connection_reaches_the_egress_proxy, no_other_network_path_exists};
use namespace_host::Host;
use ordinary_user_host::{UID, UserSetup, run};
use protocol::TerminalSize;
use sandbox::conformance::{Guest, Subject, remove};
use sandbox::{
    Backend, CheckState, EndReason, Image, Isolation, Limit, LimitKind, Limits, Phase, SandboxError,
    SandboxId, SandboxSpec,
};

/// Excludes `connection_exhaustion_does_not_affect_the_guest`. Its script waits for connections that the guest makes on its
/// behalf, and exceeds the time limit of a command; meanwhile the guest answers and another sandbox works.
macro_rules! tests {
    ($($name:ident)*) => {
        mod as_root {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Host::new().without_namespaces()).await;
            })*
        }
        mod as_an_ordinary_user {
            $(#[test]
            fn $name() {
                let name = concat!("as_an_ordinary_user::", stringify!($name));
                super::run(super::UserSetup::Single, name, |host| super::$name(host.without_namespaces()));
            })*
        }
    };
}

tests! {
    landlock_only_isolation_requires_opt_in commands_run_and_destroy_leaves_nothing files_go_in_and_out
    a_command_has_a_terminal files_of_every_kind_are_removed processes_cannot_escape_being_killed
    destroy_cleans_up_after_a_killed_launcher killing_the_guest_ends_all_processes
    unenforced_limits_are_reported named_image_is_refused_without_namespaces
    every_connection_reaches_the_egress_proxy no_other_network_path_exists host_files_and_processes_are_inaccessible
    documented_gaps_are_the_actual_gaps the_guest_is_inaccessible ordinary_programs_work preflight_reports_host_capabilities
    every_escape_attempt_is_refused_and_the_host_is_unchanged file_interface_does_not_follow_symlinks_out
    swapped_symlinks_do_not_lead_out swapped_hard_links_do_not_lead_out
        collecting_a_changing_workspace_leaks_nothing_of_the_host
    archives_with_parents_and_links_stay_inside process_exhaustion_does_not_affect_host_or_guest
    memory_exhaustion_does_not_affect_host_or_guest
    fd_and_pty_exhaustion_does_not_affect_host_or_guest
}

/// The conformance tests that apply here too. Excluded, with reasons:
///
/// - `a_sandbox_runs_commands_and_is_gone_after_destroy`, `the_image_is_read_only_to_the_agent`: there is no
///   `/workspace` and no `/app`, and `/tmp` is the host's (`commands_run_and_destroy_leaves_nothing`,
///   `host_files_and_processes_are_inaccessible`);
/// - `a_sandbox_is_observed_and_listed`: not every limit is enforced (`unenforced_limits_are_reported`);
/// - `the_disk_is_limited`: it is not;
/// - `processes_are_limited`: the kernel counts processes per user and does not report refused forks
///   (`unenforced_limits_are_reported`);
/// - `there_is_no_network_but_loopback`: the host's network is visible but unreachable (`no_other_network_path_exists`);
/// - `outgoing_connections_reach_only_the_host`: connections to other addresses also reach the host
///   (`every_connection_reaches_the_egress_proxy`);
/// - `commands_run_as_the_agent_without_rights`, `the_guest_runs_as_another_user`: the job has another id, or the
///   server's (`host_files_and_processes_are_inaccessible`).
///
/// If the server is not root there are no cgroups, so `memory_is_limited_and_the_guest_survives`,
/// `cpu_time_is_limited` and `a_frozen_sandbox_makes_no_progress_until_thawed` apply to root only. So does
/// `impossible_limits_are_refused`, for another reason: a memory limit cannot be required at all.
macro_rules! promises {
    (of root: $($of_root:ident)*; of all: $($of_all:ident)*) => {
        mod promises_of_root {
            $(#[tokio::test]
            async fn $of_root() {
                sandbox::conformance::$of_root(&super::Host::new().without_namespaces()).await;
            })*
            $(#[tokio::test]
            async fn $of_all() {
                sandbox::conformance::$of_all(&super::Host::new().without_namespaces()).await;
            })*
        }
        mod promises_of_an_ordinary_user {
            $(#[test]
            fn $of_all() {
                let name = concat!("promises_of_an_ordinary_user::", stringify!($of_all));
                super::run(super::UserSetup::Single, name, async |host| {
                    sandbox::conformance::$of_all(&host.without_namespaces()).await;
                });
            })*
        }
    };
}

promises! {
    of root: memory_is_limited_and_the_guest_survives cpu_time_is_limited
        a_frozen_sandbox_makes_no_progress_until_thawed impossible_limits_are_refused;
    of all: create_is_idempotent concurrent_creates_of_one_id_make_one_sandbox
        the_newest_of_two_links_works a_broken_link_can_be_reconnected
        destroying_twice_and_destroying_nothing_succeed connecting_to_a_missing_sandbox_fails open_files_are_limited
        unavailable_isolation_is_refused an_unknown_image_is_refused
        files_can_be_moved_and_linked_across_directories a_restarted_backend_finds_and_removes_existing_sandboxes
        killing_the_owner_ends_the_sandbox a_killed_guest_is_reported_as_lost many_sandboxes_run_at_once
        killing_a_call_ends_its_daemons
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        image: Image::Host,
        isolation: Isolation::Landlock,
        limits: Limits { open_files: Limit::Required(512), ..Limits::default() },
        extra_ca: Default::default(),
        own_ca: None,
        labels: Default::default(),
    }
}

async fn start(host: &Host) -> (SandboxId, Guest) {
    let id = SandboxId::generate();
    host.backend.create(id, &spec()).await.unwrap_or_else(|error| panic!("{error:?}"));
    (id, Guest::of(&host.backend, id).await)
}

/// Ends a sandbox, and waits until its files are deleted.
async fn end(host: &Host, id: SandboxId) {
    remove(host, id).await;
    let places = [
        host.config.state_dir.join("trash").join(id.to_string()),
        host.config.landlock_only_dir.join(format!("trash-{id}")),
    ];
    while places.iter().any(|place| place.exists()) {
        tokio::task::yield_now().await;
    }
}

async fn landlock_only_isolation_requires_opt_in(host: Host) {
    let asked = SandboxSpec { isolation: Isolation::Namespaces, ..spec() };
    let error = host.backend.create(SandboxId::generate(), &asked).await.unwrap_err();
    let SandboxError::HostUnsupported { remedy, .. } = &error else { panic!("{error:?}") };
    assert!(remedy.contains("\"isolation\": \"landlock\"") && remedy.contains("[sandbox]"), "{remedy}");
    assert!(!error.is_retryable());
    assert_eq!(host.backend.preflight().await.unwrap().isolation, Isolation::Landlock);
}

async fn commands_run_and_destroy_leaves_nothing(host: Host) {
    let (id, guest) = start(&host).await;
    let workspace = guest.expect("pwd").await;
    assert_eq!(guest.expect("echo $CAISSON_WORKSPACE; dirname $HOME; dirname $TMPDIR").await, {
        let tree = workspace.strip_suffix("/workspace").unwrap();
        format!("{workspace}\n{tree}\n{tree}")
    });
    guest.expect("echo hello > greeting; echo x > ~/x; echo x > $TMPDIR/x; ulimit -n").await;
    assert_eq!(guest.expect("cat $CAISSON_WORKSPACE/greeting; ulimit -n").await, "hello\n512");
    assert_eq!(host.backend.observe(id).await.unwrap().phase, Phase::Ready);
    assert!(!host.traces(id).is_empty(), "the traces of a sandbox can be seen");
    end(&host, id).await;
    assert_eq!(host.backend.observe(id).await.unwrap().phase, Phase::Missing);
}

async fn files_go_in_and_out(host: Host) {
    let (id, guest) = start(&host).await;
    transfers::files_go_in_and_out(&guest).await;
    end(&host, id).await;
}

async fn a_command_has_a_terminal(host: Host) {
    let (id, guest) = start(&host).await;
    let size = TerminalSize { rows: 33, columns: 44 };
    let ran = guest.run_in(&["sh", "-c", "stty size; echo typed > /dev/tty"], Some(size)).await;
    assert_eq!(ran.stdout, "33 44\r\ntyped\r\n");
    end(&host, id).await;
}

async fn files_of_every_kind_are_removed(host: Host) {
    let (id, guest) = start(&host).await;
    let script = "mkdir -p deep/er && echo x > deep/er/file && chmod 000 deep/er/file deep/er deep && \
        mkdir ~/closed && chmod 000 ~/closed && mkfifo pipe && ln -s /etc link && chmod 500 $TMPDIR";
    guest.expect(script).await;
    end(&host, id).await;
}

/// Whatever a process does to its parents, its session and its limits, it cannot escape being killed.
async fn processes_cannot_escape_being_killed(host: Host) {
    let (id, guest) = start(&host).await;
    let script = r#"
import os, resource, signal, time
for change in [(2**61, 2**61), (5, 5)]:
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME if hasattr(resource, "RLIMIT_RTTIME") else 15, change)
        print("CHANGED")
    except (OSError, ValueError):
        pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid() if os.getpid() != os.getsid(0) else None
            for number in range(1, 32):
                try: signal.signal(number, signal.SIG_IGN)
                except OSError: pass
            for fd in range(3): os.close(fd)
            os.execve("/bin/sh", ["sh", "-c", "while :; do sleep 1000 & wait; done"], {})
        os._exit(0)
print("left")
"#;
    assert_eq!(guest.run_program(&["/usr/bin/python3", "-c", script]).await.stdout, "left\n");
    // Forks faster than processes could be killed one by one.
    guest.expect("setsid sh -c 'bomb() { sleep 0.01; bomb & bomb & }; for i in 1 2; do bomb & done' > /dev/null 2>&1 &").await;
    end(&host, id).await;
}

async fn destroy_cleans_up_after_a_killed_launcher(host: Host) {
    let (id, guest) = start(&host).await;
    guest.expect("setsid sleep 1000 > /dev/null 2>&1 &").await;
    host.kill_owner(id).await;
    guest.client.link().closed().await;
    let observed = loop {
        let observed = host.backend.observe(id).await.unwrap();
        if observed.phase != Phase::Ready {
            break observed;
        }
        tokio::task::yield_now().await;
    };
    let Phase::Ended(ended) = observed.phase else { panic!("{observed:?}") };
    assert_eq!(ended.reason, EndReason::Lost);
    end(&host, id).await;
}

async fn killing_the_guest_ends_all_processes(host: Host) {
    let (id, guest) = start(&host).await;
    guest.expect("setsid sleep 1000 > /dev/null 2>&1 &").await;
    host.kill_guest(id).await;
    while !matches!(host.backend.observe(id).await.unwrap().phase, Phase::Ended(_)) {
        tokio::task::yield_now().await;
    }
    // The launcher killed them before it recorded the end.
    assert_eq!(
        launcher::process_mark::processes(launcher::process_mark::of(id.as_u128())),
        Vec::<i32>::new()
    );
    end(&host, id).await;
}

async fn unenforced_limits_are_reported(host: Host) {
    let (id, _guest) = start(&host).await;
    let observed = host.backend.observe(id).await.unwrap();
    let named: Vec<_> = observed.unenforced.iter().map(|(kind, _)| *kind).collect();
    assert!(named.contains(&LimitKind::Disk), "{named:?}");
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(named.contains(&LimitKind::Memory), !is_root, "{named:?}");
    let asked = SandboxSpec { limits: Limits { disk_mib: Limit::Required(64), ..spec().limits }, ..spec() };
    let error = host.backend.create(SandboxId::generate(), &asked).await.unwrap_err();
    assert!(matches!(error, SandboxError::LimitUnenforceable { limit: LimitKind::Disk, .. }), "{error:?}");
    end(&host, id).await;
    if is_root {
        conformance_of_processes(&host).await;
    }
}

/// If each sandbox has a separate user, the kernel counts its processes.
async fn conformance_of_processes(host: &Host) {
    let asked = SandboxSpec { limits: Limits { pids: Limit::Required(32), ..spec().limits }, ..spec() };
    let id = SandboxId::generate();
    host.backend.create(id, &asked).await.unwrap();
    let guest = Guest::of(&host.backend, id).await;
    let ran = guest.run("for i in $(seq 64); do sleep 100 & done").await;
    assert!(ran.stderr.contains("fork"), "{ran:?}");
    end(host, id).await;
}

async fn named_image_is_refused_without_namespaces(host: Host) {
    let asked = SandboxSpec { image: Image::Directory("/usr".into()), ..spec() };
    let error = host.backend.create(SandboxId::generate(), &asked).await.unwrap_err();
    assert!(error.to_string().contains("needs its own root"), "{error}");
    let asked = SandboxSpec { image: Image::Directory("/nonexistent".into()), ..spec() };
    let error = host.backend.create(SandboxId::generate(), &asked).await.unwrap_err();
    assert!(matches!(error, SandboxError::NoImage(_)), "{error:?}");
}

async fn host_files_and_processes_are_inaccessible(host: Host) {
    let secret = host.directory.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    let (id, guest) = start(&host).await;
    let script = format!(
        r#"
secret, server = "{secret}", {server}
for act in [lambda: open(secret).read(), lambda: open(secret, "w"), lambda: os.truncate(secret, 0), lambda: os.unlink(secret),
            lambda: os.rename(secret, "here"), lambda: os.link(secret, "here"), lambda: os.listdir("{state}"),
            lambda: open("/tmp/caisson-escape", "w"), lambda: open("/var/tmp/caisson-escape", "w"),
            lambda: open("/dev/shm/caisson-escape", "w"), lambda: open("/etc/caisson-escape", "w"),
            lambda: open("/etc/shadow").read(), lambda: os.listdir("/root"), lambda: os.listdir("/home"),
            lambda: os.listdir("/dev/pts"), lambda: open("/dev/ptmx", "r+b", buffering=0),
            lambda: os.mknod("node", 0o20666, os.makedev(1, 1)),
            lambda: open("/proc/%d/environ" % server).read(1), lambda: open("/proc/%d/mem" % server, "rb"),
            lambda: os.readlink("/proc/%d/fd/0" % server), lambda: os.readlink("/proc/%d/cwd" % server),
            lambda: open("/proc/self/oom_score_adj", "w"), lambda: os.setuid(0), lambda: os.chroot("."),
            lambda: os.sched_setaffinity(server, [0]), lambda: os.setpriority(0, server, 19)]:
    print(attempt(act))
for signal in [9, 15, 19, 1]:
    print(attempt(lambda: os.kill(server, signal)), attempt(lambda: os.kill(os.getppid(), signal)))
print(call({ptrace}, 16, server, 0, 0), call({unshare}, 0x10000000), call({mount}, b"none", b"/", b"tmpfs", 0, 0))
print(call({prlimit}, server, 0, (ctypes.c_uint64 * 2)(1, 1), 0), call({prlimit}, 0, 15, (ctypes.c_uint64 * 2)(1, 1), 0))
print(call({pidfd_getfd}, os.pidfd_open(server), 0, 0), call({keyctl}, 0, -3, 1))
"#,
        secret = secret.display(),
        state = host.config.state_dir.display(),
        server = std::process::id(),
        ptrace = libc::SYS_ptrace,
        unshare = libc::SYS_unshare,
        mount = libc::SYS_mount,
        prlimit = libc::SYS_prlimit64,
        pidfd_getfd = libc::SYS_pidfd_getfd,
        keyctl = libc::SYS_keyctl,
    );
    refused(&guest, &script, &["EPERM", "EACCES", "EXDEV", "ENOENT"]).await;
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    let status = "grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status | tr -d '\t\n'";
    assert_eq!(guest.expect(status).await, "CapPrm:0000000000000000CapEff:0000000000000000NoNewPrivs:1");
    let user: u32 = guest.expect("id -u").await.parse().unwrap();
    if rustix::process::geteuid().is_root() {
        assert!(user >= host.config.first_uid, "a user of its own");
    } else {
        assert_eq!(user, UID);
    }
    end(&host, id).await;
}

/// Checks exactly what docs/isolation.md and SECURITY.md list as not prevented: no more and no less.
async fn documented_gaps_are_the_actual_gaps(host: Host) {
    let own = host.directory.path().join("own");
    std::fs::write(&own, "mine").unwrap();
    let (id, guest) = start(&host).await;
    let path = own.display();
    let is_root = rustix::process::geteuid().is_root();
    let changes = if is_root { "refused" } else { "done" };
    for (command, expected) in [
        (format!("chmod 640 {path}"), changes),
        (format!("touch -c -d @1000 {path}"), changes),
        ("stat /etc/shadow".to_owned(), "done"),
        ("ls /proc/1/status".to_owned(), "done"),
        (format!("cat {path}"), "refused"),
        (format!("echo more >> {path}"), "refused"),
        ("cat /etc/shadow".to_owned(), "refused"),
    ] {
        let said =
            guest.expect(&format!("if ({command}) > seen 2>&1; then echo done; else echo refused; fi")).await;
        assert_eq!(said, expected, "{command}");
    }
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "mine");
    end(&host, id).await;
}

async fn the_guest_is_inaccessible(host: Host) {
    let (id, guest) = start(&host).await;
    let script = format!(
        r#"
guest = {pid}
for request in [16, 0x4206]:
    print(call({ptrace}, request, guest, 0, 0))
for name in ["mem", "environ", "maps", "auxv"]:
    print(attempt(lambda: open("/proc/%d/%s" % (guest, name), "rb").read(1)))
for name in ["root", "cwd", "exe", "fd/3", "fd/4", "fd/5"]:
    print(attempt(lambda: os.readlink("/proc/%d/%s" % (guest, name))))
print(call({pidfd_getfd}, os.pidfd_open(guest), 4, 0), attempt(lambda: os.listdir("{directory}")))
for signal in [9, 15, 19, 2, 1, 17]:
    print(attempt(lambda: os.kill(guest, signal)))
"#,
        pid = host.guest_pid(id),
        directory = host.sandbox(id).join("guest").display(),
        ptrace = libc::SYS_ptrace,
        pidfd_getfd = libc::SYS_pidfd_getfd,
    );
    refused(&guest, &script, &["EPERM", "EACCES", "ENOENT"]).await;
    // A process started by one call may be killed by another.
    guest.expect("sleep 1000 > /dev/null 2>&1 & echo $! > pid").await;
    guest.expect("kill $(cat pid)").await;
    assert_eq!(guest.expect("echo alive").await, "alive");
    end(&host, id).await;
}

async fn ordinary_programs_work(host: Host) {
    let (id, guest) = start(&host).await;
    let script = "set -e\ngit init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l\n\
        printf 'int main(){return 0;}' > a.c && cc a.c -o a && ./a && echo compiled\n\
        python3 -c 'import tempfile, subprocess, threading; tempfile.TemporaryFile(); print(subprocess.check_output([\"echo\", \"sub\"]).decode(), end=\"\")'\n\
        tar cf a.tar a.c && tar tf a.tar && seq 3 | sort -r | head -1 && find . -name a.c && bash -c 'cat <<< here' && date > /dev/null";
    assert_eq!(guest.expect(script).await, "1\ncompiled\nsub\na.c\n3\n./a.c\nhere");
    end(&host, id).await;
}

async fn preflight_reports_host_capabilities(host: Host) {
    let checks = host.backend.checks().await;
    let of = |name: &str| checks.iter().find(|check| check.name == name).unwrap();
    assert_eq!(of("namespaces").state, CheckState::Weaker);
    assert!(of("namespaces").remedy.is_some());
    assert_eq!(of("Landlock alone").state, CheckState::Good);
    let enforced = host.backend.preflight().await.unwrap().enforced;
    assert!(!enforced.contains(&LimitKind::Disk) && enforced.contains(&LimitKind::OpenFiles), "{enforced:?}");
}
