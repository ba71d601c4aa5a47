//! The log of one sandbox: output of the guest and errors of its launcher. The file is created on the first write,
//! because most sandboxes never log anything.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::spec::LOG_FILE;
use crate::sys;

/// The maximum size of the guest's log output in bytes.
const LIMIT: usize = 1 << 20;

pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    left: usize,
}

impl Log {
    pub(crate) fn of(directory: &Path) -> Self {
        Self { path: directory.join(LOG_FILE), file: None, left: LIMIT }
    }

    /// Appends bytes, up to the limit. Write errors are ignored because a full disk must not block the guest.
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

    /// Redirects this process's standard error to the log.
    pub(crate) fn redirect_stderr(&self) -> io::Result<()> {
        sys::place_descriptor(&OpenOptions::new().create(true).append(true).open(&self.path)?, 2)
    }

    /// Writes panics of this process to the log.
    pub(crate) fn redirect_panics(&self) {
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
    fn the_log_is_created_on_first_write_and_is_bounded() {
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
