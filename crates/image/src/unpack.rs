//! Unpacks untrusted input into a directory, and never outside it.
//!
//! Paths, including symlinks, are resolved below the new root, so none leads out. What a sandbox must not have or
//! does not need (devices, sockets, setuid bits, ids beyond a sandbox's range) is skipped or made harmless, and
//! counted.

use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chmodat, chownat, linkat,
    mkdirat, openat, openat2, statat, statvfs, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The maximum number of files and directories of an image.
const MAX_ENTRIES: u64 = 4_000_000;
/// Space to keep free on the host's disk.
const SPARE_BYTES: u64 = 256 << 20;
/// Files are written in blocks of this size; a block of zeros becomes a hole.
const BLOCK_BYTES: usize = 64 * 1024;
/// A sandbox has ids below this one.
const IDS: u64 = 65_536;
/// Replaces ids out of range.
const NOBODY: u32 = 65_534;
/// Whiteout markers of a layer, which delete files of lower layers.
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// The type of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File {
        bytes: u64,
    },
    Symlink(PathBuf),
    /// A hard link to an earlier entry.
    HardLink(PathBuf),
    /// A device, a socket or similar.
    Special,
}

/// Metadata of an entry.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) modified_s: i64,
}

/// Whether names with a whiteout prefix delete files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhiteoutMode {
    Plain,
    Layer,
}

/// The result of unpacking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Unpacked {
    /// Files, directories and links.
    pub entries: u64,
    /// Total size of the files.
    pub bytes: u64,
    /// Devices, sockets and similar entries that were skipped.
    pub left_out: u64,
    /// Entries whose setuid or setgid bit was removed.
    pub bits_taken: u64,
}

/// Unpacks entries into a directory.
pub(crate) struct Unpacker {
    root: OwnedFd,
    marks: WhiteoutMode,
    is_root: bool,
    most_bytes: u64,
    pub(crate) counts: Unpacked,
    /// The directory of the last entry, which the next entry often shares.
    last: Option<(PathBuf, OwnedFd)>,
}

fn refused(path: &Path, why: &str) -> io::Error {
    let shown: String = path.display().to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("`{shown}` {why}"))
}

impl Unpacker {
    /// Unpacks into an existing directory. Writes at most this many bytes, and never fills the disk.
    pub(crate) fn new(root: &Path, most_bytes: u64) -> io::Result<Self> {
        let room = statvfs(root)?;
        let room = room.f_bavail.saturating_mul(room.f_frsize).saturating_sub(SPARE_BYTES);
        let root = openat(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self {
            root,
            marks: WhiteoutMode::Plain,
            is_root: geteuid().is_root(),
            most_bytes: most_bytes.min(room),
            counts: Unpacked::default(),
            last: None,
        })
    }

    /// Sets how whiteout names are treated from now on.
    pub(crate) fn set_whiteout_mode(&mut self, marks: WhiteoutMode) {
        self.marks = marks;
    }

    /// Unpacks one entry.
    pub(crate) fn unpack_entry(&mut self, entry: &Entry, content: &mut dyn Read) -> io::Result<()> {
        let path = clean(&entry.path)?;
        self.counts.entries += 1;
        if self.counts.entries > MAX_ENTRIES {
            return Err(refused(
                &entry.path,
                &format!("is more than the {MAX_ENTRIES} entries that are allowed"),
            ));
        }
        let Some(name) = path.file_name().map(PathBuf::from) else { return Ok(()) };
        let parent = path.parent().map(Path::to_owned).unwrap_or_default();
        if self.marks == WhiteoutMode::Layer && self.apply_whiteout(&parent, &name)? {
            return Ok(());
        }
        let folder = self.folder(&parent)?;
        self.unpack_entry_at(entry, folder.as_fd(), &name, content)?;
        self.last = Some((parent, folder));
        Ok(())
    }

