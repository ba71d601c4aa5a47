//! `output.zip`, the artifact of a job.

use std::io::{Cursor, Read as _};

/// An opened `output.zip`.
pub struct Archive {
    zip: zip::ZipArchive<Cursor<Vec<u8>>>,
}

impl Archive {
    /// Opens the archive and reads every entry once, which verifies the checksums.
    #[must_use]
    #[track_caller]
    pub fn open(bytes: Vec<u8>) -> Self {
        let mut archive =
            Self { zip: zip::ZipArchive::new(Cursor::new(bytes)).expect("output.zip is no zip") };
        for name in archive.names() {
            archive.read(&name);
        }
        archive
    }

    /// The names of all entries, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.zip.file_names().map(|name| name.expect("a name").into_owned()).collect();
        names.sort();
        names
    }

    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.names().iter().any(|entry| entry == name)
    }

    /// Reads one entry; panics if it is missing or damaged.
    #[track_caller]
    pub fn read(&mut self, name: &str) -> Vec<u8> {
        let names = self.names();
        let mut entry =
            self.zip.by_name(name).unwrap_or_else(|error| panic!("{name}: {error}; there are {names:?}"));
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        bytes
    }

    /// Reads one entry as UTF-8 text.
    #[track_caller]
    pub fn text(&mut self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}
