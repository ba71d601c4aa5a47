//! The disk of a sandbox as a detached mount: no other process sees it, and it disappears with its last user.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, open_tree,
};

use crate::error::{LaunchError, Step};
use crate::spec::Disk;
use crate::sys;

const LOOP_MAJOR: u32 = 7;
/// Another process may take the device that the kernel has just offered. A hundred launchers that start at once need
/// several rounds.
const ATTEMPTS: u32 = 1000;

/// A disk that is not mounted anywhere yet.
pub struct OpenDisk {
    pub mount: OwnedFd,
    pub loop_device: Option<u32>,
}

pub fn open(disk: &Disk) -> Result<OpenDisk, LaunchError> {
    match disk {
        Disk::Image(file) => open_image(file),
        Disk::Directory(directory) => {
            let mount =
                open_tree(CWD, directory, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
                    .step(|| format!("opening {}", directory.display()))?;
            sys::set_mount_attributes(&mount, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV, None)
                .named("taking set-user-id and devices from the disk")?;
            Ok(OpenDisk { mount, loop_device: None })
        }
    }
}

fn open_image(path: &Path) -> Result<OpenDisk, LaunchError> {
    let image = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .step(|| format!("opening {}", path.display()))?;
    // The device stays open until it is mounted; otherwise it would detach from the file.
    let (number, _device) = attach(&image)?;
    let mount = mount_ext4(&format!("/dev/loop{number}"))?;
    Ok(OpenDisk { mount, loop_device: Some(number) })
}

/// Whether a file backs a loop device. The kernel reports the file by its path with symlinks resolved.
#[must_use]
pub fn is_under(device: u32, image: &Path) -> bool {
    let backing_file = fs::read_to_string(format!("/sys/block/loop{device}/loop/backing_file"));
    backing_file.is_ok_and(|file| Path::new(file.trim_end()) == image)
}

fn attach(image: &File) -> Result<(u32, File), LaunchError> {
    let control = open_device("/dev/loop-control").named("opening /dev/loop-control")?;
    for _ in 0..ATTEMPTS {
        let number = sys::free_loop_device(&control).named("finding a free loop device")?;
        let path = format!("/dev/loop{number}");
        let device = match open_device(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_node(&path, number)?,
            other => other.step(|| format!("opening {path}"))?,
        };
        match sys::configure_loop_device(&device, image) {
            Ok(()) => return Ok((number, device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::yield_now(),
            Err(error) => return Err(LaunchError::new(format!("putting the disk under {path}"), error)),
        }
    }
    Err(LaunchError::new("finding a free loop device", io::Error::from(io::ErrorKind::ResourceBusy)))
}

fn open_device(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Opens the device, creating its node if needed: in a container nothing creates nodes for new devices.
fn make_node(path: &str, number: u32) -> Result<File, LaunchError> {
    match mknodat(CWD, path, FileType::BlockDevice, Mode::from_raw_mode(0o600), makedev(LOOP_MAJOR, number)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(LaunchError::new(format!("making {path}"), error)),
    }
    open_device(path).step(|| format!("opening {path}"))
}

fn mount_ext4(device: &str) -> Result<OwnedFd, LaunchError> {
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).named("opening file system ext4")?;
    let configure = || -> rustix::io::Result<()> {
        fsconfig_set_string(context.as_fd(), "source", device)?;
        // Without this, the kernel zeroes the whole inode table in the background, which fills the sparse file.
        fsconfig_set_flag(context.as_fd(), "noinit_itable")?;
        // The disk does not outlive a crash of the host, so waiting for the host's disk is pointless.
        fsconfig_set_flag(context.as_fd(), "nobarrier")?;
        // The kernel must not build on metadata that it failed to write. `disk_sync` detects lost data.
        fsconfig_set_string(context.as_fd(), "errors", "remount-ro")?;
        fsconfig_create(context.as_fd())
    };
    configure().step(|| format!("mounting {device}"))?;
    fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOATIME,
    )
    .step(|| format!("mounting {device}"))
}
