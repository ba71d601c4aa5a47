//! Copies a directory of this host into an image that is being created. Stays on its file system and skips the folder
//! of images, which contains the copy itself.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::unpack::{Entry, Kind, Unpacker};

/// What was skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// Mount points; they are created as empty directories.
    pub(crate) mounts: u64,
    /// The folder of images was skipped.
    pub(crate) has_images: bool,
}

impl Skipped {
    /// Warnings for the user.
    pub(crate) fn warnings(self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.mounts > 0 {
            warnings.push(format!(
                "{} directories have another file system mounted on them, which was left out",
                self.mounts
            ));
        }
        if self.has_images {
            warnings.push("the folder of images itself was left out".to_owned());
        }
        warnings
    }
}

/// Copies a directory with the same rules as for untrusted archives. Hard links become separate files.
pub(crate) fn copy_directory(source: &Path, images: &Path, unpacker: &mut Unpacker) -> io::Result<Skipped> {
    let device = metadata_of(source, fs::metadata)?.dev();
    let images = identity(&metadata_of(images, fs::metadata)?);
    let mut copy = Copy { source, device, images, left_out: Skipped::default() };
    copy.descend(Path::new(""), unpacker)?;
    Ok(copy.left_out)
}

struct Copy<'a> {
    source: &'a Path,
    device: u64,
    images: (u64, u64),
    left_out: Skipped,
}

impl Copy<'_> {
    fn descend(&mut self, below: &Path, unpacker: &mut Unpacker) -> io::Result<()> {
        let folder = self.source.join(below);
        let names = fs::read_dir(&folder)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>());
        let mut names = names.map_err(|error| naming(&folder, &error))?;
        names.sort();
        for name in names {
            self.copy(&below.join(name), unpacker)?;
        }
        Ok(())
    }

    fn copy(&mut self, path: &Path, unpacker: &mut Unpacker) -> io::Result<()> {
        let full = self.source.join(path);
        let metadata = metadata_of(&full, fs::symlink_metadata)?;
        if metadata.is_dir() && identity(&metadata) == self.images {
            self.left_out.has_images = true;
            return Ok(());
        }
        let kind = if metadata.is_dir() {
            Kind::Directory
        } else if metadata.is_symlink() {
            Kind::Symlink(fs::read_link(&full).map_err(|error| naming(&full, &error))?)
        } else if metadata.is_file() {
            Kind::File { bytes: metadata.len() }
        } else {
            Kind::Special
        };
        let entry = Entry {
            path: path.to_owned(),
            mode: metadata.mode(),
            uid: metadata.uid().into(),
            gid: metadata.gid().into(),
            modified_s: metadata.mtime(),
            kind,
        };
        let mut content: Box<dyn Read> = if metadata.is_file() {
            Box::new(File::open(&full).map_err(|error| naming(&full, &error))?)
        } else {
            Box::new(io::empty())
        };
        unpacker.unpack_entry(&entry, &mut content)?;
        if !metadata.is_dir() {
            return Ok(());
        }
        if metadata.dev() != self.device {
            self.left_out.mounts += 1;
            return Ok(());
        }
        self.descend(path, unpacker)
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn metadata_of(path: &Path, look: impl Fn(PathBuf) -> io::Result<Metadata>) -> io::Result<Metadata> {
    look(path.to_owned()).map_err(|error| naming(path, &error))
}

fn naming(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
