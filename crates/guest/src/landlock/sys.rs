//! Landlock system calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// TCP connect and bind. No port is ever allowed.
const ALL_OF_TCP: u64 = 0b11;
/// Abstract sockets and signals, which are confined to the domain.
const ALL_SCOPES: u64 = 0b11;
const PATH_BENEATH: libc::c_int = 1;

#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scopes: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    rights: u64,
    parent: RawFd,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Creates a ruleset that denies these rights on files, all TCP, and abstract sockets and signals across the domain
/// boundary.
pub(super) fn make(files: u64) -> io::Result<OwnedFd> {
    let rules = Ruleset { files, network: ALL_OF_TCP, scopes: ALL_SCOPES };
    // SAFETY: the structure has the kernel's layout and outlives the call.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, size_of::<Ruleset>(), 0)
    })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Allows rights on a file, or on everything below a directory.
pub(super) fn allow(rules: &OwnedFd, file: &OwnedFd, rights: u64) -> io::Result<()> {
    let rule = PathBeneath { rights, parent: file.as_raw_fd() };
    // SAFETY: the structure has the kernel's layout and outlives the call.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), PATH_BENEATH, &raw const rule, 0)
    })
    .map(drop)
}

/// Applies the ruleset to the calling thread.
pub(super) fn restrict_thread(rules: &OwnedFd) -> io::Result<()> {
    // SAFETY: both calls take only integers.
    check(unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0)
    })
    .map(drop)
}
