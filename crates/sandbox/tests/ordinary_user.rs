//! Sandboxes of a server that is not root: with subordinate ids, and with the user's own id only.
//!
//! Every test has two stages: as root it creates a user in its own mount namespace, where `/etc/passwd` and the lists
//! of subordinate ids are the test's, and re-executes itself as that user. The host is not changed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod escape_suite;
mod namespace_captor;
mod namespace_host;
mod ordinary_user_host;
mod transfers;

use std::fs;

use escape_suite::*;
use namespace_host::Host;
use ordinary_user_host::{UID, UserSetup, run};
use protocol::ExecEnd;
use sandbox::conformance::{Guest, Subject, remove};
use sandbox::{
    Backend, CheckState, EndReason, Image, Isolation, Limit, LimitKind, Limits, Phase, SandboxError,
    SandboxId, SandboxSpec,
};

macro_rules! tests {
    ($($setting:ident in $module:ident: $($name:ident)*;)*) => {$(
        mod $module {
            $(#[test]
            fn $name() {
                super::run(super::UserSetup::$setting, concat!(stringify!($module), "::", stringify!($name)), super::$name);
            })*
        }
    )*};
}

tests! {
    Lent in with_lent_ids:
        commands_run_and_destroy_leaves_nothing files_go_in_and_out a_command_has_a_terminal
        files_of_every_kind_are_removed there_is_no_network_but_loopback
        killing_the_launcher_ends_the_sandbox unenforced_limits_are_reported processes_are_limited
        the_image_is_read_only a_directory_is_an_image named_image_has_agent_user_and_home a_restarted_server_carries_on many_run_at_once
        host_is_usable_and_failed_checks_have_remedies the_guest_is_inaccessible ordinary_programs_work
        agent_has_its_own_user_id;
    Single in with_a_single_id:
        commands_run_and_destroy_leaves_nothing files_go_in_and_out a_command_has_a_terminal
        files_of_every_kind_are_removed there_is_no_network_but_loopback
        killing_the_launcher_ends_the_sandbox unenforced_limits_are_reported processes_are_limited
        the_image_is_read_only a_directory_is_an_image named_image_has_agent_user_and_home a_restarted_server_carries_on many_run_at_once
        host_is_usable_and_failed_checks_have_remedies the_guest_is_inaccessible ordinary_programs_work
        agent_is_the_unprivileged_user;
    Lent in escapes_with_lent_ids:
        every_escape_attempt_is_refused_and_the_host_is_unchanged file_interface_does_not_follow_symlinks_out
        swapped_symlinks_do_not_lead_out swapped_hard_links_do_not_lead_out
        collecting_a_changing_workspace_leaks_nothing_of_the_host
        archives_with_parents_and_links_stay_inside process_exhaustion_does_not_affect_host_or_guest
        fd_and_pty_exhaustion_does_not_affect_host_or_guest connection_exhaustion_does_not_affect_the_guest;
    Single in escapes_with_a_single_id:
        every_escape_attempt_is_refused_and_the_host_is_unchanged file_interface_does_not_follow_symlinks_out
        swapped_symlinks_do_not_lead_out swapped_hard_links_do_not_lead_out
        collecting_a_changing_workspace_leaks_nothing_of_the_host
        archives_with_parents_and_links_stay_inside process_exhaustion_does_not_affect_host_or_guest
        fd_and_pty_exhaustion_does_not_affect_host_or_guest connection_exhaustion_does_not_affect_the_guest;
    Delegated in with_delegated_control_groups:
        memory_is_limited_and_sandboxes_can_be_frozen commands_run_and_destroy_leaves_nothing;
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        image: Image::Host,
        isolation: Isolation::Namespaces,
        limits: Limits { open_files: Limit::Required(512), pids: Limit::Required(64), ..Limits::default() },
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
    let trash = host.config.state_dir.join("trash").join(id.to_string());
    while trash.exists() {
        tokio::task::yield_now().await;
    }
}

