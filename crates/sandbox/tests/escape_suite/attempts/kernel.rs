//! Attempts on the kernel's files and its large interfaces.

use super::Attempt;
use super::Where::{Everywhere, OwnRoot};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "change the kernel through /proc/sys",
        applies: Everywhere,
        script: r#"
for path in ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/panic", "vm/overcommit_memory", "vm/drop_caches",
             "net/ipv4/ip_forward", "kernel/yama/ptrace_scope", "kernel/unprivileged_bpf_disabled", "kernel/randomize_va_space", "fs/suid_dumpable"]:
    print(write("/proc/sys/" + path))
"#,
        refusals: &["EROFS", "EACCES", "EPERM", "ENOENT"],
    },
    Attempt {
        name: "press the kernel's buttons in /proc",
        applies: Everywhere,
        script: r#"
for path in ["sysrq-trigger", "irq/default_smp_affinity", "scsi/scsi", "acpi/wakeup", "bus/pci/00/00.0"]:
    print(write("/proc/" + path))
"#,
        refusals: &["EROFS", "EACCES", "EPERM", "ENOENT", "ENOTDIR"],
    },
    Attempt {
        name: "read the kernel's memory and its log",
        applies: OwnRoot,
        script: r#"
for path in ["/proc/kcore", "/proc/kmsg", "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/keys", "/sys/kernel/debug/x", "/sys/kernel/tracing/trace"]:
    print(read(path))
"#,
        refusals: &["EACCES", "EPERM", "ENOENT", "ENODATA", "EIO"],
    },
    Attempt {
        name: "learn of the host and of other jobs from /proc",
        applies: OwnRoot,
        script: r#"
for name in ["cmdline", "diskstats", "partitions", "swaps", "mdstat", "interrupts", "softirqs", "cgroups", "locks", "modules", "zoneinfo", "buddyinfo", "schedstat",
             "key-users", "timer_list", "consoles", "crypto", "devices", "iomem", "ioports", "kallsyms", "misc", "sys/fs/aio-nr", "sys/fs/dentry-state",
             "sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/inode-state", "sys/kernel/pty/nr"]:
    print(read("/proc/" + name))
for name in ["fs", "pressure", "irq", "bus", "driver", "acpi", "scsi"]:
    print(holds(not os.path.exists("/proc/" + name) or os.listdir("/proc/" + name) == []))
"#,
        refusals: &["EACCES", "EPERM", "ENOENT", "ENODATA", "REFUSED"],
    },
    Attempt {
        name: "take the host's slots for asynchronous input and output",
        applies: Everywhere,
        script: "print(call('io_setup', 1024, ctypes.byref(ctypes.c_ulong(0))))",
        refusals: &["ENOSYS"],
    },
    Attempt {
        name: "change the kernel through /sys",
        applies: Everywhere,
        script: r#"
for path in ["kernel/uevent_helper", "power/state", "kernel/mm/transparent_hugepage/enabled", "kernel/debug/x", "fs/cgroup/cgroup.procs",
             "devices/system/cpu/cpu1/online", "module/kernel/parameters/panic", "firmware/efi/vars/x", "class/net/lo/mtu", "kernel/kexec_crash_size"]:
    print(write("/sys/" + path))
"#,
        refusals: &["EROFS", "EACCES", "EPERM", "ENOENT"],
    },
    Attempt {
        name: "have a program run by release_agent",
        applies: Everywhere,
        script: r#"
for kind, data in [(b"cgroup", b"rdma"), (b"cgroup", b"memory"), (b"cgroup", b"none,name=escape"), (b"cgroup2", None)]:
    ctypes.set_errno(0); print(said(libc.mount(b"none", b"/tmp", kind, 0, data)))
for directory in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/rdma", "/sys/fs/cgroup/pids"]:
    print(attempt(lambda: os.mkdir(f"{directory}/{token}")))
    for name in ["release_agent", "notify_on_release", "cgroup.procs", "memory.max", "pids.max", "memory.limit_in_bytes", "devices.allow"]:
        print(write(f"{directory}/{name}"))
"#,
        refusals: &["EPERM", "EACCES", "ENOENT", "EROFS"],
    },
    Attempt {
        name: "see control groups or devices through /sys",
        applies: OwnRoot,
        script: r#"
print(holds(os.listdir("/sys") == []), holds(not os.path.exists("/sys/fs/cgroup")))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "register a binary format",
        applies: Everywhere,
        script: r#"
print(write("/proc/sys/fs/binfmt_misc/register", b":escape:M::EVIL::/tmp/x:C"), write("/proc/sys/fs/binfmt_misc/status"))
ctypes.set_errno(0); print(said(libc.mount(b"none", b"/tmp", b"binfmt_misc", 0, None)))
"#,
        refusals: &["ENOENT", "EPERM", "EACCES", "EROFS"],
    },
    Attempt {
        name: "use the kernel's keyrings",
        applies: Everywhere,
        script: r#"
print(call("keyctl", 0, -3, 1), call("keyctl", 0, -5, 1), call("keyctl", 1, b"x"), call("keyctl", 8, -4, -3))
print(call("add_key", b"user", token.encode(), b"b", 1, -3), call("request_key", b"user", b"a", None, 0))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "load a bpf program",
        applies: Everywhere,
        script: "for command in range(0, 20): print(call('bpf', command, buffer, 120))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "measure with perf",
        applies: Everywhere,
        script: r#"
struct.pack_into("II", buffer, 0, 1, 120)
for pid, cpu in [(0, -1), (-1, 0), (guest, -1)]:
    print(call("perf_event_open", buffer, pid, cpu, -1, 0))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "stop the kernel by userfaultfd",
        applies: Everywhere,
        script: "for flags in [0, 1, 0o2000000]: print(call('userfaultfd', flags))\nprint(attempt(lambda: os.open('/dev/userfaultfd', os.O_RDWR)))",
        refusals: &["EPERM", "ENOENT", "EACCES"],
    },
    Attempt {
        name: "go around the filter by io_uring",
        applies: Everywhere,
        script: "print(call('io_uring_setup', 8, buffer), call('io_uring_enter', 3, 1, 0, 0, 0, 0), call('io_uring_register', 3, 0, 0, 0))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "open files by handle, as shocker did",
        applies: Everywhere,
        script: r#"
handle = struct.pack("IiII", 8, 1, 2, 0)
for directory in [".", "/", "/etc/hostname"]:
    try:
        fd = os.open(directory, os.O_RDONLY)
    except OSError:
        fd = -100
    print(call("open_by_handle_at", fd, handle, 0))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "watch the whole file system",
        applies: Everywhere,
        script: "for flags in [0, 4, 8, 0x200, 0xe00]: print(call('fanotify_init', flags, 0))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "load or remove kernel modules",
        applies: Everywhere,
        script: "print(call('init_module', buffer, 16, b''), call('finit_module', 0, b'', 0), call('delete_module', b'x', 0))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "restart the machine or its kernel",
        applies: Everywhere,
        script: "print(call('reboot', 0xfee1dead, 672274793, 0x01234567, 0), call('kexec_load', 0, 0, 0, 0), call('kexec_file_load', 0, 0, 0, b'', 0))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "set the clock",
        applies: Everywhere,
        script: r#"
now = struct.pack("qq", 1, 0)
print(call("settimeofday", now, None), call("clock_settime", 0, now))
struct.pack_into("I", buffer, 0, 1)
print(call("adjtimex", buffer))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "rename the machine",
        applies: Everywhere,
        script: "print(call('sethostname', b'escaped', 7), call('setdomainname', b'escaped', 7))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "swap, account, set quotas, read the log",
        applies: Everywhere,
        script: "print(call('swapon', b'/tmp/x', 0), call('swapoff', b'/tmp/x'), call('acct', b'/tmp/x'), call('quotactl', 0x80000100, b'/dev/x', 0, 0), call('syslog', 3, buffer, 100))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "reach input and output ports",
        applies: Everywhere,
        script: "print(call('iopl', 3), call('ioperm', 0, 8, 1))",
        refusals: &["EPERM", "ENOSYS"],
    },
    Attempt {
        name: "have everything that can be read run as code",
        applies: Everywhere,
        script: "print(call('personality', 0x0400000))",
        refusals: &["EPERM"],
    },
    Attempt {
        name: "make calls that the filter does not know",
        applies: Everywhere,
        script: "for number in [9999, 600, 1023]: print(call(number, 0))",
        refusals: &["ENOSYS"],
    },
    Attempt {
        name: "make calls of another processor's kind",
        applies: Everywhere,
        // The call does not exist, or it kills its caller.
        script: r#"
child = os.fork()
if child == 0:
    os._exit(0 if call(0x40000000 | 39) == "ENOSYS" else 7)
status = os.waitpid(child, 0)[1]
print(holds(status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == 31)))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "take the filter off",
        applies: Everywhere,
        script: r#"
print(said(libc.prctl(38, 0, 0, 0, 0)), call("seccomp", 9, 0, 0))
facts = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(holds(facts["Seccomp"].strip() == "2" and facts["NoNewPrivs"].strip() == "1"))
"#,
        refusals: &["EINVAL", "EPERM", "EACCES", "REFUSED"],
    },
];
