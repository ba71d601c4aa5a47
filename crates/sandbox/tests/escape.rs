//! Trying to get out of a namespace sandbox. Each test is an attempt, made as the agent, that must be refused.
//!
//! The attempts are Python, which can call anything in the kernel by number: no tool has to be there for it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod namespace_host;

use std::collections::BTreeSet;

use namespace_host::Host;
use protocol::ExecEnd;
use sandbox::SandboxId;
use sandbox::conformance::{Guest, make, remove, spec};

const PRELUDE: &str = r#"
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def said(result):
    return "DONE" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def call(number, *arguments):
    ctypes.set_errno(0)
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return said(libc.syscall(ctypes.c_long(number), *arguments))
def attempt(act):
    try:
        act()
        return "DONE"
    except OSError as error:
        return errno.errorcode[error.errno]
def write(path):
    def act():
        with open(path, "r+b", buffering=0) as file:
            file.write(b"1")
    return attempt(act)
buffer = ctypes.create_string_buffer(4096)
"#;

struct Prisoner {
    host: Host,
    id: SandboxId,
    guest: Guest,
}

impl Prisoner {
    async fn new() -> Self {
        let host = Host::new();
        let id = make(&host, &spec()).await;
        let guest = Guest::of(&host.backend, id).await;
        Self { host, id, guest }
    }

    /// Runs Python; gives the words that it printed.
    async fn python(&self, script: &str) -> Vec<String> {
        let ran = self.guest.run_program(&["/usr/bin/python3", "-c", &format!("{PRELUDE}{script}")]).await;
        assert_eq!(ran.end, ExecEnd::Code(0), "{ran:?}");
        ran.stdout.split_whitespace().map(String::from).collect()
    }

    /// Every word must be one of these refusals.
    async fn refused(&self, script: &str, refusals: &[&str]) {
        let words = self.python(script).await;
        assert!(!words.is_empty());
        assert!(words.iter().all(|word| refusals.contains(&word.as_str())), "{words:?}");
    }

    /// The guest still serves, and nothing is left after the end.
    async fn release(self) {
        assert_eq!(self.guest.expect("echo alive").await, "alive");
        remove(&self.host, self.id).await;
    }
}

