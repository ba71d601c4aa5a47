//! Maps directory handles to paths, to name events in a directory that has since been removed. The map is bounded by
//! bytes: the sandbox chooses how long its paths are, and the map is host memory.

use std::collections::HashMap;

/// The maximum bytes of handles and paths.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// The overhead of an entry in addition to its bytes.
const ENTRY_BYTES: usize = 96;

#[derive(Default)]
pub(super) struct Directories {
    paths: HashMap<Vec<u8>, String>,
    bytes: usize,
}

impl Directories {
    /// Remembers the current path of a directory.
    pub(super) fn keep(&mut self, handle: &[u8], path: &str) {
        let cost = handle.len() + path.len() + ENTRY_BYTES;
        if self.bytes + cost > MAX_BYTES {
            *self = Self::default();
        }
        self.bytes += cost;
        if let Some(before) = self.paths.insert(handle.to_vec(), path.to_owned()) {
            self.bytes -= handle.len() + before.len() + ENTRY_BYTES;
        }
    }

    /// The last known path of a directory.
    pub(super) fn find(&self, handle: &[u8]) -> Option<&str> {
        self.paths.get(handle).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_directories_are_bounded_by_bytes() {
        let mut directories = Directories::default();
        let path = "n".repeat(4000);
        for number in 0..20_000_u32 {
            directories.keep(&number.to_ne_bytes(), &path);
            directories.keep(&number.to_ne_bytes(), &path);
            assert!(directories.bytes <= MAX_BYTES);
            assert_eq!(directories.find(&number.to_ne_bytes()), Some(path.as_str()), "the newest is known");
        }
        let kept: usize = directories.paths.iter().map(|(handle, path)| handle.len() + path.len()).sum();
        assert!(kept <= directories.bytes, "{kept}");
        assert_eq!(directories.find(b"unknown"), None);
    }
}
