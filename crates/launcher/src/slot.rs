//! A slot of user ids that no other sandbox uses at the same time. Each is a file in a directory that all servers of a
//! host share; the sandbox that has locked the file has the slot.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::error::{LaunchError, Step};
use crate::spec::Slots;

/// A held slot; it is released on drop or when the process exits.
pub(crate) struct Slot {
    _lock: File,
    pub(crate) number: u32,
}

/// Takes a free slot, preferably the preferred one.
pub(crate) fn take(slots: &Slots) -> Result<Slot, LaunchError> {
    make(&slots.directory).step(|| format!("making {}", slots.directory.display()))?;
    for offset in 0..slots.count {
        let number = (slots.preferred + offset) % slots.count;
        let path = slots.directory.join(number.to_string());
        if let Some(lock) = lock(&path).step(|| format!("locking {}", path.display()))? {
            return Ok(Slot { _lock: lock, number });
        }
    }
    Err(LaunchError::new(
        format!("taking one of {} parts of the user ids", slots.count),
        io::Error::new(io::ErrorKind::ResourceBusy, "all are in use"),
    ))
}

/// Removes the files of slots that no sandbox uses, and the directory if it is empty then.
pub fn remove_unused(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // The lock is held until the file is gone, so that no sandbox takes it in between.
        if let Ok(Some(_lock)) = lock(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Locks the file of a slot; `None` if another process has locked it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let open = || OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    loop {
        let file = match open() {
            // Another process has removed the empty directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(path.parent().unwrap_or(Path::new("/")))?;
                continue;
            }
            other => other?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_at(&file, path) => return Ok(Some(file)),
            // The file was removed before it was locked, so another process may lock a new one.
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(opened), Ok(found)) => identity(opened) == identity(found),
        _ => false,
    }
}

fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sandboxes_never_share_a_slot() {
        let directory = std::env::temp_dir().join(format!("caisson-slots-{}", std::process::id()));
        let slots = Slots { directory: directory.clone(), first_uid: 100_000, count: 2, preferred: 1 };
        let first = take(&slots).unwrap();
        let second = take(&slots).unwrap();
        assert_eq!(first.number, 1);
        assert_eq!(second.number, 0);
        assert!(take(&slots).is_err(), "no third slot");
        drop(first);
        assert!(take(&slots).is_ok(), "free again");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn only_unused_slots_are_removed() {
        let directory = std::env::temp_dir().join(format!("caisson-unused-slots-{}", std::process::id()));
        let slots = Slots { directory: directory.clone(), first_uid: 100_000, count: 2, preferred: 0 };
        let used = take(&slots).unwrap();
        drop(take(&slots).unwrap());
        remove_unused(&directory);
        let left: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["0"]);
        drop(used);
        remove_unused(&directory);
        assert!(!directory.exists());
        // The directory is made again when it is needed.
        assert_eq!(take(&slots).unwrap().number, 0);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_removed_file_does_not_count_as_the_slot() {
        let directory = std::env::temp_dir().join(format!("caisson-replaced-slot-{}", std::process::id()));
        make(&directory).unwrap();
        let path = directory.join("0");
        let old = File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&old, &path));
        let locked = lock(&path).unwrap().unwrap();
        assert!(is_at(&locked, &path) && lock(&path).unwrap().is_none());
        fs::remove_dir_all(directory).unwrap();
    }
}
