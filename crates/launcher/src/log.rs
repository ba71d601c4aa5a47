//! What the guest says for people to read, and what is said of a launcher that fails. The file is made with the first
//! word: most sandboxes never have one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::spec::LOG_FILE;
use crate::sys;

/// The most bytes of the guest's own messages that are kept.
const LIMIT: usize = 1 << 20;

/// The log of one sandbox.
pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    left: usize,
}

impl Log {
    /// A log in the sandbox's directory.
    pub(crate) fn of(directory: &Path) -> Self {
        Self { path: directory.join(LOG_FILE), file: None, left: LIMIT }
    }

    /// Adds to it, up to a limit. A full disk must not stop the guest from talking, so nothing is said when it fails.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(self.left);
        self.left -= kept;
        if kept == 0 {
            return;
        }
        if self.file.is_none() {
            self.file = OpenOptions::new().create(true).append(true).open(&self.path).ok();
        }
        if let Some(file) = &mut self.file {
            let _ = file.write_all(&bytes[..kept]);
        }
    }

    /// All that this program says for people to read goes there, from its beginning on.
    pub(crate) fn take_complaints(&self) -> io::Result<()> {
        sys::place_descriptor(&OpenOptions::new().create(true).append(true).open(&self.path)?, 2)
    }

    /// What is said of a failure in this program itself goes there too.
    pub(crate) fn take_panics(&self) {
        let path = self.path.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let file = OpenOptions::new().create(true).append(true).open(&path);
            let _ = file.and_then(|mut file| writeln!(file, "{panic}"));
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_made_with_its_first_word_and_has_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::of(folder.path());
        log.add(b"");
        assert!(!folder.path().join(LOG_FILE).exists());
        log.add(b"first ");
        for _ in 0..20 {
            log.add(&[b'x'; 100_000]);
        }
        let written = std::fs::read(folder.path().join(LOG_FILE)).unwrap();
        assert_eq!(written.len(), LIMIT);
        assert!(written.starts_with(b"first x"));
    }
}