    fn unpack_entry_at(
        &mut self,
        entry: &Entry,
        folder: BorrowedFd<'_>,
        name: &Path,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        match &entry.kind {
            Kind::Special => {
                self.counts.left_out += 1;
                return Ok(());
            }
            Kind::Directory => {
                if !is_directory(folder, name) {
                    remove_existing(folder, name)?;
                    mkdirat(folder, name, Mode::from_raw_mode(0o700))?;
                }
            }
            Kind::Symlink(target) => {
                remove_existing(folder, name)?;
                symlinkat(target, folder, name)?;
            }
            Kind::HardLink(target) => {
                let target = clean(target)?;
                let target_name =
                    target.file_name().ok_or_else(|| refused(&entry.path, "is a link to the root"))?;
                let target_folder = self.folder(target.parent().unwrap_or(Path::new("")))?;
                remove_existing(folder, name)?;
                linkat(&target_folder, target_name, folder, name, AtFlags::empty())
                    .map_err(|_| refused(&entry.path, "is a link to something that is not there"))?;
                return Ok(());
            }
            Kind::File { bytes } => self.write(entry, *bytes, folder, name, content)?,
        }
        self.set_metadata(entry, folder, name)
    }

    fn write(
        &mut self,
        entry: &Entry,
        bytes: u64,
        folder: BorrowedFd<'_>,
        name: &Path,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let room = self.most_bytes.saturating_sub(self.counts.bytes);
        if bytes > room {
            return Err(refused(
                &entry.path,
                &format!("has {bytes} bytes, and only {room} more are allowed or free"),
            ));
        }
        remove_existing(folder, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(folder, name, flags, Mode::from_raw_mode(0o600))?;
        let mut file = std::fs::File::from(file);
        let written = write_sparse(&mut content.take(bytes), &mut file)?;
        self.counts.bytes += written;
        if written != bytes {
            return Err(refused(&entry.path, "is cut off"));
        }
        Ok(())
    }

    /// Sets owner, mode and modification time of an entry.
    fn set_metadata(&mut self, entry: &Entry, folder: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
        let id = |id: u64| if id < IDS { u32::try_from(id).unwrap_or(NOBODY) } else { NOBODY };
        if self.is_root {
            let (uid, gid) = (Uid::from_raw(id(entry.uid)), Gid::from_raw(id(entry.gid)));
            chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if !matches!(entry.kind, Kind::Symlink(_)) {
            if entry.mode & 0o6000 != 0 {
                self.counts.bits_taken += 1;
            }
            // An unprivileged user must be able to read files and to write to directories.
            let own = match (self.is_root, &entry.kind) {
                (true, _) => 0,
                (false, Kind::Directory) => 0o700,
                (false, _) => 0o600,
            };
            chmodat(folder, name, Mode::from_raw_mode(entry.mode & 0o1777 | own), AtFlags::empty())?;
        }
        let time = Timespec { tv_sec: entry.modified_s.clamp(0, 1 << 40), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        // A timestamp that the file system cannot store is not an error.
        let _ = utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW);
        Ok(())
    }

    /// Applies a whiteout; returns whether the name was one.
    fn apply_whiteout(&mut self, parent: &Path, name: &Path) -> io::Result<bool> {
        let text = name.to_string_lossy().into_owned();
        if text == OPAQUE {
            let folder = self.folder(parent)?;
            let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
            for entry in std::fs::read_dir(path)? {
                remove_existing(folder.as_fd(), Path::new(&entry?.file_name()))?;
            }
            return Ok(true);
        }
        let Some(hidden) = text.strip_prefix(WHITEOUT) else { return Ok(false) };
        if matches!(hidden, "" | "." | "..") {
            return Err(refused(name, "is no name"));
        }
        let folder = self.folder(parent)?;
        remove_existing(folder.as_fd(), Path::new(hidden))?;
        Ok(true)
    }

    /// Opens a directory below the root; creates it and its parents if missing.
    fn folder(&mut self, path: &Path) -> io::Result<OwnedFd> {
        if let Some((last, folder)) = &self.last
            && last == path
        {
            return folder.try_clone();
        }
        let mut above = self.root.try_clone()?;
        let mut so_far = PathBuf::new();
        for part in path.components() {
            so_far.push(part);
            above = match self.open(&so_far) {
                Ok(folder) => folder,
                Err(Errno::NOENT) => {
                    mkdirat(&above, part.as_os_str(), Mode::from_raw_mode(0o755))
                        .map_err(|_| refused(path, "leads through a link to nowhere"))?;
                    self.open(&so_far)?
                }
                Err(Errno::NOTDIR) => {
                    return Err(refused(path, "leads through something that is no directory"));
                }
                Err(error) => return Err(error.into()),
            };
        }
        Ok(above)
    }

    fn open(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.root, path, flags, Mode::empty(), resolve)
    }
}

/// Copies everything and leaves holes for blocks of zeros, so that sparse files stay sparse.
fn write_sparse(content: &mut dyn Read, file: &mut std::fs::File) -> io::Result<u64> {
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut written = 0;
    loop {
        let mut filled = 0;
        while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
            match content.read(room) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let block = buffer.get(..filled).unwrap_or_default();
        if block.iter().all(|byte| *byte == 0) {
            file.seek(io::SeekFrom::Current(i64::try_from(filled).unwrap_or(0)))?;
        } else {
            file.write_all(block)?;
        }
        written += filled as u64;
        if filled < BLOCK_BYTES {
            file.set_len(written)?;
            return Ok(written);
        }
    }
}

/// Normalizes a path; rejects one that leads up.
fn clean(path: &Path) -> io::Result<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(refused(path, "leads out of the image"));
            }
        }
    }
    Ok(clean)
}

