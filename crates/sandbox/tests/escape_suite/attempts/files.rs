//! Attempts on files and descriptors of the host, the image and the guest.

use super::Attempt;
use super::Where::{Everywhere, OwnRoot, OwnUser};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "read and change a file of the host by its path",
        applies: Everywhere,
        script: r#"
for act in [lambda: open(secret).read(), lambda: open(secret, "w"), lambda: os.truncate(secret, 0), lambda: os.unlink(secret),
            lambda: os.rename(secret, token), lambda: os.link(secret, token), lambda: os.listdir(state),
            lambda: open(os.path.dirname(secret) + "/" + token, "w")]:
    print(attempt(act))
"#,
        refusals: &["EPERM", "EACCES", "ENOENT", "EXDEV", "EROFS"],
    },
    Attempt {
        name: "change mode, times and attributes of a file of the host",
        applies: OwnUser,
        script: r#"
for path in [secret, state, "/.caisson/private", "/run/caisson"]:
    for act in [lambda: os.chmod(path, 0o777), lambda: os.utime(path, (1, 1)), lambda: os.chown(path, os.getuid(), os.getgid())]:
        print(attempt(act))
"#,
        refusals: &["EPERM", "EACCES", "ENOENT", "EROFS"],
    },
    Attempt {
        name: "leave files where everybody may on the host",
        applies: Everywhere,
        // Where these directories belong to the sandbox itself, the writes succeed, and the suite checks the host
        // afterwards.
        script: r#"
for place in ["/etc", "/root", "/home", "/usr", "/var", "/opt", "/srv", "/boot", "/", "/tmp", "/var/tmp", "/dev/shm", "/run", "/sys/fs/cgroup"]:
    attempt(lambda: open(f"{place}/{token}.left", "w"))
print(holds(True))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "read what only root may read",
        applies: Everywhere,
        script: r#"
for path in ["/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/root" + "/.ssh/id_ed25519", "/proc/1/environ", "/var/lib/docker/x"]:
    print(read(path))
print(attempt(lambda: os.listdir("/root")) if os.path.isdir("/root") and os.stat("/root").st_uid != os.getuid() else "ENOENT")
"#,
        refusals: &["EPERM", "EACCES", "ENOENT", "ENODATA"],
    },
    Attempt {
        name: "overwrite the running program, as in CVE-2019-5736",
        applies: Everywhere,
        script: r#"
for path in ["/proc/self/exe", f"/proc/{guest}/exe"]:
    print(attempt(lambda: os.open(path, os.O_WRONLY)), attempt(lambda: os.open(path, os.O_RDWR | os.O_TRUNC)), attempt(lambda: os.chmod(path, 0o777)))
    def through():
        held = os.open(path, os.O_PATH)
        os.open(f"/proc/self/fd/{held}", os.O_WRONLY)
    print(attempt(through))
print(attempt(lambda: os.execv(f"/proc/{guest}/exe", ["x"])))
"#,
        refusals: &["EROFS", "EACCES", "EPERM", "ETXTBSY", "ENOENT"],
    },
    Attempt {
        name: "change programs of the image",
        applies: Everywhere,
        script: r#"
for path in ["/usr/bin/python3", "/usr/bin/env", "/bin/sh", "/lib64/ld-linux-x86-64.so.2"]:
    print(attempt(lambda: os.open(path, os.O_WRONLY)), attempt(lambda: os.open(path, os.O_RDWR)), attempt(lambda: os.chmod(path, 0o777)))
    print(attempt(lambda: os.unlink(path)), attempt(lambda: os.rename(path, path + token)), attempt(lambda: os.truncate(path, 0)))
"#,
        refusals: &["EROFS", "EACCES", "EPERM", "ETXTBSY", "EBUSY", "EXDEV"],
    },
    Attempt {
        name: "link programs of the image into the workspace",
        applies: Everywhere,
        script: r#"
for path in ["/usr/bin/su", "/usr/bin/env", "/etc/passwd"]:
    if os.path.exists(path):
        print(attempt(lambda: os.link(path, token + ".hard")))
print(attempt(lambda: os.link("/proc/self/exe", token + ".hard")), attempt(lambda: os.link("/dev/null", token + ".null")))
"#,
        refusals: &["EXDEV", "EPERM", "EACCES", "EROFS"],
    },
    Attempt {
        name: "find descriptors that leaked",
        applies: Everywhere,
        script: r#"
for name in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink("/proc/self/fd/" + name)
    except OSError:
        continue
    print(holds(int(name) <= 2 and target.startswith(("pipe:", "/dev/null", "socket:"))))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "leave through a leaked directory, as in CVE-2024-21626",
        applies: Everywhere,
        script: r#"
for number in range(3, 12):
    for below in ["", "/..", "/../../../../.."]:
        print(attempt(lambda: os.chdir(f"/proc/self/fd/{number}{below}")))
    print(attempt(lambda: os.fchdir(number)))
print(holds(os.getcwd().startswith("/") and not os.readlink("/proc/self/cwd").startswith("(unreachable)")))
"#,
        refusals: &["ENOENT", "EBADF", "EACCES", "EPERM", "ENOTDIR", "REFUSED"],
    },
    Attempt {
        name: "reach the guest's journal",
        applies: Everywhere,
        script: r#"
places = ["/run/caisson", "/run/caisson/journal", "/.caisson/private", "/.caisson/private/state", "/.caisson/private/state/calls", state]
places += [f"/proc/{guest}/fd/{number}" for number in range(3, 12)] + [f"/proc/{guest}/cwd"]
for path in places:
    print(attempt(lambda: os.listdir(path)), attempt(lambda: os.mkdir(path + "/x")), attempt(lambda: open(path + "/calls/x", "w")))
print(attempt(lambda: os.rename("/.caisson/private", "/tmp/x")), attempt(lambda: os.rmdir("/.caisson/private")))
"#,
        refusals: &["EACCES", "EPERM", "ENOENT", "EROFS", "EBUSY", "EXDEV", "ENOTDIR"],
    },
    Attempt {
        name: "speak on the link's socket",
        applies: Everywhere,
        script: r#"
for path in ["/.caisson/private/state/link.sock", f"/proc/{guest}/cwd/link.sock", "/run/caisson/link.sock", state + "/link.sock"]:
    print(attempt(lambda: socket.socket(socket.AF_UNIX).connect(path)), attempt(lambda: os.unlink(path)), attempt(lambda: os.rename(path, "/tmp/x")))
    print(attempt(lambda: os.symlink("/tmp/x", path)))
"#,
        refusals: &["EACCES", "EPERM", "ENOENT", "EROFS", "EXDEV", "ENOTDIR", "EAFNOSUPPORT"],
    },
    Attempt {
        name: "put something in the place of the workspace",
        applies: OwnRoot,
        script: r#"
for path in ["/workspace", "/app"]:
    print(attempt(lambda: os.rename(path, "/tmp/moved")), attempt(lambda: os.rmdir(path)), attempt(lambda: os.symlink("/etc", path)))
print(holds(stat.S_ISDIR(os.lstat("/workspace").st_mode) and stat.S_ISDIR(os.lstat("/app").st_mode)))
"#,
        refusals: &["EACCES", "EPERM", "EBUSY", "EXDEV", "EEXIST", "EROFS", "ENOTEMPTY", "REFUSED"],
    },
    Attempt {
        name: "write outside what is the sandbox's own",
        applies: OwnRoot,
        script: r#"
# Where the agent owns the root, because there is no other user, its own layer lies over these.
allowed = ("/workspace", "/app", "/tmp", "/home", "/dev", "/run", "/agent", "/proc", "/var", "/mnt", "/opt", "/srv", "/media")
for directory, names, files in os.walk("/", followlinks=False):
    if directory.startswith(allowed):
        names.clear()
        continue
    if attempt(lambda: os.mkdir(f"{directory}/{token}")) == "DONE": print("WRITABLE:" + directory)
    for name in files:
        path = os.path.join(directory, name)
        if stat.S_ISREG(os.lstat(path).st_mode) and attempt(lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC)) == "DONE": print("WRITABLE:" + path)
print(holds(True))
"#,
        refusals: &["REFUSED"],
    },
];
