//! System calls of seccomp user notification.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

// Constants from linux/bpf_common.h, linux/seccomp.h and linux/audit.h.
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const RETURN_USER_NOTIF: u32 = 0x7fc0_0000;
const RETURN_ALLOW: u32 = 0x7fff_0000;
const NEW_LISTENER: libc::c_ulong = 1 << 3;
const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
const ADD_DESCRIPTOR: libc::Ioctl = 0x4018_2103_u32 as libc::Ioctl;
const ADDFD_FLAG_SETFD: u32 = 1;

/// A notification: a process is blocked in `connect`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectNotification {
    id: u64,
    /// The thread that called `connect`.
    pub(crate) thread: u32,
    /// The file descriptor of its socket.
    pub(crate) descriptor: u32,
}

#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

#[repr(C)]
struct Addition {
    id: u64,
    flags: u32,
    source: u32,
    target: u32,
    target_flags: u32,
}

/// Makes the kernel suspend every `connect` of this thread and its descendants and notify the guest. Returns the
/// listener for the notifications.
///
/// The filters installed earlier already refuse system calls of foreign architectures.
pub(crate) fn notify_on_connect() -> io::Result<OwnedFd> {
    let number = u32::try_from(libc::SYS_connect).map_err(io::Error::other)?;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        instruction(LOAD_WORD, 0, 0, 0),
        instruction(JUMP_IF_EQUAL, 0, 1, number),
        instruction(RETURN, 0, 0, RETURN_USER_NOTIF),
        instruction(RETURN, 0, 0, RETURN_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the call, and the kernel checks and copies it.
    let fd = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, NEW_LISTENER, &raw const filter)
    };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it. The kernel sets close-on-exec
    // on it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Receives a pending notification. Polls first, because the ioctl blocks if nothing is pending, even on a
/// nonblocking descriptor. It does not block if the notifying process has gone since.
pub(crate) fn receive(listener: &OwnedFd) -> io::Result<ConnectNotification> {
    let mut watched = [rustix::event::PollFd::new(listener, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec::default();
    rustix::event::poll(&mut watched, Some(&now))?;
    if !watched[0].revents().contains(rustix::event::PollFlags::IN) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let mut notification = Notification::default();
    // SAFETY: the structure has the kernel's layout, is zeroed as the kernel requires, and outlives the call.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut notification) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = u32::try_from(notification.arguments[0] & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    Ok(ConnectNotification { id: notification.id, thread: notification.pid, descriptor })
}

/// Replaces the socket of the notifying process with `socket`.
pub(crate) fn replace(
    listener: &OwnedFd,
    question: &ConnectNotification,
    socket: &impl AsRawFd,
    close_on_exec: bool,
) -> io::Result<()> {
    let addition = Addition {
        id: question.id,
        flags: ADDFD_FLAG_SETFD,
        source: socket.as_raw_fd().unsigned_abs(),
        target: question.descriptor,
        target_flags: if close_on_exec { libc::O_CLOEXEC.unsigned_abs() } else { 0 },
    };
    // SAFETY: the structure has the kernel's layout and outlives the call.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), ADD_DESCRIPTOR, &raw const addition) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Resumes the process: `connect` succeeds, or fails with this errno.
pub(crate) fn reply(
    listener: &OwnedFd,
    question: &ConnectNotification,
    answer: Result<(), i32>,
) -> io::Result<()> {
    let error = answer.err().map_or(0, |errno| -errno);
    let response = Response { id: question.id, value: 0, error, flags: 0 };
    // SAFETY: the structure has the kernel's layout and outlives the call.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw const response) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