async fn commands_run_and_destroy_leaves_nothing(host: Host) {
    let (id, guest) = start(&host).await;
    assert_eq!(guest.expect("pwd; echo hello > greeting; cat /app/greeting").await, "/workspace\nhello");
    assert_eq!(
        guest.expect("ulimit -n; hostname 2>/dev/null || cat /proc/sys/kernel/hostname").await,
        "512\ncaisson"
    );
    guest.expect("echo x > /tmp/x; echo x > ~/x; echo x > /var/tmp/x; echo x > /dev/shm/x").await;
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
    let script = "import os, pty\nmaster, slave = pty.openpty()\nprint(os.ttyname(slave), os.fstat(slave).st_uid == os.getuid())";
    assert_eq!(guest.run_program(&["/usr/bin/python3", "-c", script]).await.stdout, "/dev/pts/0 True\n");
    let exec = protocol::Exec {
        key: protocol::CallKey::new("terminal", 1),
        program: protocol::Program::Shell("tty; stty size".into()),
        environment: Default::default(),
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal: Some(protocol::TerminalSize { rows: 33, columns: 44 }),
        timeout_ms: None,
        kill_grace_ms: 100,
    };
    let mut follower = guest.client.exec(exec, protocol::Follow::Capped).await.unwrap();
    let mut shown = Vec::new();
    loop {
        match follower.next().await.unwrap() {
            protocol::ExecUpdate::Output(chunk) => shown.extend_from_slice(&chunk.bytes),
            protocol::ExecUpdate::Event(protocol::ExecEvent::Ended(_)) => break,
            protocol::ExecUpdate::Event(_) => {}
        }
    }
    assert_eq!(String::from_utf8(shown).unwrap(), "/dev/pts/0\r\n33 44\r\n");
    end(&host, id).await;
}

async fn files_of_every_kind_are_removed(host: Host) {
    let (id, guest) = start(&host).await;
    let script = "mkdir -p deep/er && echo x > deep/er/file && chmod 000 deep/er/file deep/er deep && \
        mkdir ~/closed && chmod 000 ~/closed && mkfifo pipe && ln -s /etc link && mkdir -p /var/tmp/a/b && chmod 500 /var/tmp/a";
    guest.expect(script).await;
    end(&host, id).await;
}

