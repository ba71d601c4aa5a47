//! `/dev` of a sandbox: a small tmpfs with a handful of harmless devices.
//!
//! If the owner may create device nodes, which requires real root on the host, the sandbox gets its own nodes: locks
//! and watches on a shared node would be visible to everyone who uses it. Otherwise the host's nodes are
//! bind-mounted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Gid, Mode, OFlags, Uid, chmodat, chownat, makedev, mkdirat, mknodat, openat,
    symlinkat,
};
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use crate::detached_mount::{MountPoint, place, tmpfs, virtual_file_system};
use crate::error::{LaunchError, Step};
use crate::spec::Users;

const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// The maximum number of pseudo-terminals per sandbox. All sandboxes together can have 3,072, unless `kernel.pty` is
/// changed.
const MAX_TERMINALS: &str = "64";
/// A tmpfs gets one inode per this many bytes of capacity, and at least `MIN_INODES`.
const BYTES_PER_INODE: u64 = 16 << 10;
const MIN_INODES: u64 = 1024;
const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// File systems to mount below `/dev`, still detached.
pub(crate) struct Devices {
    terminals: OwnedFd,
    shared_memory: OwnedFd,
}

/// Creates the file systems to mount below `/dev`.
pub(crate) fn prepare(shared_memory_bytes: u64, users: &Users) -> Result<Devices, LaunchError> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mut options =
        vec![("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)];
    // The tty group; the sandbox of an unprivileged user has no such id.
    if let Users::Ranges(_) = users {
        options.push(("gid", "5"));
    }
    let terminals = virtual_file_system("devpts", &options, flags)?;
    let size = shared_memory_bytes.to_string();
    let inodes = (shared_memory_bytes / BYTES_PER_INODE).max(MIN_INODES).to_string();
    let shared_memory = tmpfs(
        &[("size", &size), ("nr_inodes", &inodes), ("mode", "1777")],
        flags | MountAttrFlags::MOUNT_ATTR_NODEV,
    )?;
    Ok(Devices { terminals, shared_memory })
}

/// Creates a `/dev` with its own device nodes; `None` if the host does not allow `mknod`. `owner` is user 0 of the
/// sandbox.
pub(crate) fn create_dev_with_nodes(owner: u32) -> Result<Option<OwnedFd>, LaunchError> {
    let directory = directory()?;
    let (user, group) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)));
    let make = |name: &str, device: Dev| -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(&directory, name, FileType::CharacterDevice, mode, device)?;
        // Sets the mode regardless of the umask.
        chmodat(&directory, name, mode, AtFlags::empty())?;
        chownat(&directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
    };
    for (name, major, minor) in DEVICES {
        match make(name, makedev(major, minor)) {
            // This process runs in a container, or as root of a user namespace.
            Err(rustix::io::Errno::PERM) => return Ok(None),
            other => other.step(|| format!("making /dev/{name}"))?,
        }
    }
    chownat(&directory, "", user, group, AtFlags::EMPTY_PATH).named("giving /dev to the sandbox")?;
    Ok(Some(directory))
}

/// A `/dev` directory without device nodes.
fn directory() -> Result<OwnedFd, LaunchError> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let directory = tmpfs(&[("size", "64k"), ("nr_inodes", "64"), ("mode", "0755")], flags)?;
    for name in ["pts", "shm"] {
        mkdirat(&directory, name, Mode::from_raw_mode(0o755)).step(|| format!("making /dev/{name}"))?;
    }
    for (name, target) in LINKS {
        symlinkat(target, &directory, name).step(|| format!("making /dev/{name}"))?;
    }
    Ok(directory)
}

/// Mounts `/dev` in the new root: either the one with its own nodes or one that bind-mounts the host's nodes. Returns
/// an empty directory that no other path leads to.
pub(crate) fn mount(
    root: BorrowedFd<'_>,
    devices: &Devices,
    own: Option<&OwnedFd>,
) -> Result<OwnedFd, LaunchError> {
    let made;
    let directory = match own {
        Some(own) => own,
        None => {
            made = directory()?;
            &made
        }
    };
    place(directory.as_fd(), root, "dev", MountPoint::CreateIfMissing)?;
    // Must follow the mount: before Linux 6.15, part of a detached mount cannot be mounted elsewhere.
    let empty = openat(directory, "pts", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .named("opening the place of /dev/pts")?;
    place(devices.terminals.as_fd(), root, "dev/pts", MountPoint::MustExist)?;
    place(devices.shared_memory.as_fd(), root, "dev/shm", MountPoint::MustExist)?;
    if own.is_none() {
        bind_host_nodes(root, directory)?;
    }
    Ok(empty)
}

fn bind_host_nodes(root: BorrowedFd<'_>, directory: &OwnedFd) -> Result<(), LaunchError> {
    for (name, _, _) in DEVICES {
        let flags = OFlags::CREATE | OFlags::CLOEXEC | OFlags::WRONLY;
        openat(directory, name, flags, Mode::from_raw_mode(0o666)).step(|| format!("making /dev/{name}"))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let node = open_tree(CWD, format!("/dev/{name}"), flags).step(|| format!("opening /dev/{name}"))?;
        place(node.as_fd(), root, &format!("dev/{name}"), MountPoint::MustExist)?;
    }
    Ok(())
}
