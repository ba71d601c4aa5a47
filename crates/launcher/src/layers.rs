//! The layers of a sandbox's root file system as detached mounts, and the socket at which its guest listens.
//!
//! Who is root on the host opens them as the owner, with mapped ids. An ordinary user may open mounts only in its own
//! mount namespace: then the first process does it there, before it leaves the host's root.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::device;
use crate::disk::{self, OpenDisk};
use crate::error::{LaunchError, Step};
use crate::spec::{GUEST_DIRECTORY, LaunchSpec};
use crate::sys;

/// Everything that a sandbox's root is made of and that lies on the host.
pub(crate) struct Layers {
    /// Where the guest listens.
    pub(crate) listener: OwnedFd,
    /// Holds all that is written.
    pub(crate) disk: OwnedFd,
    /// The lower layer.
    pub(crate) lower: OwnedFd,
    /// The layer over the lower one, where the specification has one.
    pub(crate) over: Option<OwnedFd>,
    /// The directory of the guest's journal.
    pub(crate) guest: OwnedFd,
    /// As many as the specification has binds.
    pub(crate) binds: Vec<OwnedFd>,
    /// A `/dev` with nodes of its own, where the owner may make some.
    pub(crate) devices: Option<OwnedFd>,
    /// The loop device under the disk; known to who has opened it.
    pub(crate) loop_device: Option<u32>,
}

/// Whose ids the layers show.
#[derive(Clone, Copy)]
pub(crate) enum Ids<'a> {
    /// Those on the disks are the sandbox's; mounts map them to its range.
    Mapped {
        /// The sandbox's user namespace.
        users: BorrowedFd<'a>,
        /// First of its range.
        first_uid: u32,
    },
    /// Those on the disks are the host's: the user's own is 0 inside.
    Own,
}

impl Layers {
    /// Opens everything. The socket belongs to the network namespace of the caller.
    pub(crate) fn open(spec: &LaunchSpec, ids: Ids<'_>) -> Result<Self, LaunchError> {
        let users = match ids {
            Ids::Mapped { users, .. } => Some(users),
            Ids::Own => None,
        };
        let listener = listen(&spec.socket).step(|| format!("listening at {}", spec.socket.display()))?;
        let read_only = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        let layer = |path: &Path| -> Result<OwnedFd, LaunchError> {
            let mount = clone_tree(path)?;
            sys::set_mount_attributes(&mount, read_only, users)
                .step(|| format!("mapping the ids of {}", path.display()))?;
            Ok(mount)
        };
        let lower = layer(&spec.root.lower)?;
        let over = spec.root.over.as_deref().map(layer).transpose()?;
        let mut binds = Vec::new();
        for bind in &spec.root.binds {
            let mount = clone_tree(&bind.source)?;
            // Where the file system cannot map ids the files belong to nobody inside, which is enough to read them.
            sys::set_mount_attributes(&mount, read_only, users)
                .or_else(|_| sys::set_mount_attributes(&mount, read_only, None))
                .step(|| format!("making {} read-only", bind.source.display()))?;
            binds.push(mount);
        }
        let guest = open_guest_directory(spec, ids)?;
        let disk = disk::open(&spec.disk)?;
        if let Some(users) = users {
            sys::set_mount_attributes(&disk.mount, 0, Some(users)).named("mapping the ids of the disk")?;
        }
        let devices = match ids {
            Ids::Mapped { first_uid, .. } => device::own_directory(first_uid)?,
            Ids::Own => None,
        };
        let OpenDisk { mount: disk, loop_device } = disk;
        Ok(Self { listener, disk, lower, over, guest, binds, devices, loop_device })
    }

    /// What is handed over, in the order of [`Layers::received`].
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.listener.as_fd(), self.disk.as_fd(), self.lower.as_fd(), self.guest.as_fd()];
        all.extend(self.over.iter().chain(&self.binds).chain(&self.devices).map(AsFd::as_fd));
        all
    }

    /// What the owner has opened.
    pub(crate) fn received(spec: &LaunchSpec, descriptors: Vec<OwnedFd>) -> Result<Self, LaunchError> {
        let mut descriptors = descriptors.into_iter();
        let mut next = || {
            descriptors.next().ok_or_else(|| io::Error::other("too few descriptors")).named("taking layers")
        };
        let (listener, disk, lower, guest) = (next()?, next()?, next()?, next()?);
        let over = if spec.root.over.is_some() { Some(next()?) } else { None };
        let binds = spec.root.binds.iter().map(|_| next()).collect::<Result<_, _>>()?;
        let devices = next().ok();
        Ok(Self { listener, disk, lower, over, guest, binds, devices, loop_device: None })
    }
}

/// Listens at a path of the host without telling it: whoever is in the sandbox's network sees the address of each socket.
fn listen(path: &Path) -> io::Result<OwnedFd> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let (folder, name) = path.parent().zip(path.file_name()).ok_or_else(missing)?;
    let folder = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(folder)?;
    let address = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok(UnixListener::bind(address)?.into())
}

/// What is mounted below a directory is left out where that is allowed: in the mount namespace of an ordinary user
/// nothing may be uncovered.
pub(crate) fn clone_tree(path: &Path) -> Result<OwnedFd, LaunchError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, path, flags)
        .or_else(|error| match error {
            rustix::io::Errno::INVAL => open_tree(CWD, path, flags | OpenTreeFlags::AT_RECURSIVE),
            other => Err(other),
        })
        .step(|| format!("opening {}", path.display()))
}

/// Ids are never mapped here: what the guest of root's sandbox writes to the host's own file system must not belong to a
/// user of the host.
fn open_guest_directory(spec: &LaunchSpec, ids: Ids<'_>) -> Result<OwnedFd, LaunchError> {
    let path = spec.directory.join(GUEST_DIRECTORY);
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(&path)
        .step(|| format!("opening {}", path.display()))?;
    if let Ids::Mapped { first_uid, .. } = ids {
        fchown(&directory, Some(first_uid), Some(first_uid))
            .step(|| format!("changing the owner of {}", path.display()))?;
    }
    let mount = clone_tree(&path)?;
    let sealed = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    sys::set_mount_attributes(&mount, sealed, None).step(|| format!("sealing {}", path.display()))?;
    Ok(mount)
}