async fn there_is_no_network_but_loopback(host: Host) {
    let (id, guest) = start(&host).await;
    assert_eq!(guest.expect("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo");
    assert_eq!(guest.expect("tail -n +2 /proc/net/route | wc -l").await, "0");
    let dial = "import socket\ntry: socket.create_connection(('10.0.0.1', 80), 5)\nexcept OSError as e: print(e.errno)";
    assert_eq!(guest.expect(&format!("python3 -c \"{dial}\"")).await, libc::ENETUNREACH.to_string());
    end(&host, id).await;
}

async fn killing_the_launcher_ends_the_sandbox(host: Host) {
    let (id, guest) = start(&host).await;
    guest.expect("mkdir kept && echo x > kept/file; sleep 1000 > /dev/null 2>&1 &").await;
    host.kill_owner(id).await;
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

async fn unenforced_limits_are_reported(host: Host) {
    let (id, _guest) = start(&host).await;
    let unenforced = host.backend.observe(id).await.unwrap().unenforced;
    let kinds: Vec<_> = unenforced.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [LimitKind::Memory, LimitKind::Cpu, LimitKind::Disk], "{unenforced:?}");
    assert!(unenforced.iter().all(|(_, why)| !why.is_empty()));
    end(&host, id).await;
    let defaults = Limits::default;
    for (kind, limits) in [
        (LimitKind::Disk, Limits { disk_mib: Limit::Required(64), ..defaults() }),
        (LimitKind::Memory, Limits { memory_mib: Limit::Required(64), ..defaults() }),
        (LimitKind::Cpu, Limits { cpu_millis: Limit::Required(500), ..defaults() }),
    ] {
        let id = SandboxId::generate();
        let error = host.backend.create(id, &SandboxSpec { limits, ..spec() }).await.unwrap_err();
        assert!(
            matches!(&error, SandboxError::LimitUnenforceable { limit, .. } if *limit == kind),
            "{kind}: {error:?}"
        );
        end(&host, id).await;
    }
}

async fn processes_are_limited(host: Host) {
    let (first, crowded) = start(&host).await;
    let ran = crowded
        .run("for i in 1 2 3 4 5 6 7 8 9 0; do for j in 1 2 3 4 5 6 7 8; do sleep 1000 & done; done")
        .await;
    assert!(ran.stderr.contains("fork"), "{ran:?}");
    // Another sandbox of the same user has a separate count.
    let (second, free) = start(&host).await;
    assert_eq!(free.expect("(sleep 0 & sleep 0 & wait); echo free").await, "free");
    end(&host, first).await;
    end(&host, second).await;
}

async fn the_image_is_read_only(host: Host) {
    let (id, guest) = start(&host).await;
    for path in ["/usr/x", "/usr/bin/x", "/etc/x", "/x", "/bin/x"] {
        assert_ne!(guest.run(&format!("echo x > {path}")).await.end, ExecEnd::Code(0), "{path} was written");
    }
    for path in ["/etc/ssh", "/etc/shadow", "/boot", "/sys/kernel"] {
        assert_ne!(guest.run(&format!("ls {path}")).await.end, ExecEnd::Code(0), "{path} is there");
    }
    assert_eq!(guest.expect("ls /home; ls -A /home/agent").await, "agent\n.local");
    end(&host, id).await;
}

async fn a_directory_is_an_image(host: Host) {
    let image = host.directory.path().join("image");
    for directory in ["bin", "usr/bin", "lib", "lib64", "etc", "tmp"] {
        fs::create_dir_all(image.join(directory)).unwrap();
    }
    fs::copy("/bin/sh", image.join("bin/sh")).unwrap();
    let libraries = std::process::Command::new("ldd").arg("/bin/sh").output().unwrap();
    for path in String::from_utf8(libraries.stdout).unwrap().split_whitespace().filter(|w| w.starts_with('/'))
    {
        let target = image.join(path.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(path, target).unwrap();
    }
    let id = SandboxId::generate();
    host.backend.create(id, &SandboxSpec { image: Image::Directory(image.clone()), ..spec() }).await.unwrap();
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(
        guest.expect("echo inside > /workspace/file; cd /app; read l < file; echo $l").await,
        "inside"
    );
    end(&host, id).await;
    assert!(!image.join("workspace").exists() && !image.join("proc").exists(), "the image stays as it is");
}

async fn named_image_has_agent_user_and_home(host: Host) {
    let root = host.config.images_dir.join("small/rootfs");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("the package busybox-static is needed");
    for name in ["sh", "whoami", "stat", "cat", "touch"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    assert_eq!(host.backend.images().unwrap().names().await.unwrap(), ["host", "small"]);
    let id = SandboxId::generate();
    host.backend.create(id, &SandboxSpec { image: Image::Named("small".into()), ..spec() }).await.unwrap();
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(guest.expect("whoami; stat -c %U /home/agent /workspace").await, "agent\nagent\nagent");
    assert_eq!(
        guest.expect("echo x > /home/agent/file; echo y > /tmp/file; cat /home/agent/file /tmp/file").await,
        "x\ny"
    );
    end(&host, id).await;
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "the image stays as it is");
}

async fn a_restarted_server_carries_on(host: Host) {
    let (id, guest) = start(&host).await;
    guest.expect("echo kept > file").await;
    let restarted = host.restarted();
    assert!(restarted.list().await.unwrap().contains(&id));
    assert_eq!(restarted.observe(id).await.unwrap().phase, Phase::Ready);
    assert_eq!(Guest::of(&*restarted, id).await.expect("cat file").await, "kept");
    restarted.destroy(id).await.unwrap();
    end(&host, id).await;
}

async fn many_run_at_once(host: Host) {
    let mut started = Vec::new();
    for _ in 0..10 {
        started.push(start(&host).await);
    }
    for (id, guest) in started {
        assert_eq!(guest.expect("echo alive").await, "alive");
        end(&host, id).await;
    }
}

async fn host_is_usable_and_failed_checks_have_remedies(host: Host) {
    let capabilities = host.backend.preflight().await.unwrap();
    assert_eq!(capabilities.enforced, [LimitKind::Pids, LimitKind::OpenFiles]);
    assert!(capabilities.checks.iter().any(|check| check.state == CheckState::Weaker));
    for check in capabilities.checks {
        assert!(check.state == CheckState::Good || check.remedy.is_some_and(|remedy| !remedy.is_empty()));
    }
}

/// Holds even if the agent has the guest's own user id.
async fn the_guest_is_inaccessible(host: Host) {
    let (id, guest) = start(&host).await;
    let script = format!(
        r#"
for request in [16, 0x4206]:
    print(call({ptrace}, request, 1, 0, 0))
here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
there = (ctypes.c_size_t * 2)(0x400000, 8)
print(call({process_vm_readv}, 1, here, 1, there, 1, 0))
for name in ["mem", "environ", "maps", "auxv"]:
    print(attempt(lambda: open("/proc/1/" + name, "rb").read(1)))
for name in ["root", "cwd", "exe", "fd/3", "fd/4"]:
    print(attempt(lambda: os.readlink("/proc/1/" + name)), attempt(lambda: os.chdir("/proc/1/" + name)))
print(attempt(lambda: os.listdir("/run/caisson")), call({pidfd_getfd}, os.pidfd_open(1), 4, 0))
print(call({prlimit}, 1, 7, (ctypes.c_uint64 * 2)(0, 0), 0))
for signal in [9, 15, 19, 2, 1, 17]:
    print(attempt(lambda: os.kill(1, signal)))
"#,
        ptrace = libc::SYS_ptrace,
        process_vm_readv = libc::SYS_process_vm_readv,
        pidfd_getfd = libc::SYS_pidfd_getfd,
        prlimit = libc::SYS_prlimit64,
    );
    refused(&guest, &script, &["EPERM", "EACCES", "ENOENT", "ENOTDIR"]).await;
    // A process started by one call may be killed by another.
    guest.expect("sleep 1000 > /dev/null 2>&1 & echo $! > pid").await;
    guest.expect("kill $(cat pid)").await;
    assert_eq!(guest.expect("echo alive").await, "alive");
    end(&host, id).await;
}

async fn ordinary_programs_work(host: Host) {
    let (id, guest) = start(&host).await;
    assert_eq!(guest.expect("bash -c 'echo $((6*7))'").await, "42");
    let threads = "import threading;t=threading.Thread(target=lambda:print(7));t.start();t.join()";
    assert_eq!(guest.expect(&format!("python3 -c \"{threads}\"")).await, "7");
    let git = "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m && git log --format=%s";
    assert_eq!(guest.expect(git).await, "m");
    let gcc =
        "printf 'int main(void){return 0;}' > a.c && gcc a.c && ./a.out && mv a.c /tmp/b.c && ls /tmp/b.c";
    assert_eq!(guest.expect(gcc).await, "/tmp/b.c");
    end(&host, id).await;
}

async fn agent_has_its_own_user_id(host: Host) {
    let (id, guest) = start(&host).await;
    assert_eq!(
        guest.expect("id -u; id -g; id -G; stat -c %u /workspace ~ /etc").await,
        "1000\n1000\n1000\n1000\n1000\n0"
    );
    assert_eq!(guest.expect("grep Uid /proc/1/status").await, "Uid:\t0\t0\t0\t0");
    let (other, _) = start(&host).await;
    let owner = |id| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(host.sandbox(id).join("disk/workspace")).unwrap().uid()
    };
    assert!(owner(id) >= 100_000 && owner(id) != owner(other), "{} and {}", owner(id), owner(other));
    end(&host, id).await;
    end(&host, other).await;
}

async fn agent_is_the_unprivileged_user(host: Host) {
    let (id, guest) = start(&host).await;
    assert_eq!(guest.expect("id -u; id -g; stat -c %u /workspace ~ /etc").await, "0\n0\n0\n0\n0");
    guest.expect("touch file").await;
    let owner = std::os::unix::fs::MetadataExt::uid(
        &fs::metadata(host.sandbox(id).join("disk/workspace/file")).unwrap(),
    );
    assert_eq!(owner, UID);
    assert_eq!(guest.expect("grep CapBnd /proc/self/status").await, "CapBnd:\t0000000000000000");
    end(&host, id).await;
}

async fn memory_is_limited_and_sandboxes_can_be_frozen(host: Host) {
    let limits = Limits {
        memory_mib: Limit::Required(64),
        cpu_millis: Limit::Required(1500),
        pids: Limit::Required(32),
        ..Limits::default()
    };
    let id = SandboxId::generate();
    host.backend
        .create(id, &SandboxSpec { limits, ..spec() })
        .await
        .unwrap_or_else(|error| panic!("{error:?}"));
    let guest = Guest::of(&host.backend, id).await;
    assert_eq!(guest.run_program(&["tail", "/dev/zero"]).await.end, ExecEnd::Signal(9));
    let observed = host.backend.observe(id).await.unwrap();
    assert!(observed.usage.oom_kills >= 1, "{observed:?}");
    assert_eq!(observed.unenforced.len(), 1, "only the disk: {observed:?}");
    let freezer = host.backend.freezer().unwrap();
    freezer.freeze(id).await.unwrap();
    freezer.thaw(id).await.unwrap();
    assert_eq!(guest.expect("echo alive").await, "alive");
    end(&host, id).await;
}
