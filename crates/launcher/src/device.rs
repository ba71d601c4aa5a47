//! `/dev` of a sandbox: a small tmpfs with a handful of harmless devices of the host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, symlinkat};
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use crate::error::{LaunchError, Step};
use crate::mounts::{Place, place, tmpfs, virtual_file_system};
use crate::spec::Users;

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// A `/dev` that is not mounted yet.
pub(crate) struct Devices {
    directory: OwnedFd,
    terminals: OwnedFd,
    shared_memory: OwnedFd,
    nodes: Vec<(&'static str, OwnedFd)>,
    /// The directory below the terminals: nothing else leads to it.
    empty: OwnedFd,
}

impl Devices {
    /// An empty directory, once `/dev` is mounted: before Linux 6.15 a part of what is not mounted cannot be mounted elsewhere.
    pub(crate) fn empty(&self) -> BorrowedFd<'_> {
        self.empty.as_fd()
    }
}

/// Prepares `/dev`. Needs the host's `/dev`, so it comes before the old root is left.
pub(crate) fn prepare(shared_memory_bytes: u64, users: &Users) -> Result<Devices, LaunchError> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let directory = tmpfs(&[("size", "64k"), ("mode", "0755")], flags)?;
    let mut options = vec![("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")];
    // The group of terminals; an ordinary user's sandbox has no such id.
    if let Users::Ranges(_) = users {
        options.push(("gid", "5"));
    }
    let terminals = virtual_file_system("devpts", &options, flags)?;
    let size = shared_memory_bytes.to_string();
    let shared_memory =
        tmpfs(&[("size", &size), ("mode", "1777")], flags | MountAttrFlags::MOUNT_ATTR_NODEV)?;
    for name in ["pts", "shm"] {
        mkdirat(&directory, name, Mode::from_raw_mode(0o755)).step(|| format!("making /dev/{name}"))?;
    }
    let empty = openat(&directory, "pts", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .named("opening the place of /dev/pts")?;
    for (name, target) in LINKS {
        symlinkat(target, &directory, name).step(|| format!("making /dev/{name}"))?;
    }
    let mut nodes = Vec::new();
    for name in DEVICES {
        let file = openat(
            &directory,
            name,
            OFlags::CREATE | OFlags::CLOEXEC | OFlags::WRONLY,
            Mode::from_raw_mode(0o666),
        );
        file.step(|| format!("making /dev/{name}"))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let node = open_tree(CWD, format!("/dev/{name}"), flags).step(|| format!("opening /dev/{name}"))?;
        nodes.push((name, node));
    }
    Ok(Devices { directory, terminals, shared_memory, nodes, empty })
}

/// Mounts `/dev` in the new root.
pub(crate) fn mount(root: BorrowedFd<'_>, devices: &Devices) -> Result<(), LaunchError> {
    place(devices.directory.as_fd(), root, "dev", Place::MadeIfMissing)?;
    place(devices.terminals.as_fd(), root, "dev/pts", Place::Present)?;
    place(devices.shared_memory.as_fd(), root, "dev/shm", Place::Present)?;
    for (name, node) in &devices.nodes {
        place(node.as_fd(), root, &format!("dev/{name}"), Place::Present)?;
    }
    Ok(())
}
