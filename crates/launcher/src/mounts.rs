//! Assembles the root file system of a sandbox inside its own mount namespace.
//!
//! Everything is prepared as detached mounts and attached through descriptors below the new root, so no symlink in an
//! image can redirect a mount. Nothing is mounted in the host's namespace.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chownat, openat, unlinkat};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{chdir, fchdir, pivot_root};

use crate::detached_mount::{
    MountPoint, clone_mount, move_to_path, open_below, place, tmpfs, virtual_file_system,
};
use crate::device::{self, Devices};
use crate::error::{LaunchError, Step};
use crate::hidden::{HIDDEN_DIRECTORIES, HIDDEN_FILES, READ_ONLY};
use crate::layers::Layers;
use crate::spec::{AGENT_ID, LaunchSpec, Users};
use crate::sys;

/// A directory that every host has. The disk is mounted over it while the root is built, in this namespace only.
pub(crate) const STAGE: &str = "/tmp";
/// The agent's home directory; an image may lack it.
const AGENT_HOME: &str = "home/agent";
/// The size of `/run`.
const RUN_BYTES: &str = "16m";
const RUN_INODES: &str = "4096";
/// Identifies a boot of the host; each sandbox gets its own value.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
/// The kernel returns a different UUID on each read.
const RANDOM_UUID: &str = "/proc/sys/kernel/random/uuid";
const BOOT_ID_FILE: &str = ".boot_id";
/// Mount attributes of the directory that covers hidden directories.
const EMPTY_ATTRIBUTES: u64 =
    libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
/// Limits of the sandbox's user namespace in `/proc`, and the host's limit per user. All root sandboxes count as one
/// user, so each gets a quarter of it.
const WATCH_LIMITS: [(&str, &str); 2] = [
    ("sys/user/max_inotify_instances", "/proc/sys/fs/inotify/max_user_instances"),
    ("sys/user/max_inotify_watches", "/proc/sys/fs/inotify/max_user_watches"),
];
const WATCH_LIMIT_DIVISOR: u64 = 4;

/// Detached mounts that do not depend on the owner.
pub(crate) struct Parts {
    devices: Devices,
    processes: OwnedFd,
    run: OwnedFd,
}

/// The lower layers of the overlay.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LowerLayers {
    /// `lower` alone.
    One,
    /// `root` on top of `lower`.
    Two,
}

/// Prepares what does not depend on the owner, while the owner prepares the rest.
pub(crate) fn prepare(spec: &LaunchSpec) -> Result<Parts, LaunchError> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .named("cutting the mounts off from the host's")?;
    let sealed = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let processes = virtual_file_system("proc", &[], sealed)?;
    limit_watches(processes.as_fd()).named("limiting inotify")?;
    let run = tmpfs(
        &[("size", RUN_BYTES), ("nr_inodes", RUN_INODES), ("mode", "0755")],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )?;
    write_boot_id(run.as_fd()).named("making a boot id")?;
    let devices = device::prepare(spec.limits.memory_bytes / 2, &spec.users)?;
    Ok(Parts { devices, processes, run })
}

/// Writes through the sandbox's own `/proc`: if the host is itself a container, its `/proc` is read-only.
fn limit_watches(processes: BorrowedFd<'_>) -> io::Result<()> {
    for (file, of_host) in WATCH_LIMITS {
        let most: u64 = fs::read_to_string(of_host)?.trim().parse().map_err(io::Error::other)?;
        let file = openat(processes, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, (most / WATCH_LIMIT_DIVISOR).max(1).to_string().as_bytes())?;
    }
    Ok(())
}

fn write_boot_id(directory: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(directory, BOOT_ID_FILE, flags, Mode::from_raw_mode(0o444))?;
    rustix::io::write(file, &fs::read(RANDOM_UUID)?)?;
    Ok(())
}

/// Builds the root file system and makes it this process's root. Afterwards the host's root is unreachable.
pub(crate) fn enter(spec: &LaunchSpec, layers: &Layers, parts: &Parts) -> Result<(), LaunchError> {
    move_to_path(layers.disk.as_fd(), STAGE)?;
    move_to_path(layers.lower.as_fd(), &format!("{STAGE}/lower"))?;
    if let Some(over) = &layers.over {
        // Mounted where the root itself goes later, on top of it: the disk has no other spare directory.
        move_to_path(over.as_fd(), &format!("{STAGE}/root"))?;
    }
    let root = overlay(if layers.over.is_some() { LowerLayers::Two } else { LowerLayers::One })?;
    move_to_path(root.as_fd(), &format!("{STAGE}/root"))?;
    let root = root.as_fd();
    if let Users::Lent { .. } = spec.users {
        chown_to_agent(layers.disk.as_fd(), "workspace")?;
        chown_to_agent(root, AGENT_HOME)?;
    }
    for (bind, mount) in spec.root.binds.iter().zip(&layers.binds) {
        place(mount.as_fd(), root, &bind.target.to_string_lossy(), MountPoint::MustExist)?;
    }
    for path in ["workspace", "app"] {
        let mount = clone_mount(layers.disk.as_fd(), "workspace").named("opening the workspace")?;
        place(mount.as_fd(), root, path, MountPoint::CreateIfMissing)?;
    }
    let empty = device::mount(root, &parts.devices, layers.devices.as_ref())?;
    place(parts.processes.as_fd(), root, "proc", MountPoint::CreateIfMissing)?;
    place(parts.run.as_fd(), root, "run", MountPoint::CreateIfMissing)?;
    seal_proc(root, empty.as_fd(), parts.run.as_fd())?;
    leave_old_root(root)
}

