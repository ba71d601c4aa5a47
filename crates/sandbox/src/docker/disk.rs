//! The directories of a sandbox on the server's host, for an engine that sees them.
//!
//! The disk is mounted on the host only while the container starts. After that the container alone holds the mount.
//! When its processes are gone, so are the mount and the loop device, no matter who ended the processes.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use launcher::spec::Disk;
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use super::layout::{AGENT_ID, PRIVATE_MODE, RELAY_ID, STATE_MODE};
use super::{Inner, home};
use crate::error::{SandboxError, failed};
use crate::host::directories::make_private_directory;
use crate::host::disk::DISK_FILE;
use crate::limits::Plan;
use crate::spec::SandboxId;

/// Directories on the disk: name, path in the container, mode.
pub(super) const DIRECTORIES: [(&str, &str, u32); 5] = [
    ("workspace", "/workspace", 0o755),
    ("workspace", "/app", 0o755),
    (home::HOME_DIRECTORY, "/home/agent", 0o755),
    ("tmp", "/tmp", 0o1777),
    ("var-tmp", "/var/tmp", 0o1777),
];

/// Creates the directories and mounts the disk.
pub(super) fn prepare(inner: &Inner, id: SandboxId, plan: &Plan, archive: &Path) -> Result<(), SandboxError> {
    let directory = inner.layout.sandbox(id);
    make_private_directory(&directory)?;
    let private = inner.layout.private(id);
    let state = inner.layout.link_directory(id);
    make(&private, RELAY_ID, RELAY_ID, PRIVATE_MODE).map_err(|source| failed("making", &private, source))?;
    make(&state, AGENT_ID, RELAY_ID, STATE_MODE).map_err(|source| failed("making", &state, source))?;
    let root = inner.layout.disk(id);
    make_private_directory(&root)?;
    if let Some(mib) = plan.disk_mib {
        let file = directory.join(DISK_FILE);
        inner.disks.take(mib, &file)?;
        mount(&file, &root)?;
    }
    for (name, _, mode) in DIRECTORIES {
        let place = root.join(name);
        make(&place, AGENT_ID, AGENT_ID, mode).map_err(|source| failed("making", &place, source))?;
    }
    home::unpack_home(archive, &root).map_err(|source| failed("filling the home on", &root, source))
}

fn make(path: &Path, user: u32, group: u32, mode: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    chown(path, Some(user), Some(group))?;
    // After `chown`, which clears some mode bits.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn mount(file: &Path, root: &Path) -> Result<(), SandboxError> {
    let disk = launcher::disk::open(&Disk::Image(file.to_path_buf()))
        .map_err(|error| SandboxError::Io { doing: error.step, source: error.source })?;
    move_mount(disk.mount.as_fd(), "", CWD, root, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| failed("mounting", root, error.into()))
}

/// Unmounts the disk on the host. A container that uses the disk keeps its own mount.
pub(super) fn release(root: &Path) -> Result<(), SandboxError> {
    loop {
        match unmount(root, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not mounted, or does not exist.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            // A user who may not unmount cannot have mounted it.
            Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => return Ok(()),
            Err(error) => return Err(failed("unmounting", root, error.into())),
        }
    }
}
