//! A slot of user ids that no other sandbox uses at the same time.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

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
            Ok(()) => return Ok(Slot { _lock: lock, number }),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(LaunchError::new(format!("locking {}", path.display()), error)),
        }
    }
    Err(LaunchError::new(
        format!("taking one of {} parts of the user ids", slots.count),
        io::Error::new(io::ErrorKind::ResourceBusy, "all are in use"),
    ))
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
}