fn is_directory(folder: BorrowedFd<'_>, name: &Path) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|metadata| rustix::fs::FileType::from_raw_mode(metadata.st_mode).is_dir())
}

/// Removes an entry of any type.
fn remove_existing(folder: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) if is_directory(folder, name) => {
            std::fs::remove_dir_all(Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    const PLENTY: u64 = 1 << 20;

    fn entry(path: &str, kind: Kind) -> Entry {
        Entry { path: path.into(), kind, mode: 0o4755, uid: 0, gid: 0, modified_s: 1 }
    }

    fn file(path: &str) -> Entry {
        entry(path, Kind::File { bytes: 2 })
    }

    fn unpack_entry(unpacker: &mut Unpacker, entry: &Entry) -> Result<(), String> {
        unpacker.unpack_entry(entry, &mut &b"hi"[..]).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_unpacked_outside_the_root() {
        let place = tempfile::tempdir().unwrap();
        let (root, outside) = (place.path().join("root"), place.path().join("outside"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(&outside).unwrap();
        let mut unpacker = Unpacker::new(&root, PLENTY).unwrap();
        for path in ["../evil", "a/../../evil", "/../evil"] {
            assert!(unpack_entry(&mut unpacker, &file(path)).unwrap_err().contains("leads out"), "{path}");
        }
        unpack_entry(&mut unpacker, &entry("door", Kind::Symlink(outside.clone()))).unwrap();
        unpack_entry(&mut unpacker, &entry("up", Kind::Symlink("../outside".into()))).unwrap();
        for path in ["door/evil", "up/evil"] {
            // A symlink is resolved inside: the missing target is created there or rejected.
            let _ = unpack_entry(&mut unpacker, &file(path));
        }
        unpack_entry(&mut unpacker, &file("/etc/absolute")).unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(fs::read(root.join("etc/absolute")).unwrap(), b"hi");
        let link = unpack_entry(&mut unpacker, &entry("hard", Kind::HardLink("../../etc/passwd".into())));
        assert!(link.unwrap_err().contains("leads out"));
        let link = unpack_entry(&mut unpacker, &entry("hard", Kind::HardLink("door/passwd".into())));
        assert!(link.is_err());
    }

    #[test]
    fn sparse_files_keep_their_holes_and_content() {
        let place = tempfile::tempdir().unwrap();
        let mut content = vec![0; 5 * BLOCK_BYTES + 7];
        content[2 * BLOCK_BYTES + 1] = 1;
        let mut unpacker = Unpacker::new(place.path(), PLENTY).unwrap();
        for (name, bytes) in [("holes", content.as_slice()), ("none", &[0; BLOCK_BYTES][..]), ("empty", &[])]
        {
            let entry = entry(name, Kind::File { bytes: bytes.len() as u64 });
            unpacker.unpack_entry(&entry, &mut &*bytes).unwrap();
            assert_eq!(fs::read(place.path().join(name)).unwrap(), bytes, "{name}");
        }
        let metadata = fs::metadata(place.path().join("holes")).unwrap();
        assert!(metadata.blocks() * 512 <= 2 * BLOCK_BYTES as u64, "{} blocks", metadata.blocks());
        let cut =
            unpacker.unpack_entry(&entry("cut", Kind::File { bytes: 9 }), &mut &b"12345678"[..]).unwrap_err();
        assert!(cut.to_string().contains("is cut off"), "{cut}");
    }

    #[test]
    fn a_file_replaces_a_symlink_of_the_same_name() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir_all(&root).unwrap();
        fs::write(place.path().join("victim"), "safe").unwrap();
        symlink(place.path().join("victim"), root.join("name")).unwrap();
        unpack_entry(&mut Unpacker::new(&root, PLENTY).unwrap(), &file("name")).unwrap();
        assert_eq!(fs::read_to_string(place.path().join("victim")).unwrap(), "safe");
        assert_eq!(fs::read_to_string(root.join("name")).unwrap(), "hi");
    }

    #[test]
    fn devices_setuid_bits_and_out_of_range_ids_are_made_harmless() {
        let place = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(place.path(), PLENTY).unwrap();
        unpack_entry(&mut unpacker, &entry("sda", Kind::Special)).unwrap();
        unpack_entry(&mut unpacker, &Entry { uid: u64::MAX, gid: 70_000, ..file("sudo") }).unwrap();
        assert!(!place.path().join("sda").exists());
        let metadata = fs::metadata(place.path().join("sudo")).unwrap();
        assert_eq!(metadata.mode() & 0o7777, 0o755);
        if geteuid().is_root() {
            assert_eq!((metadata.uid(), metadata.gid()), (NOBODY, NOBODY));
        }
        assert_eq!((unpacker.counts.left_out, unpacker.counts.bits_taken), (1, 1));
    }

    #[test]
    fn excessive_sizes_are_rejected_before_writing() {
        let place = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(place.path(), 3).unwrap();
        unpack_entry(&mut unpacker, &file("a")).unwrap();
        let error = unpack_entry(&mut unpacker, &file("b")).unwrap_err();
        assert!(error.contains("`b` has 2 bytes, and only 1 more"), "{error}");
        assert!(unpack_entry(&mut unpacker, &entry("c", Kind::File { bytes: u64::MAX })).is_err());
        assert!(!place.path().join("c").exists());
    }

    #[test]
    fn whiteouts_of_a_layer_delete_files() {
        let place = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(place.path(), PLENTY).unwrap();
        for path in ["etc/a", "etc/b", "opt/x/deep", "opt/y"] {
            unpack_entry(&mut unpacker, &file(path)).unwrap();
        }
        unpacker.set_whiteout_mode(WhiteoutMode::Layer);
        for path in ["etc/.wh.a", "opt/.wh..wh..opq", "opt/z"] {
            unpack_entry(&mut unpacker, &file(path)).unwrap();
        }
        assert!(!place.path().join("etc/a").exists() && place.path().join("etc/b").exists());
        assert!(!place.path().join("opt/x").exists() && place.path().join("opt/z").exists());
        assert!(unpack_entry(&mut unpacker, &file("etc/.wh...")).is_err(), "`..` is no name");
    }
}
