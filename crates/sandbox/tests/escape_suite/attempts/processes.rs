//! Attempts on processes outside and on the guest.

use super::Attempt;
use super::Where::{Everywhere, OwnRoot};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "trace processes outside",
        applies: Everywhere,
        script: r#"
for pid in [guest, *outside]:
    for request in [16, 0x4206]:
        print(call("ptrace", request, pid, 0, 0))
"#,
        refusals: &["EPERM", "ESRCH", "EACCES"],
    },
    Attempt {
        name: "read and write the memory of others",
        applies: Everywhere,
        script: r#"
here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
there = (ctypes.c_size_t * 2)(0x400000, 8)
for pid in [guest, *outside]:
    print(call("process_vm_readv", pid, here, 1, there, 1, 0), call("process_vm_writev", pid, here, 1, there, 1, 0))
    print(attempt(lambda: open(f"/proc/{pid}/mem", "rb").read(1)), attempt(lambda: open(f"/proc/{pid}/mem", "r+b")))
"#,
        refusals: &["EPERM", "ESRCH", "EACCES", "ENOENT"],
    },
    Attempt {
        name: "look into the guest",
        applies: Everywhere,
        script: r#"
for pid in [guest, *outside]:
    def show(name, said):
        print(said if said != "DONE" else f"DONE:{pid}:{name}")
    for name in ["environ", "maps", "auxv", "stack", "syscall"]:
        show(name, attempt(lambda: open(f"/proc/{pid}/{name}", "rb").read(1)))
    for name in ["root", "cwd", "exe", "fd/0", "fd/3", "fd/4"]:
        show(name, attempt(lambda: os.readlink(f"/proc/{pid}/{name}")))
        show("into " + name, attempt(lambda: os.chdir(f"/proc/{pid}/{name}")))
    for name in ["root", "map_files"]:
        show(name, attempt(lambda: os.listdir(f"/proc/{pid}/{name}")))
"#,
        refusals: &["EPERM", "EACCES", "ENOENT"],
    },
    Attempt {
        name: "take descriptors of others",
        applies: Everywhere,
        script: r#"
for pid in [guest, *outside]:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        print(errno.errorcode[error.errno])
        continue
    for number in range(8):
        print(call("pidfd_getfd", pidfd, number, 0))
"#,
        refusals: &["EPERM", "ESRCH", "EINVAL"],
    },
    Attempt {
        name: "signal processes outside",
        applies: Everywhere,
        script: r#"
for pid in [guest, *outside]:
    for signal in [9, 15, 19, 2, 1, 17, 6]:
        print(attempt(lambda: os.kill(pid, signal)), attempt(lambda: os.killpg(pid, signal)))
"#,
        refusals: &["EPERM", "ESRCH"],
    },
    Attempt {
        name: "signal everybody at once",
        applies: Everywhere,
        script: r#"
if os.fork() == 0:
    os._exit(0)
os.wait()
# To all that may be signalled; the guest and the host are looked at afterwards.
attempt(lambda: os.kill(-1, 9))
print(holds(True))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "change the limits, the priority, the processors of others",
        applies: Everywhere,
        script: r#"
# A guest that has the agent's own user may be made slow by it; that is the agent's loss.
print(call("prlimit64", guest, 7, (ctypes.c_uint64 * 2)(0, 0), 0))
for pid in outside:
    print(call("prlimit64", pid, 7, (ctypes.c_uint64 * 2)(0, 0), 0), attempt(lambda: os.sched_setaffinity(pid, [0])))
    print(attempt(lambda: os.setpriority(0, pid, 19)), call("ioprio_set", 1, pid, 2 << 13 | 7), write(f"/proc/{pid}/oom_score_adj", b"1000"))
print(attempt(lambda: os.nice(-5)), write("/proc/self/oom_score_adj", b"-900"))
"#,
        refusals: &["EPERM", "ESRCH", "EACCES", "ENOENT", "EROFS"],
    },
    Attempt {
        name: "change ids and maps of the guest",
        applies: Everywhere,
        script: r#"
for pid in [guest, "self"]:
    for name in ["uid_map", "gid_map", "setgroups"]:
        print(write(f"/proc/{pid}/{name}", b"0 0 1" if name != "setgroups" else b"allow"))
for name in ["attr/exec", "attr/current", "timerslack_ns"]:
    print(write(f"/proc/{guest}/{name}"))
"#,
        refusals: &["EPERM", "EACCES", "ENOENT", "EINVAL", "EROFS"],
    },
    Attempt {
        name: "compare and move the memory of others",
        applies: Everywhere,
        script: r#"
for pid in [guest, *outside]:
    print(call("kcmp", os.getpid(), pid, 0, 0, 0), call("move_pages", pid, 1, buffer, buffer, buffer, 0))
"#,
        refusals: &["EPERM", "ESRCH", "EACCES", "ENOSYS"],
    },
    Attempt {
        name: "see processes of the host",
        applies: OwnRoot,
        script: r#"
seen = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
told = b"".join(open(f"/proc/{name}/cmdline", "rb").read() for name in seen if os.path.exists(f"/proc/{name}/cmdline"))
print(holds(len(seen) < 40), holds(witness.encode() not in told))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "share memory with processes of the host",
        applies: Everywhere,
        script: "print(call('shmget', shared_key, 4096, 0o600), call('shmat', shared_id, 0, 0))",
        refusals: &["ENOENT", "EINVAL", "EPERM", "EACCES"],
    },
    Attempt {
        name: "type into a terminal of others",
        applies: OwnRoot,
        script: r#"
import fcntl, pty
master, slave = pty.openpty()
for request in [0x5412, 0x541C]:
    print(attempt(lambda: fcntl.ioctl(slave, request, b"x")))
print(call("vhangup"))
"#,
        refusals: &["EPERM"],
    },
];
