//! A range of user ids that no other sandbox of this host has at the same time.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FlockOperation, flock};

use crate::error::{LaunchError, Step};
use crate::spec::{Slots, UIDS_PER_SANDBOX};

/// A held range; free again when this is dropped or the process ends.
pub(crate) struct Slot {
    _lock: File,
    /// First user id of the range.
    pub(crate) first_uid: u32,
}

/// Takes a free range, the preferred one if possible.
pub(crate) fn take(slots: &Slots) -> Result<Slot, LaunchError> {
    fs::create_dir_all(&slots.directory).step(|| format!("making {}", slots.directory.display()))?;
    for offset in 0..slots.count {
        let number = (slots.preferred + offset) % slots.count;
        let path = slots.directory.join(number.to_string());
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .step(|| format!("opening {}", path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                return Ok(Slot { _lock: lock, first_uid: slots.first_uid + number * UIDS_PER_SANDBOX });
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(LaunchError::new(format!("locking {}", path.display()), error)),
        }
    }
    Err(LaunchError::new(
        format!("taking one of {} ranges of user ids", slots.count),
        io::Error::new(io::ErrorKind::ResourceBusy, "all are in use"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sandboxes_never_share_a_range() {
        let directory = std::env::temp_dir().join(format!("caisson-slots-{}", std::process::id()));
        let slots = Slots { directory: directory.clone(), first_uid: 100_000, count: 2, preferred: 1 };
        let first = take(&slots).unwrap();
        let second = take(&slots).unwrap();
        assert_eq!(first.first_uid, 100_000 + UIDS_PER_SANDBOX);
        assert_eq!(second.first_uid, 100_000);
        assert!(take(&slots).is_err(), "no third range");
        drop(first);
        assert!(take(&slots).is_ok(), "free again");
        fs::remove_dir_all(directory).unwrap();
    }
}
