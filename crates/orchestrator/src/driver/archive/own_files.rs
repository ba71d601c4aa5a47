//! The folder `.caisson/` of a workspace. It is not part of the zip: notebooks and recordings become files of the
//! job's folder, like the manifest.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use tar::{Entry, EntryType};

use super::manifest::Manifest;
use crate::data_folder::result_files::{self, CONTEXT, MEMORY};

const OWN_FOLDER: &str = ".caisson";
/// Maximum number of files that are taken from the folder.
const MAX_TAKEN: usize = 64;
/// Reason for leaving out: something else put the file into our folder.
const IN_OWN_FOLDER: &str = "caisson_folder";
/// Copies for the agent; the job's folder has the originals.
const COPIES: [&str; 2] = [CONTEXT, MEMORY];

/// Whether a path in a workspace is that of our folder, or below it.
pub(crate) fn is_own(path: &str) -> bool {
    path.strip_prefix(OWN_FOLDER).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Files that are written beside a zip. They have temporary names until the zip is complete.
pub(super) struct OwnFiles {
    folder: PathBuf,
    written: BTreeSet<String>,
}

impl OwnFiles {
    /// Files in the folder of `zip`.
    pub(super) fn beside(zip: &Path) -> Self {
        let folder = zip.parent().unwrap_or(Path::new(".")).to_owned();
        Self { folder, written: BTreeSet::new() }
    }

    /// Takes an entry of our folder in the workspace. Lists it as left out if nobody would find it elsewhere.
    pub(super) fn take(
        &mut self,
        path: String,
        entry: &mut Entry<'_, impl Read>,
        manifest: &mut Manifest,
    ) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let name = path.strip_prefix(OWN_FOLDER).unwrap_or_default().trim_start_matches('/').to_owned();
        let is_file = matches!(kind, EntryType::Regular | EntryType::Continuous);
        if is_file && self.has_room_for(&name) && result_files::is_recorded_in_workspace(&name) {
            return self.write(&name, |out| io::copy(entry, out).map(drop));
        }
        let is_known = kind == EntryType::Directory || COPIES.contains(&name.as_str());
        if !is_known {
            manifest.leave_out(path, IN_OWN_FOLDER);
        }
        Ok(())
    }

    fn has_room_for(&self, name: &str) -> bool {
        self.written.len() < MAX_TAKEN || self.written.contains(name)
    }

    /// Writes a file under its temporary name.
    pub(super) fn write(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        // Noted first, so that a file that is only partly written is removed, too.
        self.written.insert(name.to_owned());
        let mut out = BufWriter::new(File::create(self.partial(name))?);
        write(&mut out)?;
        // Dropping the writer would ignore the error of a full disk.
        out.flush()?;
        out.get_ref().sync_all()
    }

    /// Gives all files their final names. Removes what an earlier attempt took from a workspace that was lost since.
    pub(super) fn publish(&self) -> io::Result<()> {
        for stale in result_files::list(&self.folder) {
            let is_taken = result_files::is_recorded_in_workspace(&stale.name);
            if is_taken && !self.written.contains(&stale.name) {
                fs::remove_file(self.folder.join(stale.name))?;
            }
        }
        for name in &self.written {
            fs::rename(self.partial(name), self.folder.join(name))?;
        }
        Ok(())
    }

    /// Removes the files that have no final name yet.
    pub(super) fn discard(&self) {
        for name in &self.written {
            let _ = fs::remove_file(self.partial(name));
        }
    }

    fn partial(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.partial"))
    }
}
