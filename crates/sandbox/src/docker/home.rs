//! Unpacks the agent's home directory of an image onto a disk. The server does this as root, so it does not trust the
//! archive.

use std::fs;
use std::io;
use std::path::Path;

use tar::EntryType;

/// The agent's home directory on a disk.
pub(super) const HOME_DIRECTORY: &str = "agent";

/// Fills the home directory on a disk with the content that the image has for it. Never writes outside the disk,
/// whatever links the disk has. Skips everything that is not a file, directory or link.
pub(super) fn unpack_home(home: &Path, disk: &Path) -> io::Result<()> {
    let bytes = fs::read(home)?;
    let mut archive = tar::Archive::new(bytes.as_slice());
    archive.set_preserve_ownerships(true);
    archive.set_preserve_permissions(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let is_plain = matches!(
            entry.header().entry_type(),
            EntryType::Regular | EntryType::Directory | EntryType::Symlink | EntryType::Link
        );
        // The engine prefixes the entries with the name of the directory itself.
        if is_plain && entry.path()?.starts_with(HOME_DIRECTORY) {
            entry.unpack_in(disk)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_unpacked_without_escaping_entries() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, archive) = (folder.path().join("disk"), folder.path().join("home.tar"));
        fs::create_dir(&disk).unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |kind: EntryType, name: &str, link: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o755);
            // The test may not run as root, so it cannot `chown` files to other users.
            header.set_uid(u64::from(rustix::process::getuid().as_raw()));
            header.set_gid(u64::from(rustix::process::getgid().as_raw()));
            header.set_size(if kind == EntryType::Regular { 4 } else { 0 });
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            if !link.is_empty() {
                header.set_link_name_literal(link).unwrap();
            }
            header.set_cksum();
            let content: &[u8] = if kind == EntryType::Regular { b"text" } else { b"" };
            builder.append(&header, content).unwrap();
        };
        add(EntryType::Directory, "agent/", "");
        add(EntryType::Regular, "agent/.profile", "");
        add(EntryType::Fifo, "agent/pipe", "");
        add(EntryType::Regular, "agent/../../outside", "");
        add(EntryType::Regular, "other/file", "");
        fs::write(&archive, builder.into_inner().unwrap()).unwrap();
        unpack_home(&archive, &disk).unwrap();
        assert_eq!(fs::read(disk.join("agent/.profile")).unwrap(), b"text");
        let names: Vec<_> = fs::read_dir(disk.join("agent")).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(!folder.path().join("outside").exists() && !disk.join("other").exists());
    }
}
