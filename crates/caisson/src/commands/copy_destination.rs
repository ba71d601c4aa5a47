//! Writes files copied out of a sandbox. The sandbox is not trusted: what it reports as a folder now it may have
//! reported as a symlink before, so nothing is ever written through a symlink within the copied tree.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use futures::StreamExt;
use reqwest::Response;

use super::transfer::Transfer;

#[derive(Debug, Default)]
pub(crate) struct CopyDestination {
    copied: usize,
    /// Created at the end, when no more writes could follow them.
    links: Vec<(PathBuf, String)>,
}

impl CopyDestination {
    /// Creates a folder unless it exists.
    pub(crate) fn folder(&self, path: &Path) -> Result<()> {
        let making = || format!("creating the folder {}", path.display());
        remove_link(path).with_context(making)?;
        fs::create_dir_all(path).with_context(making)
    }

    /// Writes a file, replacing an existing one.
    pub(crate) async fn file(
        &mut self,
        response: Response,
        path: &Path,
        mode: Option<u32>,
        transfer: &Transfer,
    ) -> Result<()> {
        let writing = || format!("writing {}", path.display());
        let mut file = create(path).with_context(writing)?;
        let mut body = response.bytes_stream();
        while let Some(bytes) = body.next().await {
            let bytes = bytes.context("reading the file")?;
            file.write_all(&bytes).with_context(writing)?;
            transfer.add(bytes.len());
        }
        if let Some(mode) = mode {
            file.set_permissions(fs::Permissions::from_mode(mode & 0o777)).with_context(writing)?;
        }
        self.copied += 1;
        Ok(())
    }

    /// Records a symlink.
    pub(crate) fn link(&mut self, path: PathBuf, target: &str) {
        self.links.push((path, target.to_owned()));
    }

    /// Creates the symlinks; returns the number of files and links.
    pub(crate) fn finish(self) -> Result<usize> {
        for (path, target) in &self.links {
            let make = || -> io::Result<()> {
                match fs::symlink_metadata(path) {
                    // Keeps an existing folder: it may hold the user's files.
                    Ok(found) if !found.is_dir() => fs::remove_file(path)?,
                    _ => {}
                }
                symlink(target, path)
            };
            make().with_context(|| format!("creating the symlink {}", path.display()))?;
        }
        Ok(self.copied + self.links.len())
    }
}

fn create(path: &Path) -> io::Result<fs::File> {
    remove_link(path)?;
    let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(no_link).open(path)
}

fn remove_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlinks_are_replaced_and_never_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (outside, inside) = (folder.path().join("outside"), folder.path().join("inside"));
        fs::create_dir_all(outside.join("folder")).unwrap();
        fs::write(outside.join("file"), "mine").unwrap();
        fs::create_dir(&inside).unwrap();
        symlink(outside.join("file"), inside.join("file")).unwrap();
        symlink(outside.join("folder"), inside.join("folder")).unwrap();
        create(&inside.join("file")).unwrap().write_all(b"theirs").unwrap();
        CopyDestination::default().folder(&inside.join("folder")).unwrap();
        fs::write(inside.join("folder/new"), "theirs").unwrap();
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(inside.join("file")).unwrap(), "theirs");
        assert_eq!(fs::read_dir(outside.join("folder")).unwrap().count(), 0);
    }

    #[test]
    fn symlinks_are_created_last_and_do_not_replace_folders() {
        let folder = tempfile::tempdir().unwrap();
        let mut arrival = CopyDestination::default();
        fs::create_dir(folder.path().join("kept")).unwrap();
        fs::write(folder.path().join("old"), "x").unwrap();
        arrival.link(folder.path().join("old"), "/nowhere");
        assert!(folder.path().join("old").is_file());
        arrival.link(folder.path().join("kept"), "/nowhere");
        let error = format!("{:#}", arrival.finish().unwrap_err());
        assert!(error.contains("kept"), "{error}");
        assert_eq!(fs::read_link(folder.path().join("old")).unwrap(), Path::new("/nowhere"));
    }
}
