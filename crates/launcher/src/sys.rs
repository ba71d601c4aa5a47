//! System calls for which rustix has no safe wrappers, and access to this process's own memory.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Which of the two processes this is after [`clone_into_namespaces`].
pub(crate) enum Cloned {
    /// The calling process.
    Owner {
        pid: i32,
        /// A handle that never refers to another process.
        pidfd: OwnedFd,
    },
    /// The new process, the first in its namespaces.
    Child,
}

/// Which namespaces to create.
#[derive(Clone, Copy)]
pub(crate) enum Namespaces {
    /// Every kind except cgroup.
    All,
    /// Every kind except cgroup and network: the new process stays in its owner's network namespace.
    AllButNetwork,
    /// Only the user namespace.
    User,
}

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// The value does not fit the type that libc uses for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks into new namespaces, and into a v2 cgroup if one is given.
pub(crate) fn clone_into_namespaces(kinds: Namespaces, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid clone_args.
    let mut arguments: libc::clone_args = unsafe { zeroed() };
    let namespaces = match kinds {
        Namespaces::All => NAMESPACES,
        Namespaces::AllButNetwork => NAMESPACES & !libc::CLONE_NEWNET,
        Namespaces::User => libc::CLONE_NEWUSER,
    };
    arguments.flags = (namespaces | libc::CLONE_PIDFD) as u64;
    arguments.pidfd = (&raw mut pidfd) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: no CLONE_VM, so the child has its own copy of the memory; this process has a single thread, so no other
    // thread can hold a lock at this moment.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel has just given us this descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cloned::Owner { pid: pid as i32, pidfd })
}

/// Forks without any new namespace; returns `None` in the new process.
pub(crate) fn fork() -> io::Result<Option<rustix::process::Pid>> {
    // SAFETY: this process has a single thread, so no other thread can hold a lock at this moment.
    let pid = check(i64::from(unsafe { libc::fork() }))?;
    Ok(rustix::process::Pid::from_raw(pid as i32))
}

/// How exited child processes are reaped.
#[derive(Clone, Copy)]
pub(crate) enum ChildReaping {
    /// The kernel reaps them.
    ByKernel,
    /// This process reaps them.
    ByParent,
}

/// Sets how exited children are reaped. Child processes inherit the setting.
pub(crate) fn set_child_reaping(by: ChildReaping) -> io::Result<()> {
    let action = match by {
        ChildReaping::ByKernel => libc::SIG_IGN,
        ChildReaping::ByParent => libc::SIG_DFL,
    };
    // SAFETY: no handler of this program is involved.
    match unsafe { libc::signal(libc::SIGCHLD, action) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Changes a detached mount and all mounts below it: sets attributes, and optionally maps ids to a user namespace.
pub(crate) fn set_mount_attributes(
    mount: impl AsFd,
    set: u64,
    users: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // SAFETY: all-zero is a valid mount_attr.
    let mut attributes: libc::mount_attr = unsafe { zeroed() };
    attributes.attr_set = set;
    if let Some(users) = users {
        attributes.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attributes.userns_fd = users.as_raw_fd() as u64;
    }
    // SAFETY: the path is a NUL-terminated string and the structure outlives the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The number of a loop device that is unused at this moment.
pub(crate) fn free_loop_device(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: this request takes no argument.
    let number = check(i64::from(unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE) }))?;
    u32::try_from(number).map_err(io::Error::other)
}

/// Attaches a file to a loop device, which detaches when its last user is gone.
pub(crate) fn configure_loop_device(device: impl AsFd, file: impl AsFd) -> io::Result<()> {
    // SAFETY: all-zero is a valid loop_config.
    let mut config: LoopConfig = unsafe { zeroed() };
    config.fd = file.as_fd().as_raw_fd() as u32;
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    // SAFETY: the structure has the kernel's layout and outlives the call.
    check(i64::from(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE, &raw const config) }))?;
    Ok(())
}

pub(crate) fn bring_up_loopback(socket: impl AsFd) -> io::Result<()> {
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the structure outlives the call.
    check(i64::from(unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request)
    }))?;
    Ok(())
}

/// Moves this thread into a new network namespace.
pub(crate) fn enter_new_network() -> io::Result<()> {
    // SAFETY: a new network changes nothing that Rust relies on.
    check(i64::from(unsafe { libc::unshare(libc::CLONE_NEWNET) }))?;
    Ok(())
}

/// Enters a new cgroup namespace, whose root is the cgroup of this process.
pub(crate) fn enter_cgroup_namespace() -> io::Result<()> {
    // SAFETY: a new cgroup namespace changes nothing that Rust relies on.
    check(i64::from(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }))?;
    Ok(())
}

