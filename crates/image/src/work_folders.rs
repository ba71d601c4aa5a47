//! Leftovers of builds and imports. A build resumes from its leftovers; a killed import never does.

use std::fs::{self, File};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use crate::build_root::remove_tree;
use crate::error::ImageError;
use crate::store::{ImageName, ImageStore, WORK_NAME, size_of};

/// The work folder of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    pub name: ImageName,
    /// Size on disk, as far as it can be determined.
    pub bytes: u64,
    /// Whether a build or import is running.
    pub is_going_on: bool,
}

impl ImageStore {
    /// All unfinished builds and imports, sorted by name.
    #[must_use]
    pub fn unfinished(&self) -> Vec<Unfinished> {
        let Ok(entries) = fs::read_dir(self.folder()) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| {
            entry.file_name().to_str()?.strip_prefix(WORK_NAME)?.parse::<ImageName>().ok()
        });
        let mut found: Vec<Unfinished> = names
            .map(|name| {
                let folder = self.unfinished_folder(&name);
                let is_going_on = is_held(&folder);
                Unfinished { bytes: size_of(&folder).unwrap_or(0), is_going_on, name }
            })
            .collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }

    /// Removes the work folder of an image; returns whether there was one.
    pub(crate) fn remove_unfinished(&self, name: &ImageName) -> Result<bool, ImageError> {
        let folder = self.unfinished_folder(name);
        if !folder.is_dir() {
            return Ok(false);
        }
        // The lock is held until the folder is gone, so that no build starts in it.
        let (folder, _lock) = self.work_folder(name)?;
        remove_tree(&folder)?;
        Ok(true)
    }

    fn unfinished_folder(&self, name: &ImageName) -> PathBuf {
        self.folder().join(format!("{WORK_NAME}{name}"))
    }
}

/// Whether a build or import holds the lock of a folder. A folder without a lock file was abandoned before the file
/// was created.
fn is_held(folder: &std::path::Path) -> bool {
    let Ok(file) = File::open(folder.join("lock")) else { return false };
    matches!(flock(&file, FlockOperation::NonBlockingLockExclusive), Err(rustix::io::Errno::WOULDBLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_folders_are_listed_and_removed_unless_locked() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::new(folder.path());
        let name: ImageName = "half".parse().unwrap();
        let (work, lock) = store.work_folder(&name).unwrap();
        fs::write(work.join("content"), vec![1; 100_000]).unwrap();
        assert!(store.unfinished()[0].is_going_on);
        assert!(matches!(store.remove(&name), Err(ImageError::Locked(_))));
        drop(lock);
        let found = store.unfinished();
        assert_eq!((&found[0].name, found[0].is_going_on), (&name, false));
        assert!(found[0].bytes >= 100_000, "{found:?}");
        assert!(store.list().unwrap().is_empty());
        store.remove(&name).unwrap();
        assert!(store.unfinished().is_empty());
        assert!(matches!(store.remove(&name), Err(ImageError::NoImage { .. })));
    }
}
