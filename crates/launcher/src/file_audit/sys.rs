//! fanotify system calls, for which rustix has no safe wrappers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What a fanotify group reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportMode {
    /// A descriptor of the file.
    Descriptors,
    /// The handle of the directory and the name in it.
    Names,
}

/// Creates a non-blocking fanotify group.
pub(super) fn group(report_mode: ReportMode) -> io::Result<OwnedFd> {
    let report = match report_mode {
        ReportMode::Descriptors => 0,
        ReportMode::Names => libc::FAN_REPORT_DIR_FID | libc::FAN_REPORT_NAME,
    };
    let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | report;
    let event_flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_NOATIME) as u32;
    // SAFETY: no pointers are passed; the result is a new descriptor or an error.
    let group = unsafe { libc::fanotify_init(flags, event_flags) };
    if group < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(group) })
}

/// Adds a mark for the whole file system that contains a directory.
pub(super) fn mark(group: &OwnedFd, mask: u64, directory: &OwnedFd) -> io::Result<()> {
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    let result =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, directory.as_raw_fd(), c".".as_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a directory by its handle: type and bytes as the kernel reported them.
pub(super) fn open_handle(disk: &OwnedFd, kind: i32, bytes: &[u8]) -> io::Result<OwnedFd> {
    // `struct file_handle` has a header of two integers, followed by the handle's bytes.
    let mut handle = Vec::with_capacity(8 + bytes.len());
    handle.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(0).to_ne_bytes());
    handle.extend_from_slice(&kind.to_ne_bytes());
    handle.extend_from_slice(bytes);
    // The structure must be aligned.
    let mut aligned = vec![0u64; handle.len().div_ceil(8)];
    for (place, eight) in aligned.iter_mut().zip(handle.chunks(8)) {
        let mut whole = [0; 8];
        whole[..eight.len()].copy_from_slice(eight);
        *place = u64::from_ne_bytes(whole);
    }
    // SAFETY: the memory holds a handle of the stated length, is aligned, and outlives the call.
    let fd = unsafe {
        libc::open_by_handle_at(disk.as_raw_fd(), aligned.as_mut_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes ownership of a descriptor that came with an event.
pub(super) fn take_descriptor(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel opened the descriptor for the reader of the event, which calls this once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
