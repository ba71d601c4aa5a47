//! What directories are called, by their handles: to name what happens in one that is gone. Bounded by its bytes: a sandbox chooses how
//! long its paths are, and this is memory of the host.

use std::collections::HashMap;

/// The most bytes of handles and paths.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// What an entry costs beside its bytes.
const ENTRY_BYTES: usize = 96;

/// Paths of directories.
#[derive(Default)]
pub(super) struct Directories {
    paths: HashMap<Vec<u8>, String>,
    bytes: usize,
}

impl Directories {
    /// Remembers what a directory is called now.
    pub(super) fn keep(&mut self, handle: &[u8], path: &str) {
        let cost = handle.len() + path.len() + ENTRY_BYTES;
        if self.bytes + cost > MOST_BYTES {
            *self = Self::default();
        }
        self.bytes += cost;
        if let Some(before) = self.paths.insert(handle.to_vec(), path.to_owned()) {
            self.bytes -= handle.len() + before.len() + ENTRY_BYTES;
        }
    }

    /// What it was called when something was last told of it.
    pub(super) fn find(&self, handle: &[u8]) -> Option<&str> {
        self.paths.get(handle).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_bytes_are_remembered_than_may_however_long_the_paths() {
        let mut directories = Directories::default();
        let path = "n".repeat(4000);
        for number in 0..20_000_u32 {
            directories.keep(&number.to_ne_bytes(), &path);
            directories.keep(&number.to_ne_bytes(), &path);
            assert!(directories.bytes <= MOST_BYTES);
            assert_eq!(directories.find(&number.to_ne_bytes()), Some(path.as_str()), "the newest is known");
        }
        let kept: usize = directories.paths.iter().map(|(handle, path)| handle.len() + path.len()).sum();
        assert!(kept <= directories.bytes, "{kept}");
        assert_eq!(directories.find(b"unknown"), None);
    }
}
