//! Tries what every sandbox needs. Some hosts allow any user to create namespaces but then refuse to mount anything
//! in them.

use std::os::fd::AsFd;

use rustix::mount::{FsOpenFlags, MountAttrFlags, MountPropagationFlags, fsopen, mount_change};

use crate::detached_mount::{clone_tree, move_to_path, tmpfs, virtual_file_system};
use crate::error::{LaunchError, Step};
use crate::mounts::{self, LowerLayers, STAGE};
use crate::removal::in_user_namespace;
use crate::spec::{DISK_DIRECTORIES, Probe, Users};
use crate::sys::Namespaces;

/// Whether the kernel supports a file system. Many kernels have it as a module, which is loaded when root asks for
/// it.
#[must_use]
pub fn has_file_system(kind: &str) -> bool {
    let is_listed = || {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        known.lines().any(|line| line.split_whitespace().next_back() == Some(kind))
    };
    is_listed() || (fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).is_ok() && is_listed())
}

/// Creates namespaces with mapped ids, and mounts in them what a sandbox mounts. Leaves nothing behind.
///
/// # Errors
/// The step that the host refuses.
pub fn probe(probe: &Probe) -> Result<(), LaunchError> {
    for name in DISK_DIRECTORIES {
        let directory = probe.directory.join(name);
        std::fs::create_dir_all(&directory).step(|| format!("making {}", directory.display()))?;
    }
    in_user_namespace(Namespaces::All, &probe.users, || {
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .named("cutting the mounts off from the host's")?;
        tmpfs(&[("size", "4k")], MountAttrFlags::empty())?;
        virtual_file_system("proc", &[], MountAttrFlags::empty())?;
        if let Users::Ranges(_) = probe.users {
            // The layers of root sandboxes are opened outside the namespace, with privileges that this process does
            // not have.
            return Ok(());
        }
        let disk = clone_tree(&probe.directory)?;
        move_to_path(disk.as_fd(), STAGE)?;
        mounts::overlay(LowerLayers::One).map(drop)
    })
}
