//! Attempts with mounts, roots, devices and namespaces.

use super::Attempt;
use super::Where::{Everywhere, OwnRoot};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "mount a new file system",
        applies: Everywhere,
        script: r#"
for kind in [b"tmpfs", b"proc", b"sysfs", b"overlay", b"ext4", b"cgroup", b"cgroup2", b"devpts", b"fuse", b"bpf", b"debugfs"]:
    ctypes.set_errno(0); print(said(libc.mount(b"none", b"/tmp", kind, 0, None)))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "bind, move and remount what is there",
        applies: Everywhere,
        script: r#"
print(said(libc.mount(b"/usr", b"/tmp", None, 4096, None)), said(libc.mount(b"/", b"/tmp", None, 4096 | 16384, None)))
print(said(libc.mount(None, b"/usr", None, 32 | 4096, None)), said(libc.mount(None, b"/", None, 32 | 4096, None)))
print(said(libc.mount(b"/usr", b"/tmp", None, 8192, None)), said(libc.mount(None, b"/", None, 1 << 18, None)))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "unmount what covers something",
        applies: Everywhere,
        script: r#"
for path in [b"/proc/sys", b"/usr", b"/workspace", b"/run/caisson", b"/proc", b"/dev", b"/"]:
    print(said(libc.umount2(path, 2)), said(libc.umount2(path, 0)))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "mount with the new system calls",
        applies: Everywhere,
        script: r#"
print(call("fsopen", b"tmpfs", 0), call("fspick", -100, b"/", 0), call("fsmount", 3, 0, 0))
print(call("open_tree", -100, b"/", 1), call("move_mount", -100, b"/usr", -100, b"/tmp", 0))
print(call("mount_setattr", -100, b"/usr", 0, buffer, 32))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "change the root",
        applies: Everywhere,
        script: r#"
print(said(libc.chroot(b".")), call("pivot_root", b".", b"."))
os.chdir("/")
os.chdir("../../../..")
print(holds(os.stat("/").st_ino == os.stat("/..").st_ino and os.getcwd() == "/"))
"#,
        refusals: &["EPERM", "REFUSED"],
    },
    Attempt {
        name: "make device nodes",
        applies: Everywhere,
        script: r#"
kinds = [(stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 7, 0), (stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 253, 0), (stat.S_IFCHR, 10, 237), (stat.S_IFCHR, 10, 229)]
for number, (kind, major, minor) in enumerate(kinds):
    for place in [".", "/tmp", "/dev/shm", os.path.expanduser("~")]:
        print(attempt(lambda: os.mknod(f"{place}/{token}{number}", kind | 0o666, os.makedev(major, minor))))
"#,
        refusals: &["EPERM", "EACCES"],
    },
    Attempt {
        name: "open devices of the host",
        applies: Everywhere,
        script: r#"
for name in ["mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "loop0", "loop-control", "kvm", "fuse", "net/tun", "vhost-net", "mapper/control", "dri/card0", "uinput", "input/event0", "snapshot", "rtc0", "watchdog"]:
    print(attempt(lambda: os.open("/dev/" + name, os.O_RDWR)), attempt(lambda: os.open("/dev/" + name, os.O_RDONLY)))
"#,
        refusals: &["ENOENT", "EACCES", "EPERM", "ENOTDIR"],
    },
    Attempt {
        name: "find devices that are not harmless",
        applies: OwnRoot,
        script: r#"
harmless = {"/dev/full", "/dev/null", "/dev/pts/ptmx", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"}
found = set()
for directory, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(directory, name)
        if not os.path.islink(path) and not stat.S_ISREG(os.stat(path).st_mode): found.add(path)
print(holds(found <= harmless))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "leave into new namespaces",
        applies: Everywhere,
        script: r#"
flags = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x80, 0x10000000 | 0x40000000 | 0x00020000]
for flag in flags:
    print(said(libc.unshare(flag)))
"#,
        refusals: &["EPERM"],
    },
    Attempt {
        name: "start a process in new namespaces",
        applies: Everywhere,
        script: r#"
for flag in [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x10000000 | 0x40000000 | 0x00020000]:
    print(call("clone", flag | 17, 0, 0, 0, 0))
print(call("clone3", struct.pack("QQQQQQQQQQQ", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88))
"#,
        refusals: &["EPERM", "ENOSYS"],
    },
    Attempt {
        name: "enter the namespaces of others",
        applies: Everywhere,
        script: r#"
for pid in [guest, *outside, 1]:
    for name in ["mnt", "net", "pid", "user", "ipc", "uts", "cgroup"]:
        print(attempt(lambda: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)))
for name in ["mnt", "net", "pid", "user", "ipc", "uts", "cgroup"]:
    own = os.open("/proc/self/ns/" + name, os.O_RDONLY)
    ctypes.set_errno(0)
    print(said(libc.setns(own, 0)))
print(said(libc.setns(os.pidfd_open(guest), 0x20000)))
"#,
        refusals: &["EPERM", "EACCES", "ENOENT"],
    },
];