/// Installs a seccomp program: instructions of eight bytes each in native byte order.
pub(crate) fn install_filter(program: &[u8]) -> io::Result<()> {
    let instructions: Vec<libc::sock_filter> = program
        .chunks_exact(8)
        .map(|b| libc::sock_filter {
            code: u16::from_ne_bytes([b[0], b[1]]),
            jt: b[2],
            jf: b[3],
            k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
        })
        .collect();
    let length = u16::try_from(instructions.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog { len: length, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: the program outlives the call, and the kernel checks and copies it.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) })?;
    Ok(())
}

/// The Landlock ABI version of this kernel.
pub(crate) fn landlock_version() -> io::Result<i32> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no structure.
    let version = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION)
    })?;
    i32::try_from(version).map_err(io::Error::other)
}

/// Sets close-on-exec on every descriptor from `first` on.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: the call closes nothing now, only on exec.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) })?;
    Ok(())
}

/// Duplicates a descriptor to a fixed number; the copy survives exec.
pub(crate) fn place_descriptor(from: impl AsFd, to: RawFd) -> io::Result<()> {
    // SAFETY: callers pass only the standard descriptors and numbers that were reserved for this.
    check(i64::from(unsafe { libc::dup3(from.as_fd().as_raw_fd(), to, 0) }))?;
    Ok(())
}

/// Replaces this process by an open executable. Returns only on failure.
pub(crate) fn execute(program: impl AsFd, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both vectors are NULL-terminated arrays of NUL-terminated strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_fd().as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// Blocks SIGTERM and SIGINT and returns a descriptor that becomes readable when one arrives.
pub(crate) fn termination_descriptor() -> io::Result<OwnedFd> {
    signal_descriptor(&[libc::SIGTERM, libc::SIGINT])
}

/// The same for SIGURG, which requests the complete file access log. Owners of earlier versions ignore it.
pub(crate) fn request_descriptor() -> io::Result<OwnedFd> {
    signal_descriptor(&[libc::SIGURG])
}

/// The same for SIGWINCH, which requests a sync of the disk. Owners of earlier versions ignore it.
pub(crate) fn sync_descriptor() -> io::Result<OwnedFd> {
    signal_descriptor(&[libc::SIGWINCH])
}

fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used; the descriptor is ours.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        check(i64::from(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())))?;
        let fd = check(i64::from(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC)))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

unsafe extern "C" {
    /// The first byte of the program, defined by the linker.
    static __executable_start: u8;
    /// The end of the program's code, defined by the linker.
    static etext: u8;
}

/// Lets the kernel reclaim the memory of the program's own code; pages that are needed again are read again. A
/// launcher does almost nothing after startup, and there is one for each sandbox.
pub(crate) fn release_own_code() {
    const PAGE: usize = 4096;
    let start = (&raw const __executable_start).addr().next_multiple_of(PAGE);
    let end = (&raw const etext).addr() / PAGE * PAGE;
    // SAFETY: these pages are a private mapping of the program's file that nothing has written to, so dropping them
    // loses nothing. If the call fails, the memory merely stays in use.
    unsafe {
        libc::madvise(start as *mut libc::c_void, end.saturating_sub(start), libc::MADV_DONTNEED);
    }
}

/// The memory of this process's arguments after the program name, which other processes see as its command line.
pub(crate) struct ProcessTitle {
    title_area: Range<usize>,
}

impl ProcessTitle {
    /// Locates the arguments. `name` is the program name as it was started.
    pub(crate) fn after(name: &[u8]) -> Option<Self> {
        let all = crate::process::own_arguments()?;
        let start = all.start + name.len() + 1;
        (start < all.end).then_some(Self { title_area: start..all.end })
    }

    /// Replaces the arguments with a text, if it fits.
    pub(crate) fn show(&self, text: &[u8]) {
        let title_area = self.title_area.len();
        if text.len() >= title_area {
            return;
        }
        let start = self.title_area.start as *mut u8;
        // SAFETY: the kernel reported that these bytes are the arguments of this process, which has a single thread.
        // They are writable, and the standard library only hands out copies of them.
        unsafe {
            start.write_bytes(0, title_area);
            start.copy_from_nonoverlapping(text.as_ptr(), text.len());
        }
    }
}

/// Exits a process that was created by [`clone_into_namespaces`] without running any of its owner's cleanup.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: the call only ends the process.
    unsafe { libc::_exit(code) }
}
