//! Directories of a server: private to its user, and spread over the disk.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags, open};

use crate::error::{SandboxError, failed};

/// How often a parent that another process removes is created again.
const MAX_ATTEMPTS: u32 = 100;

/// Creates a directory and its parents, accessible only to the owner. Another process may remove an empty parent
/// meanwhile, because servers share parents.
pub(crate) fn make_private_directory(path: &Path) -> Result<(), SandboxError> {
    let make = || fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    let is_final = |made: &io::Result<()>| match made {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(()) => true,
    };
    let made = (1..MAX_ATTEMPTS).map(|_| make()).find(is_final).unwrap_or_else(make);
    made.map_err(|source| failed("making", path, source))
}

/// Asks ext4 to place the subdirectories of a directory far apart; does nothing on other file systems.
///
/// Before ext4 creates an inode, it looks at every inode that was deleted nearby within the last seconds. Sandboxes
/// come and go by the hundred, and creating files next to them took a third of a job's CPU time.
pub fn spread_children(directory: &Path) {
    let spread = || -> rustix::io::Result<()> {
        let directory = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        ioctl_setflags(&directory, ioctl_getflags(&directory)? | IFlags::TOPDIR)
    };
    // Ignored: affects only speed.
    let _ = spread();
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const EXT4: i64 = 0xef53;

    #[test]
    fn only_ext4_directories_are_changed() {
        let directory = tempfile::tempdir().unwrap();
        spread_children(directory.path());
        let opened = File::open(directory.path()).unwrap();
        let is_ext4 = rustix::fs::fstatfs(&opened).unwrap().f_type == EXT4;
        let is_asked = ioctl_getflags(&opened).is_ok_and(|flags| flags.contains(IFlags::TOPDIR));
        assert_eq!(is_asked, is_ext4);
        spread_children(&directory.path().join("missing"));
    }
}
