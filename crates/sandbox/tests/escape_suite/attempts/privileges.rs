//! Attempts with users, capabilities and set-uid programs.

use super::Attempt;
use super::Where::{Everywhere, OwnRoot};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "become another user",
        applies: Everywhere,
        // If the agent is the only user, its id is 0 inside, and it has the rights of an ordinary user outside.
        script: r#"
other = 0 if os.getuid() != 0 else 5
for act in [lambda: os.setuid(other), lambda: os.setgid(other), lambda: os.setresuid(other, other, other), lambda: os.setgroups([other]),
            lambda: os.seteuid(other), lambda: os.setregid(other, other), lambda: os.chown(".", other, other)]:
    print(attempt(act))
"#,
        refusals: &["EPERM", "EINVAL", "EACCES"],
    },
    Attempt {
        name: "take capabilities",
        applies: Everywhere,
        script: r#"
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
print(call("capset", header, (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)), call("capset", header, (ctypes.c_uint32 * 6)(*[1 << 21] * 3, 0, 0, 0)))
ctypes.set_errno(0); print(said(libc.prctl(47, 2, 21, 0, 0)), said(libc.prctl(28, 4, 0, 0, 0)), said(libc.prctl(24, 21, 0, 0, 0)))
facts = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"]:
    print(holds(int(facts[name], 16) == 0))
# Changing ids and ending what has other ids: the guest's, where it has them. Who may not drop the rest cannot use it either.
print(holds(int(facts["CapBnd"], 16) & ~0xe0 == 0 or facts["NoNewPrivs"].strip() == "1"))
"#,
        refusals: &["EPERM", "EACCES", "REFUSED"],
    },
    Attempt {
        name: "give capabilities to a file",
        applies: Everywhere,
        script: r#"
import shutil
shutil.copy("/usr/bin/python3", token + ".capable")
value = struct.pack("<IIIII", 0x02000001, 0x200000, 0, 0, 0)
print(attempt(lambda: os.setxattr(token + ".capable", "security.capability", value)))
print(attempt(lambda: os.setxattr(token + ".capable", "trusted.overlay.opaque", b"y")))
os.unlink(token + ".capable")
"#,
        refusals: &["EPERM", "EACCES", "EOPNOTSUPP"],
    },
    Attempt {
        name: "run programs of root",
        applies: Everywhere,
        script: r#"
for program in [["su", "-c", "id -u", "root"], ["/usr/bin/passwd", "-d", "root"], ["/usr/bin/newgrp", "root"], ["mount", "-t", "tmpfs", "none", "/tmp"],
                ["/usr/bin/chsh", "-s", "/bin/sh", "root"], ["newuidmap", str(os.getpid()), "0", "0", "1"]]:
    try:
        ran = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
        print(holds(ran.returncode != 0))
    except OSError as error:
        print(holds(error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM)))
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "make a program that runs as somebody else",
        applies: Everywhere,
        script: r#"
import shutil
shutil.copy("/usr/bin/python3", token + ".setuid")
attempt(lambda: os.chmod(token + ".setuid", 0o6755))
ran = subprocess.run(["./" + token + ".setuid", "-c", "import os; print(os.geteuid(), os.getegid(), open('/proc/self/status').read().split('CapEff:')[1].split()[0])"], capture_output=True, text=True)
print(holds(ran.stdout.split() == [str(os.getuid()), str(os.getgid()), "0" * 16]))
os.unlink(token + ".setuid")
"#,
        refusals: &["REFUSED"],
    },
    Attempt {
        name: "find a place where such a program would count",
        applies: OwnRoot,
        // Skips devices, and directories that the agent cannot write to. An engine's root may have set-uid programs;
        // no_new_privs makes them harmless, and the agent cannot add any.
        script: r#"
for line in open("/proc/self/mounts"):
    path, options = line.split()[1], line.split()[3].split(",")
    print(holds("nosuid" in options or "ro" in options or path.startswith(("/dev/", "/proc/", "/.caisson/private"))))
"#,
        refusals: &["REFUSED"],
    },
];
