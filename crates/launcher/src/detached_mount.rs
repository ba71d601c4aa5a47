//! Detached mounts: creates them, clones existing mounts, and attaches them through descriptors.
//!
//! No path leads to a detached mount until it is attached.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::error::{LaunchError, Step};

/// Whether the mount point must exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountPoint {
    MustExist,
    CreateIfMissing,
}

/// Creates a detached mount of a kernel file system.
pub(crate) fn virtual_file_system(
    kind: &'static str,
    options: &[(&str, &str)],
    flags: MountAttrFlags,
) -> Result<OwnedFd, LaunchError> {
    let make = || -> rustix::io::Result<OwnedFd> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            if value.is_empty() {
                fsconfig_set_flag(context.as_fd(), *key)?;
            } else {
                fsconfig_set_string(context.as_fd(), *key, *value)?;
            }
        }
        fsconfig_create(context.as_fd())?;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
    };
    make().step(|| format!("making a file system of kind {kind}"))
}

pub(crate) fn tmpfs(options: &[(&str, &str)], flags: MountAttrFlags) -> Result<OwnedFd, LaunchError> {
    virtual_file_system("tmpfs", options, flags)
}

/// Attaches a detached mount at a path below the new root. Refuses symlinks on the way.
pub(crate) fn place(
    mount: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    path: &str,
    wanted: MountPoint,
) -> Result<(), LaunchError> {
    let target = match open_below(root, path) {
        Err(rustix::io::Errno::NOENT) if wanted == MountPoint::CreateIfMissing => {
            mkdirat(root, path, Mode::from_raw_mode(0o755)).step(|| format!("making /{path}"))?;
            open_below(root, path)
        }
        other => other,
    }
    .step(|| format!("finding the place of /{path}"))?;
    move_mount(
        mount,
        "",
        target.as_fd(),
        "",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
    .step(|| format!("mounting /{path}"))
}

/// Opens a path below the new root. Refuses symlinks on the way.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Clones the mount of a path below an open directory; an empty path means the directory itself.
pub(crate) fn clone_mount(directory: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, path, flags)
}

/// Clones a mount without the mounts below it, if that is allowed: in the mount namespace of an unprivileged user,
/// the kernel forbids uncovering directories.
pub(crate) fn clone_tree(path: &Path) -> Result<OwnedFd, LaunchError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, path, flags)
        .or_else(|error| match error {
            rustix::io::Errno::INVAL => open_tree(CWD, path, flags | OpenTreeFlags::AT_RECURSIVE),
            other => Err(other),
        })
        .step(|| format!("opening {}", path.display()))
}

/// Mounts at a path of the namespace during setup.
pub(crate) fn move_to_path(mount: BorrowedFd<'_>, path: &str) -> Result<(), LaunchError> {
    move_mount(mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step(|| format!("mounting {path} for the time of the set-up"))
}