#[tokio::test]
async fn file_systems_cannot_be_mounted_or_unmounted() {
    let prisoner = Prisoner::new().await;
    let script = format!(
        r#"
for kind in [b"tmpfs", b"proc", b"sysfs", b"overlay", b"ext4", b"cgroup", b"cgroup2", b"devpts"]:
    ctypes.set_errno(0); print(said(libc.mount(b"none", b"/tmp", kind, 0, None)))
print(said(libc.mount(b"/usr", b"/tmp", None, 4096, None)))
print(said(libc.mount(None, b"/usr", None, 32 | 4096, None)))
for path in [b"/proc/sys", b"/usr", b"/workspace", b"/run/caisson", b"/"]:
    print(said(libc.umount2(path, 2)))
print(call({fsopen}, b"tmpfs", 0), call({open_tree}, -100, b"/", 1), call({move_mount}, -100, b"/usr", -100, b"/tmp", 0))
print(call({mount_setattr}, -100, b"/usr", 0, buffer, 32))
"#,
        fsopen = libc::SYS_fsopen,
        open_tree = libc::SYS_open_tree,
        move_mount = libc::SYS_move_mount,
        mount_setattr = libc::SYS_mount_setattr,
    );
    prisoner.refused(&script, &["EPERM"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn the_kernel_cannot_be_changed_through_proc_and_sys() {
    let prisoner = Prisoner::new().await;
    let script = r#"
for path in ["sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sys/vm/overcommit_memory",
             "sys/net/ipv4/ip_forward", "sys/kernel/yama/ptrace_scope", "sysrq-trigger", "irq/default_smp_affinity",
             "1/oom_score_adj", "1/mem", "1/uid_map", "self/uid_map", "kcore", "kallsyms"]:
    print(write("/proc/" + path))
"#;
    prisoner.refused(script, &["EROFS", "EACCES", "EPERM", "ENOENT"]).await;
    let script = "print(len(os.listdir('/sys')), os.path.exists('/sys/fs/cgroup'), os.path.exists('/proc/sys/fs/binfmt_misc/register'))";
    assert_eq!(prisoner.python(script).await, ["0", "False", "False"]);
    assert_eq!(prisoner.python("print(len(open('/proc/keys','rb').read()))").await, ["0"]);
    prisoner.release().await;
}

#[tokio::test]
async fn device_nodes_cannot_be_made_and_none_of_the_hosts_are_there() {
    let prisoner = Prisoner::new().await;
    let script = r#"
import stat
for number, (kind, major, minor) in enumerate([(stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 7, 0), (stat.S_IFBLK, 8, 0), (stat.S_IFCHR, 10, 237)]):
    for place in ["/workspace", "/tmp", "/dev/shm", "/home/agent"]:
        print(attempt(lambda: os.mknod(f"{place}/node{number}", kind | 0o666, os.makedev(major, minor))))
"#;
    prisoner.refused(script, &["EPERM"]).await;
    let script = r#"
for directory, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(directory, name)
        if not os.path.islink(path) and not stat.S_ISREG(os.stat(path).st_mode): print(path)
"#;
    let devices: BTreeSet<_> = prisoner.python(&format!("import stat{script}")).await.into_iter().collect();
    let harmless =
        ["/dev/full", "/dev/null", "/dev/pts/ptmx", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"];
    assert_eq!(devices, harmless.map(String::from).into());
    prisoner.release().await;
}

#[tokio::test]
async fn the_guest_cannot_be_traced_or_read() {
    let prisoner = Prisoner::new().await;
    let script = format!(
        r#"
for request in [16, 0x4206]:
    print(call({ptrace}, request, 1, 0, 0))
here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
there = (ctypes.c_size_t * 2)(0x400000, 8)
print(call({process_vm_readv}, 1, here, 1, there, 1, 0))
for name in ["mem", "environ", "maps", "auxv", "stack"]:
    print(attempt(lambda: open("/proc/1/" + name, "rb").read(1)))
for name in ["root", "cwd", "exe", "fd/3"]:
    print(attempt(lambda: os.readlink("/proc/1/" + name)))
print(attempt(lambda: os.listdir("/proc/1/fd")), attempt(lambda: os.listdir("/proc/1/root")))
pidfd = os.pidfd_open(1)
print(call({pidfd_getfd}, pidfd, 3, 0))
"#,
        ptrace = libc::SYS_ptrace,
        process_vm_readv = libc::SYS_process_vm_readv,
        pidfd_getfd = libc::SYS_pidfd_getfd,
    );
    prisoner.refused(&script, &["EPERM", "EACCES"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn new_namespaces_cannot_be_made() {
    let prisoner = Prisoner::new().await;
    let script = format!(
        r#"
flags = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
for flag in flags + [0x80]:
    print(said(libc.unshare(flag)))
for flag in flags + [0x10000000 | 0x40000000 | 0x00020000]:
    print(call({clone}, flag | 17, 0, 0, 0, 0))
"#,
        clone = libc::SYS_clone
    );
    prisoner.refused(&script, &["EPERM"]).await;
    prisoner.refused(&format!("print(call({}, buffer, 88))", libc::SYS_clone3), &["ENOSYS"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn namespaces_of_others_cannot_be_entered() {
    let prisoner = Prisoner::new().await;
    let script = r#"
for name in ["mnt", "net", "pid", "user", "ipc", "uts", "cgroup"]:
    print(attempt(lambda: os.open("/proc/1/ns/" + name, os.O_RDONLY)))
    own = os.open("/proc/self/ns/" + name, os.O_RDONLY)
    print(said(libc.setns(own, 0)))
print(said(libc.setns(os.pidfd_open(1), 0x20000)))
"#;
    prisoner.refused(script, &["EPERM", "EACCES"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn raw_and_foreign_sockets_cannot_be_opened() {
    let prisoner = Prisoner::new().await;
    let script = r#"
for family, kind, protocol in [(2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 768), (17, 2, 768), (40, 1, 0), (38, 5, 0),
                               (16, 3, 15), (16, 3, 9), (16, 3, 12), (16, 3, 16), (44, 3, 0), (31, 3, 1), (29, 3, 1)]:
    print(attempt(lambda: socket.socket(family, kind, protocol)))
"#;
    prisoner.refused(script, &["EPERM", "EAFNOSUPPORT"]).await;
    let script = r#"
for address in [("10.0.0.1", 80), ("169.254.169.254", 80), ("8.8.8.8", 53)]:
    print(attempt(lambda: socket.create_connection(address, 5)))
"#;
    prisoner.refused(script, &["ENETUNREACH"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn abstract_sockets_of_the_host_are_out_of_reach() {
    use std::os::linux::net::SocketAddrExt;
    let prisoner = Prisoner::new().await;
    let name = format!("caisson-escape-{}", prisoner.id);
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let script = format!("print(attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0{name}')))");
    prisoner.refused(&script, &["ECONNREFUSED", "EPERM"]).await;
    assert!(listener.accept().is_err(), "somebody came");
    prisoner.release().await;
}

#[tokio::test]
async fn signals_reach_neither_the_guest_nor_the_host() {
    let prisoner = Prisoner::new().await;
    let outside = [prisoner.host.launcher_pid(prisoner.id), i32::try_from(std::process::id()).unwrap()];
    let script = format!(
        "for pid in [1, {}, {}]:\n  for signal in [9, 15, 19]:\n    print(attempt(lambda: os.kill(pid, signal)))",
        outside[0], outside[1]
    );
    prisoner.refused(&script, &["EPERM", "ESRCH"]).await;
    let seen =
        prisoner.python("print(*[p for p in os.listdir('/proc') if p.isdigit() and int(p) > 100])").await;
    assert_eq!(seen, Vec::<String>::new(), "processes of the host are seen");
    // To all that may be signalled at once: the guest is not among them.
    prisoner.refused("print(attempt(lambda: os.kill(-1, 9)))", &["ESRCH", "EPERM"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn no_privileges_can_be_gained() {
    let prisoner = Prisoner::new().await;
    let script = format!(
        r#"
for act in [lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0]),
            lambda: os.seteuid(0), lambda: os.chown("/workspace", 0, 0), lambda: os.nice(-5)]:
    print(attempt(act))
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
print(call({capset}, header, data))
print(said(libc.prctl(47, 2, 21, 0, 0)), said(libc.prctl(8, 1, 0, 0, 0)), said(libc.prctl(28, 4, 0, 0, 0)))
"#,
        capset = libc::SYS_capset
    );
    prisoner.refused(&script, &["EPERM", "EACCES"]).await;
    let status =
        prisoner.guest.expect("grep -E 'NoNewPrivs|CapBnd|CapEff' /proc/self/status | tr -d '\t\n'").await;
    assert_eq!(status, "CapEff:0000000000000000CapBnd:00000000000000e0NoNewPrivs:1");
    prisoner.release().await;
}

#[tokio::test]
async fn set_user_id_programs_gain_nothing() {
    let prisoner = Prisoner::new().await;
    let mounts = prisoner.guest.expect("cut -d' ' -f2,4 /proc/mounts").await;
    for line in mounts.lines() {
        let (path, options) = line.split_once(' ').unwrap();
        let device = path.starts_with("/dev/") || path.starts_with("/proc/");
        assert!(device || options.split(',').any(|option| option == "nosuid"), "{line}");
    }
    for program in ["su -c id root", "/usr/bin/passwd -d root", "/usr/bin/newgrp root"] {
        let ran = prisoner.guest.run(&format!("{program} < /dev/null; echo $?; id -u")).await;
        assert!(ran.stdout.ends_with("1000\n") && !ran.stdout.starts_with("uid=0"), "{program}: {ran:?}");
    }
    let script =
        "cp /usr/bin/python3 /tmp/p && chmod 4755 /tmp/p && /tmp/p -c 'import os; print(os.geteuid())'";
    assert_eq!(prisoner.guest.expect(script).await, "1000");
    prisoner.release().await;
}

#[tokio::test]
async fn programs_of_the_host_cannot_be_overwritten() {
    let prisoner = Prisoner::new().await;
    let before = std::fs::read(&prisoner.host.config.guest).unwrap();
    let script = r#"
for path in ["/proc/self/exe", "/proc/1/exe", "/usr/bin/python3", "/usr/bin/env", "/bin/sh"]:
    print(attempt(lambda: os.open(path, os.O_WRONLY)), attempt(lambda: os.open(path, os.O_RDWR)))
    print(attempt(lambda: os.chmod(path, 0o777)))
print(attempt(lambda: os.execv("/proc/1/exe", ["x"])))
print(attempt(lambda: os.unlink("/usr/bin/env")), attempt(lambda: os.rename("/usr/bin/env", "/usr/bin/x")))
"#;
    prisoner.refused(script, &["EROFS", "EACCES", "EPERM", "ETXTBSY", "ENOENT"]).await;
    assert!(before == std::fs::read(&prisoner.host.config.guest).unwrap());
    prisoner.release().await;
}

#[tokio::test]
async fn no_descriptor_leaks_in() {
    let prisoner = Prisoner::new().await;
    let script = r#"
for name in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        print(name, os.readlink("/proc/self/fd/" + name).split(":")[0])
    except FileNotFoundError:
        pass
"#;
    let words = prisoner.python(script).await;
    let numbers: Vec<_> = words.iter().step_by(2).map(String::as_str).collect();
    assert_eq!(numbers, ["0", "1", "2"], "{words:?}");
    let script = "print(attempt(lambda: os.listdir('/proc/self/fd/../../../1/cwd')), attempt(lambda: os.fchdir(3)), attempt(lambda: os.fchdir(7)))";
    prisoner.refused(script, &["EACCES", "EPERM", "EBADF", "ENOENT"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn kernel_keyrings_are_closed() {
    let prisoner = Prisoner::new().await;
    let script = format!(
        r#"print(call({keyctl}, 0, -3, 1), call({keyctl}, 1, b"x"), call({add_key}, b"user", b"a", b"b", 1, -3), call({request_key}, b"user", b"a", None, 0))"#,
        keyctl = libc::SYS_keyctl,
        add_key = libc::SYS_add_key,
        request_key = libc::SYS_request_key,
    );
    prisoner.refused(&script, &["EPERM"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn large_kernel_interfaces_are_closed() {
    let prisoner = Prisoner::new().await;
    let numbers = [
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_fanotify_init,
        libc::SYS_open_by_handle_at,
        libc::SYS_kexec_load,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_reboot,
        libc::SYS_swapon,
        libc::SYS_acct,
        libc::SYS_syslog,
        libc::SYS_settimeofday,
        libc::SYS_sethostname,
        libc::SYS_quotactl,
    ];
    let script = format!("for number in {numbers:?}: print(call(number, 0, 0, 0, 0, 0))");
    prisoner.refused(&script, &["EPERM"]).await;
    prisoner.refused(&format!("print(call({}, 0x0400000))", libc::SYS_personality), &["EPERM"]).await;
    prisoner.refused("print(call(9999, 0), call(0x40000000 | 39, 0))", &["ENOSYS"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn the_root_cannot_be_changed() {
    let prisoner = Prisoner::new().await;
    let script = format!(
        r#"
print(said(libc.chroot(b"/workspace")), call({pivot_root}, b"/workspace", b"/workspace"))
"#,
        pivot_root = libc::SYS_pivot_root
    );
    prisoner.refused(&script, &["EPERM"]).await;
    assert_eq!(
        prisoner.guest.expect("cd /; cd ../../..; pwd; ls -di / /.. | awk '{print $1}' | uniq | wc -l").await,
        "/\n1"
    );
    prisoner.release().await;
}

#[tokio::test]
async fn the_guests_journal_is_closed_to_the_agent() {
    let prisoner = Prisoner::new().await;
    // It has no path inside: only the guest's own descriptor leads there.
    let script = r#"
print(attempt(lambda: os.listdir("/run/caisson")), attempt(lambda: os.listdir("/proc/1/fd/4")))
print(attempt(lambda: open("/proc/1/fd/4/calls/x", "w")), attempt(lambda: os.chmod("/proc/1/fd/4", 0o777)))
print(attempt(lambda: os.chdir("/proc/1/fd/4")), attempt(lambda: os.chdir("/proc/1/cwd")))
"#;
    prisoner.refused(script, &["EACCES", "EPERM", "ENOENT"]).await;
    prisoner.release().await;
}

#[tokio::test]
async fn the_workspace_cannot_be_replaced() {
    let prisoner = Prisoner::new().await;
    let script = r#"
for path in ["/workspace", "/app"]:
    print(attempt(lambda: os.rename(path, "/tmp/moved")), attempt(lambda: os.rmdir(path)), attempt(lambda: os.symlink("/etc", path)))
"#;
    prisoner.refused(script, &["EACCES", "EPERM", "EBUSY", "EXDEV", "EEXIST"]).await;
    assert_eq!(prisoner.guest.expect("stat -c %F /workspace /app").await, "directory\ndirectory");
    prisoner.release().await;
}

#[tokio::test]
async fn nothing_can_be_typed_into_a_terminal() {
    let prisoner = Prisoner::new().await;
    let script = r#"
import fcntl, pty
master, slave = pty.openpty()
for request in [0x5412, 0x541C]:
    print(attempt(lambda: fcntl.ioctl(slave, request, b"x")))
"#;
    prisoner.refused(script, &["EPERM"]).await;
    prisoner.release().await;
}
