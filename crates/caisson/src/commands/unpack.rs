//! Unpacks the result of a job into a folder. The zip contains what a sandbox wrote, so it is not trusted: no entry may
//! lead out of the folder, nothing is written through a symlink, and the zip may not fill the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use zip::ZipArchive;

/// The most entries of a result.
const MAX_ENTRIES: usize = 2_000_000;
/// The maximum length of a link target; the kernel's `PATH_MAX`.
const MAX_TARGET_BYTES: u64 = 4096;
/// The part of the free disk space that unpacking leaves free: a tenth.
const RESERVED_PART: u64 = 10;

/// A result that is being unpacked.
pub(super) struct Unpacking {
    archive: ZipArchive<File>,
    folder: PathBuf,
    /// The index of the next entry.
    next: usize,
    bytes_left: u64,
    /// Created at the end, when no more writes could follow them.
    links: Vec<(PathBuf, PathBuf)>,
}

/// What the user must know about an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remark {
    /// A file of the user was replaced.
    Replaced(PathBuf),
    /// A link was left out because it leads out of the folder.
    SkippedLink(PathBuf),
}

impl Unpacking {
    /// Checks the whole zip before anything is written.
    pub(super) fn begin(zip: File, folder: &Path) -> Result<Self> {
        let free = rustix::fs::statvfs(folder)
            .map_err(io::Error::from)
            .with_context(|| format!("reading the free space of {}", folder.display()))?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        Self::with_room(zip, folder, free - free / RESERVED_PART)
    }

    fn with_room(zip: File, folder: &Path, room: u64) -> Result<Self> {
        let archive = ZipArchive::new(zip).context("the zip cannot be read")?;
        if archive.len() > MAX_ENTRIES {
            bail!("the zip has {} entries; at most {MAX_ENTRIES} are unpacked", archive.len());
        }
        if let Some(bytes) = archive.decompressed_size().filter(|bytes| *bytes > u128::from(room)) {
            bail!("the files have {bytes} bytes, and {} has room for {room}", folder.display());
        }
        for index in 0..archive.len() {
            let name = archive.name_for_index(index).context("the zip cannot be read")??;
            path_of(&name)?;
        }
        let folder = folder.to_owned();
        Ok(Self { archive, folder, next: 0, bytes_left: room, links: Vec::new() })
    }

    /// Unpacks one entry; `None` after the last one.
    pub(super) fn step(&mut self) -> Result<Option<Vec<Remark>>> {
        if self.next == self.archive.len() {
            return Ok(None);
        }
        let mut entry = self.archive.by_index(self.next).context("the zip cannot be read")?;
        self.next += 1;
        let path = path_of(&entry.name()?)?;
        let mut remarks = Vec::new();
        if entry.is_symlink() {
            let mut target = String::new();
            (&mut entry).take(MAX_TARGET_BYTES).read_to_string(&mut target).context("reading a link")?;
            if stays_inside(&path, Path::new(&target)) {
                make_folders(&self.folder, path.parent())?;
                self.links.push((path, target.into()));
            } else {
                remarks.push(Remark::SkippedLink(self.folder.join(path)));
            }
        } else if entry.is_dir() {
            make_folders(&self.folder, Some(&path))?;
        } else {
            make_folders(&self.folder, path.parent())?;
            let target = self.folder.join(path);
            let writing = || format!("writing {}", target.display());
            let is_replaced = remove_existing(&target)?;
            let mode = entry.unix_mode().unwrap_or(0o644) & 0o777;
            let mut file = create_new(&target).with_context(writing)?;
            // Counts the actual content, whatever size the zip claims.
            let copied = io::copy(&mut (&mut entry).take(self.bytes_left.saturating_add(1)), &mut file)
                .with_context(writing)?;
            self.bytes_left = self.bytes_left.checked_sub(copied).with_context(|| {
                format!("the files are larger than {} has room for", self.folder.display())
            })?;
            file.set_permissions(fs::Permissions::from_mode(mode)).with_context(writing)?;
            remarks.extend(is_replaced.then_some(Remark::Replaced(target)));
        }
        Ok(Some(remarks))
    }

    /// Creates the links.
    pub(super) fn finish(self) -> Result<Vec<Remark>> {
        let mut remarks = Vec::new();
        for (path, target) in self.links {
            let path = self.folder.join(path);
            let is_replaced = remove_existing(&path)?;
            symlink(target, &path).with_context(|| format!("creating the link {}", path.display()))?;
            remarks.extend(is_replaced.then_some(Remark::Replaced(path)));
        }
        Ok(remarks)
    }
}

/// The path of an entry below the folder; empty for the folder itself.
fn path_of(name: &str) -> Result<PathBuf> {
    let mut path = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => bail!("the zip has `{}`, which leads out of the folder", name.escape_debug()),
        }
    }
    Ok(path)
}

/// Whether a link cannot lead out of the folder: it goes up at most to the folder, and only at its beginning. What
/// follows may pass other links of the zip, which stay inside as well.
fn stays_inside(link: &Path, target: &Path) -> bool {
    let depth = link.components().count().saturating_sub(1);
    let ups = target.components().take_while(|part| *part == Component::ParentDir).count();
    let mut rest = target.components().skip(ups);
    let is_below = rest.all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    is_below && ups <= depth && !target.as_os_str().is_empty()
}

