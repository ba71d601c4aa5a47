//! The attempts, as data: a Python script that runs as the agent, and the accepted refusals.
//!
//! All backends run all of them (`escape.rs`, `escape_docker.rs`), and so does a job of the real server (`e2e`). A
//! script prints one word per attempt: the name of the error, or `DONE` if it succeeded. [`PRELUDE`] provides its
//! helpers.
#![allow(dead_code)]

mod files;
mod kernel;
mod namespaces;
mod network;
mod privileges;
mod processes;

/// In which sandboxes an attempt makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Everywhere,
    /// Where the agent is not the server's own user. With Landlock alone and no separate user, the kernel lets the
    /// agent change the mode and the times of that user's files: Landlock does not cover these calls.
    OwnUser,
    /// Where the sandbox has its own root, processes and network. Not with Landlock alone, where the agent sees the
    /// host but may not access it.
    OwnRoot,
}

/// One way to try to escape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) name: &'static str,
    pub(crate) applies: Where,
    /// The Python script.
    pub(crate) script: &'static str,
    /// The accepted refusals: every word that the script prints must be one of these.
    pub(crate) refusals: &'static [&'static str],
}

pub(crate) fn all() -> Vec<Attempt> {
    [
        namespaces::ATTEMPTS,
        kernel::ATTEMPTS,
        processes::ATTEMPTS,
        network::ATTEMPTS,
        privileges::ATTEMPTS,
        files::ATTEMPTS,
    ]
    .concat()
}

/// Helpers for every attempt. `refused` is printed if a fact shows the refusal. The caller prepends definitions of
/// `outside`, `guest`, `secret`, `state`, `socket_path`, `abstract_name` and `port`, which are things of the host.
pub(crate) const PRELUDE: &str = r#"
import ctypes, errno, os, socket, stat, struct, subprocess
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
def said(result):
    return "DONE" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def call(name, *arguments):
    ctypes.set_errno(0)
    number = SYSTEM_CALLS[name] if isinstance(name, str) else name
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return said(libc.syscall(ctypes.c_long(number), *arguments))
def attempt(act):
    try:
        act()
        return "DONE"
    except OSError as error:
        return errno.errorcode[error.errno]
def write(path, content=b"1"):
    def act():
        with open(path, "r+b", buffering=0) as file:
            file.write(content)
    return attempt(act)
def read(path):
    # An empty file in its place is as good as none.
    def act():
        with open(path, "rb") as file:
            if not file.read(1): raise OSError(errno.ENODATA, path)
    return attempt(act)
def holds(fact):
    return "REFUSED" if fact else "ESCAPED"
"#;

/// The numbers of the system calls that the scripts name, as Python code.
pub(crate) fn system_calls() -> String {
    let pairs: Vec<String> = NUMBERS.iter().map(|(name, number)| format!("{name:?}: {number}")).collect();
    format!("SYSTEM_CALLS = {{{}}}\n", pairs.join(", "))
}

const NUMBERS: &[(&str, libc::c_long)] = &[
    ("fsopen", libc::SYS_fsopen),
    ("fsmount", libc::SYS_fsmount),
    ("fspick", libc::SYS_fspick),
    ("open_tree", libc::SYS_open_tree),
    ("move_mount", libc::SYS_move_mount),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("pivot_root", libc::SYS_pivot_root),
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("prlimit64", libc::SYS_prlimit64),
    ("ioprio_set", libc::SYS_ioprio_set),
    ("move_pages", libc::SYS_move_pages),
    ("kcmp", libc::SYS_kcmp),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("keyctl", libc::SYS_keyctl),
    ("add_key", libc::SYS_add_key),
    ("request_key", libc::SYS_request_key),
    ("bpf", libc::SYS_bpf),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("io_setup", libc::SYS_io_setup),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("fanotify_init", libc::SYS_fanotify_init),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("kexec_load", libc::SYS_kexec_load),
    ("kexec_file_load", libc::SYS_kexec_file_load),
    ("init_module", libc::SYS_init_module),
    ("finit_module", libc::SYS_finit_module),
    ("delete_module", libc::SYS_delete_module),
    ("reboot", libc::SYS_reboot),
    ("swapon", libc::SYS_swapon),
    ("swapoff", libc::SYS_swapoff),
    ("acct", libc::SYS_acct),
    ("syslog", libc::SYS_syslog),
    ("settimeofday", libc::SYS_settimeofday),
    ("clock_settime", libc::SYS_clock_settime),
    ("adjtimex", libc::SYS_adjtimex),
    ("sethostname", libc::SYS_sethostname),
    ("setdomainname", libc::SYS_setdomainname),
    ("quotactl", libc::SYS_quotactl),
    ("iopl", libc::SYS_iopl),
    ("ioperm", libc::SYS_ioperm),
    ("personality", libc::SYS_personality),
    ("capset", libc::SYS_capset),
    ("seccomp", libc::SYS_seccomp),
    ("vhangup", libc::SYS_vhangup),
    ("shmget", libc::SYS_shmget),
    ("shmat", libc::SYS_shmat),
];