/// Without id-mapped mounts, no file on the host can belong to the agent before the sandbox has its user ids.
fn chown_to_agent(root: BorrowedFd<'_>, path: &str) -> Result<(), LaunchError> {
    let Some(place) = open_if_exists(root, path)? else { return Ok(()) };
    let (user, group) = (Uid::from_raw(AGENT_ID), Gid::from_raw(AGENT_ID));
    chownat(place, "", Some(user), Some(group), AtFlags::EMPTY_PATH)
        .step(|| format!("giving /{path} to the agent"))
}

/// Creates the overlay root of a sandbox; writes go to the disk mounted at `STAGE`.
pub(crate) fn overlay(lowers: LowerLayers) -> Result<OwnedFd, LaunchError> {
    let (upper, work) = (format!("{STAGE}/upper"), format!("{STAGE}/work"));
    let lower = match lowers {
        LowerLayers::One => format!("{STAGE}/lower"),
        LowerLayers::Two => format!("{STAGE}/root:{STAGE}/lower"),
    };
    virtual_file_system(
        "overlay",
        &[("lowerdir", &lower), ("upperdir", &upper), ("workdir", &work), ("userxattr", "")],
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOATIME,
    )
}

fn seal_proc(root: BorrowedFd<'_>, empty: BorrowedFd<'_>, run: BorrowedFd<'_>) -> Result<(), LaunchError> {
    // Must come first: these mounts would cover what is hidden below them.
    for path in READ_ONLY {
        let Some(place) = open_if_exists(root, path)? else { continue };
        let mount = clone_mount(place.as_fd(), "").step(|| format!("opening /{path}"))?;
        sys::set_mount_attributes(&mount, libc::MOUNT_ATTR_RDONLY, None)
            .step(|| format!("making /{path} read-only"))?;
        self::place(mount.as_fd(), root, path, MountPoint::MustExist)?;
    }
    let null = open_below(root, "dev/null").named("opening /dev/null")?;
    for path in HIDDEN_FILES {
        hide(root, path, || Ok(clone_mount(null.as_fd(), "")?))?;
    }
    for path in HIDDEN_DIRECTORIES {
        hide(root, path, || {
            let empty = clone_mount(empty, "")?;
            sys::set_mount_attributes(&empty, EMPTY_ATTRIBUTES, None)?;
            Ok(empty)
        })?;
    }
    hide(root, BOOT_ID, || {
        let file = openat(run, BOOT_ID_FILE, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let cover = clone_mount(file.as_fd(), "")?;
        sys::set_mount_attributes(&cover, libc::MOUNT_ATTR_RDONLY, None)?;
        Ok(cover)
    })?;
    unlinkat(run, BOOT_ID_FILE, AtFlags::empty()).named("removing the boot id from /run")
}

fn open_if_exists(root: BorrowedFd<'_>, path: &str) -> Result<Option<OwnedFd>, LaunchError> {
    match open_below(root, path) {
        Ok(place) => Ok(Some(place)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(LaunchError::new(format!("opening /{path}"), error)),
    }
}

fn hide(
    root: BorrowedFd<'_>,
    path: &str,
    cover: impl FnOnce() -> io::Result<OwnedFd>,
) -> Result<(), LaunchError> {
    if open_if_exists(root, path)?.is_none() {
        return Ok(());
    }
    let cover = cover().step(|| format!("hiding /{path}"))?;
    place(cover.as_fd(), root, path, MountPoint::MustExist)
}

/// Both arguments of `pivot_root` are the new root: the old root ends up mounted on top of it and is then unmounted.
fn leave_old_root(root: BorrowedFd<'_>) -> Result<(), LaunchError> {
    let change = || -> io::Result<()> {
        fchdir(root)?;
        pivot_root(".", ".")?;
        unmount(".", UnmountFlags::DETACH)?;
        chdir("/")?;
        Ok(())
    };
    change().named("leaving the host's root")
}