/// Creates the folders of a path below the folder. A symlink in their place is refused: it may lead anywhere.
fn make_folders(folder: &Path, path: Option<&Path>) -> Result<()> {
    let mut made = folder.to_owned();
    for part in path.into_iter().flat_map(Path::components) {
        made.push(part);
        match fs::symlink_metadata(&made) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => bail!("{} is not a folder, but the result has a folder of this name", made.display()),
            Err(_) => {
                fs::create_dir(&made).with_context(|| format!("creating the folder {}", made.display()))?;
            }
        }
    }
    Ok(())
}

/// Removes a file or link that is in the way, and reports whether there was one.
fn remove_existing(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Ok(found) if found.is_dir() => {
            bail!("{} is a folder, but the result has a file of this name", path.display())
        }
        _ => {
            fs::remove_file(path).with_context(|| format!("replacing {}", path.display()))?;
            Ok(true)
        }
    }
}

/// Never follows a link. Until the file is complete only its owner can read it.
fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    /// A zip with these files and links; a name with a slash at its end is a folder.
    fn zip_of(files: &[(&str, &str)], links: &[(&str, &str)]) -> File {
        let mut writer = ZipWriter::new(tempfile::tempfile().unwrap());
        for (name, content) in files {
            let options = SimpleFileOptions::default().unix_permissions(0o4755);
            match name.strip_suffix('/') {
                Some(folder) => writer.add_directory(folder, options).unwrap(),
                None => writer.start_file(*name, options).unwrap(),
            }
            writer.write_all(content.as_bytes()).unwrap();
        }
        for (name, target) in links {
            writer.add_symlink(*name, *target, SimpleFileOptions::default()).unwrap();
        }
        writer.finish().unwrap()
    }

    fn unpack(zip: File, folder: &Path, room: u64) -> Result<Vec<Remark>, String> {
        let unpack = || -> Result<Vec<Remark>> {
            let mut unpacking = Unpacking::with_room(zip, folder, room)?;
            let mut all = Vec::new();
            while let Some(remarks) = unpacking.step()? {
                all.extend(remarks);
            }
            all.extend(unpacking.finish()?);
            Ok(all)
        };
        unpack().map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn files_folders_and_links_are_unpacked() {
        let root = tempfile::tempdir().unwrap();
        let zip = zip_of(&[("a/b.txt", "hello"), ("empty/", "")], &[("a/link", "b.txt"), ("up", "a/../a")]);
        let unpacked = unpack(zip, root.path(), 100).unwrap();
        let skipped = Remark::SkippedLink(root.path().join("up"));
        assert_eq!(unpacked, [skipped], "`..` after a name may lead anywhere if the name is a link");
        assert_eq!(fs::read_to_string(root.path().join("a/link")).unwrap(), "hello");
        assert!(root.path().join("empty").is_dir());
        let mode = fs::metadata(root.path().join("a/b.txt")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "without the bit that changes the user");
    }

    #[test]
    fn replaced_files_are_named_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (mine, folder) = (root.path().join("mine"), root.path().join("folder"));
        fs::write(&mine, "mine").unwrap();
        fs::create_dir(&folder).unwrap();
        symlink(&mine, folder.join("a")).unwrap();
        fs::write(folder.join("b"), "old").unwrap();
        let zip = || zip_of(&[("a", "new"), ("b", "new"), ("c", "new")], &[]);
        let replaced = |name: &str| Remark::Replaced(folder.join(name));
        assert_eq!(unpack(zip(), &folder, 100).unwrap(), [replaced("a"), replaced("b")]);
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        assert_eq!(fs::read_to_string(folder.join("a")).unwrap(), "new");

        // A link in place of a folder is not passed.
        symlink(root.path(), folder.join("deep")).unwrap();
        let refused = unpack(zip_of(&[("deep/mine", "theirs")], &[]), &folder, 100).unwrap_err();
        assert!(refused.contains("deep is not a folder"), "{refused}");
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    }

    #[test]
    fn paths_and_links_that_lead_out_of_the_folder_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("folder");
        fs::create_dir(&folder).unwrap();
        for name in ["../evil", "a/../../evil", "/evil"] {
            let refused = unpack(zip_of(&[("good", ""), (name, "x")], &[]), &folder, 100).unwrap_err();
            assert!(refused.contains("leads out of the folder"), "{name}: {refused}");
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{name}: something was written");
        }
        let links = [("l1", "/etc/passwd"), ("l2", ".."), ("a/l3", "../../x"), ("a/l4", "../x/..")];
        let remarks = unpack(zip_of(&[], &links), &folder, 100).unwrap();
        let skipped = links.map(|(name, _)| Remark::SkippedLink(folder.join(name)));
        assert_eq!(remarks, skipped);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert!(stays_inside(Path::new("a/b/link"), Path::new("../../c/./d")));
        // A folder takes the place of a link to another place, and the link is not made.
        let zip = zip_of(&[("a/evil", "x")], &[("a", "b")]);
        assert!(unpack(zip, &folder, 100).unwrap_err().contains("a is a folder"));
    }

    #[test]
    fn zip_that_is_larger_than_the_room_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let bomb = zip_of(&[("small", "x"), ("zeros", &"0".repeat(1 << 20))], &[]);
        let refused = unpack(bomb, root.path(), 1000).unwrap_err();
        assert!(refused.contains("has room for 1000"), "{refused}");
        assert!(!root.path().join("small").exists());
        assert!(
            unpack(tempfile::tempfile().unwrap(), root.path(), 1000).unwrap_err().contains("cannot be read")
        );
    }
}
