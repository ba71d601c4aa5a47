//! The calls of Landlock.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Connecting and binding by TCP: no port is ever allowed.
const ALL_OF_TCP: u64 = 0b11;
/// Abstract sockets and signals stay inside.
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

/// Rules that refuse these rights on files, all of TCP, and what leaves the domain.
pub(super) fn make(files: u64) -> io::Result<OwnedFd> {
    let rules = Ruleset { files, network: ALL_OF_TCP, scopes: ALL_SCOPES };
    // SAFETY: the structure has the kernel's layout and outlives the call.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, size_of::<Ruleset>(), 0)
    })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Allows rights on a file, or on all below a directory.
pub(super) fn allow(rules: &OwnedFd, file: &OwnedFd, rights: u64) -> io::Result<()> {
    let rule = PathBeneath { rights, parent: file.as_raw_fd() };
    // SAFETY: the structure has the kernel's layout and outlives the call.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), PATH_BENEATH, &raw const rule, 0)
    })
    .map(drop)
}

/// Puts the calling thread under the rules.
pub(super) fn restrict_thread(rules: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain calls with numbers.
    check(unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0)
    })
    .map(drop)
}
