//! The layers of a sandbox's root file system as detached mounts, and the socket that its guest listens on.
//!
//! If the launcher is root on the host, the owner opens the layers, with id-mapped mounts. An unprivileged user may
//! open mounts only in its own mount namespace, so there the first process opens them, before it leaves the host's
//! root.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::detached_mount::clone_tree;
use crate::device;
use crate::disk::{self, OpenDisk};
use crate::error::{LaunchError, Step};
use crate::spec::{GUEST_DIRECTORY, LaunchSpec};
use crate::sys;

/// Everything on the host that makes up a sandbox's root.
pub(crate) struct Layers {
    /// The socket that the guest listens on.
    pub(crate) listener: OwnedFd,
    /// Holds everything that is written.
    pub(crate) disk: OwnedFd,
    pub(crate) lower: OwnedFd,
    /// The optional layer over the lower one.
    pub(crate) over: Option<OwnedFd>,
    /// The directory of the guest's journal.
    pub(crate) guest: OwnedFd,
    /// One for each bind in the specification.
    pub(crate) binds: Vec<OwnedFd>,
    /// A `/dev` with its own device nodes, if the owner may create some.
    pub(crate) devices: Option<OwnedFd>,
    /// The loop device under the disk; known only to the process that opened it.
    pub(crate) loop_device: Option<u32>,
}

/// How ids on disk relate to ids inside the sandbox.
#[derive(Clone, Copy)]
pub(crate) enum Ids<'a> {
    /// Ids on disk are those seen inside; id-mapped mounts map them to the sandbox's range.
    Mapped {
        /// The sandbox's user namespace.
        users: BorrowedFd<'a>,
        /// The first uid of its range.
        first_uid: u32,
    },
    /// Ids on disk are host ids: the user's own id is 0 inside.
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
            // If the file system does not support id mapping, the files belong to `nobody` inside, which is enough to
            // read them.
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
            Ids::Mapped { first_uid, .. } => device::create_dev_with_nodes(first_uid)?,
            Ids::Own => None,
        };
        let OpenDisk { mount: disk, loop_device } = disk;
        Ok(Self { listener, disk, lower, over, guest, binds, devices, loop_device })
    }

    /// The descriptors to pass on, in the order that [`Layers::received`] expects.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.listener.as_fd(), self.disk.as_fd(), self.lower.as_fd(), self.guest.as_fd()];
        all.extend(self.over.iter().chain(&self.binds).chain(&self.devices).map(AsFd::as_fd));
        all
    }

    /// Rebuilds the layers from the descriptors that the owner has sent.
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

/// Listens at a host path without revealing it: every process in the sandbox's network namespace can see the
/// addresses of its sockets.
fn listen(path: &Path) -> io::Result<OwnedFd> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let (folder, name) = path.parent().zip(path.file_name()).ok_or_else(missing)?;
    let folder = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(folder)?;
    let address = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok(UnixListener::bind(address)?.into())
}

/// This mount is never id-mapped: what the guest of a root sandbox writes to the host's file system must not belong
/// to a host user.
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
