//! Empty disks of each size, made ahead of need: taking one is a rename.
//!
//! A disk is a sparse file with an ext4 file system without a journal. A template of each size is formatted once; the
//! others are copies of its few written blocks. Where there are no loop devices a disk is a plain directory.
//!
//! The file of a disk whose sandbox is gone becomes an empty disk again, in the place that it has on the host's disk: many
//! short jobs would otherwise make and delete files without end, and an ext4 without a journal looks at each one that was
//! deleted lately before it makes another.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use launcher::spec::{AGENT_ID, DISK_DIRECTORIES};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, ftruncate, ioctl_ficlone, seek};

use super::host_image::Owners;
use super::layout::failed;
use crate::background::Background;
use crate::error::SandboxError;

/// The name of a disk in its sandbox's directory.
pub(crate) const DISK_FILE: &str = "disk.img";
/// Part of a template's name; changes with what a template is made of.
const FORMAT: &str = "ext4-3";
pub(super) const MEBIBYTE: u64 = 1 << 20;
/// How the name of a disk ends that stays mounted.
const KEPT: &str = "kept";
const COPIED_AT_ONCE: usize = 256 << 10;
/// Sparse and quick to mount: no journal, metadata in one place and no second copy of it, tables that the kernel may take
/// for zeros.
const FORMAT_OPTIONS: [&str; 10] = [
    "-q",
    "-F",
    // Of the size that holes in the file below have, also on small disks.
    "-b",
    "4096",
    "-O",
    "^has_journal,^resize_inode,sparse_super2",
    "-m0",
    "-Elazy_itable_init=1,assume_storage_prezeroed=1,packed_meta_blocks=1,nodiscard,num_backup_sb=0",
    "-L",
    "caisson",
];
const FORMAT_PROGRAM: &str = "mkfs.ext4";
const PROGRAM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The program that formats disks, where the host has it.
pub(crate) fn format_program() -> Option<PathBuf> {
    PROGRAM_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(FORMAT_PROGRAM))
        .find(|path| path.exists())
}

/// What is free on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) blocks: u64,
    pub(super) inodes: u64,
}

/// Disks on one host.
#[derive(Clone)]
pub(crate) struct DiskStore {
    shelf: Shelf,
    /// Makes disks ready.
    thread: Background,
    /// Sizes that it will look at.
    asked: Arc<Mutex<BTreeSet<u64>>>,
}

impl DiskStore {
    pub(crate) fn new(directory: PathBuf, ready: usize) -> Self {
        Self { shelf: Shelf { directory, ready }, thread: Background::new("disks"), asked: Arc::default() }
    }

    /// Puts an empty disk of a size at a path, and has others made where few are left.
    pub(crate) fn take(&self, mib: u64, target: &Path) -> Result<(), SandboxError> {
        if !self.shelf.take(mib, target) {
            self.shelf.make_template(mib)?;
            copy_sparse(&self.shelf.template(mib), target)
                .map_err(|source| failed("copying a disk to", target, source))?;
        }
        self.refill(mib);
        Ok(())
    }

    /// Makes ready disks in the background, where there are not enough.
    fn refill(&self, mib: u64) {
        if self.shelf.ready == 0 || !self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(mib) {
            return;
        }
        let (shelf, asked) = (self.shelf.clone(), Arc::clone(&self.asked));
        self.thread.later(move || {
            asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&mib);
            if let Err(error) = shelf.fill(mib) {
                tracing::warn!(error = %error, "no disk could be made ready");
            }
        });
    }

    /// Whether anything is kept that a later sandbox may use.
    pub(super) fn keeps_any(&self) -> bool {
        self.shelf.ready > 0
    }

    /// A place for the file of a disk that stays mounted, with a name that nobody else uses.
    pub(super) fn kept_file(&self, mib: u64) -> PathBuf {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NUMBERS.fetch_add(1, Ordering::Relaxed));
        self.shelf.directory.join(format!("{FORMAT}-{mib}.{process}-{number}.{KEPT}"))
    }

    /// Files of disks that stay mounted, or were when their server ended.
    pub(super) fn kept_files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.shelf.directory).into_iter().flatten().flatten();
        let is_kept = |path: &PathBuf| path.extension().is_some_and(|extension| extension == KEPT);
        files.map(|file| file.path()).filter(is_kept).collect()
    }

    /// What is free on a new disk.
    pub(super) fn new_room(&self, mib: u64) -> io::Result<Room> {
        superblock_room(&File::open(self.shelf.template(mib))?)
    }

    /// Takes the file of a disk back whose sandbox is gone. What is not taken is left where it is.
    pub(crate) fn take_back(&self, image: &Path) {
        self.shelf.take_back(image);
    }
}

/// The files that are there.
#[derive(Clone)]
struct Shelf {
    directory: PathBuf,
    ready: usize,
}

impl Shelf {
    fn template(&self, mib: u64) -> PathBuf {
        self.directory.join(format!("{FORMAT}-{mib}.template"))
    }

    fn ready_disk(&self, mib: u64, number: usize) -> PathBuf {
        self.directory.join(format!("{FORMAT}-{mib}.{number}.ready"))
    }

    fn take(&self, mib: u64, target: &Path) -> bool {
        (0..self.ready).any(|number| fs::rename(self.ready_disk(mib, number), target).is_ok())
    }

    /// Makes a file an empty disk again and keeps it, where another is wanted.
    fn take_back(&self, image: &Path) {
        let renewed = || -> io::Result<()> {
            let file =
                OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(image)?;
            let mib = file.metadata()?.len() / MEBIBYTE;
            let place =
                (0..self.ready).map(|number| self.ready_disk(mib, number)).find(|path| !path.exists());
            if let (Some(place), Ok(template)) = (place, File::open(self.template(mib))) {
                renew(&template, &file)?;
                file.sync_all()?;
                fs::rename(image, place)?;
            }
            Ok(())
        };
        // Not every sandbox has one, and not every file system can make holes.
        if let Err(error) = renewed()
            && !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported)
        {
            tracing::warn!(path = %image.display(), %error, "a disk is not used again");
        }
    }

    /// Makes disks once half of them are gone: until then some may come back.
    fn fill(&self, mib: u64) -> Result<(), SandboxError> {
        let is_missing = |path: &PathBuf| !path.exists();
        let missing: Vec<_> =
            (0..self.ready).map(|number| self.ready_disk(mib, number)).filter(is_missing).collect();
        if missing.len() * 2 < self.ready {
            return Ok(());
        }
        self.make_template(mib)?;
        for target in missing {
            // One may have come back meanwhile.
            if target.exists() {
                continue;
            }
            let partial = target.with_extension("partial");
            // A loop device first waits until its file is on the host's disk: here nobody waits for that.
            copy_sparse(&self.template(mib), &partial)
                .and_then(|()| File::open(&partial)?.sync_all())
                .and_then(|()| fs::rename(&partial, &target))
                .map_err(|source| failed("copying a disk to", &target, source))?;
        }
        Ok(())
    }

    /// What an earlier version has made is of no use to this one.
    fn remove_other_formats(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("ext4-") && !name.starts_with(&format!("{FORMAT}-")) {
                // Another may have been faster.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn make_template(&self, mib: u64) -> Result<(), SandboxError> {
        let target = self.template(mib);
        if target.exists() {
            return Ok(());
        }
        let program = format_program().ok_or_else(|| SandboxError::HostUnfit {
            what: format!("{FORMAT_PROGRAM} is missing, which formats the disks of sandboxes"),
            remedy: "install the package e2fsprogs".into(),
        })?;
        let unique = format!("{mib}-{:?}", std::thread::current().id());
        let content = self.directory.join(format!("content-{unique}"));
        let partial = self.directory.join(format!("template-{unique}.partial"));
        let make = || -> io::Result<()> {
            make_directories(&content, Owners::AsInside)?;
            let file = create(&partial)?;
            ftruncate(&file, mib * MEBIBYTE)?;
            let output =
                Command::new(&program).args(FORMAT_OPTIONS).arg("-d").arg(&content).arg(&partial).output()?;
            if !output.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
            fs::rename(&partial, &target)
        };
        let result = make().map_err(|source| failed("formatting", &target, source));
        // Nothing depends on these being gone.
        let _ = fs::remove_dir_all(&content);
        let _ = fs::remove_file(&partial);
        self.remove_other_formats();
        result
    }
}

/// What the superblock of an ext4 says.
fn superblock_room(file: &File) -> io::Result<Room> {
    let mut superblock = [0; 1024];
    file.read_exact_at(&mut superblock, 1024)?;
    let number = |at: usize| {
        let bytes = superblock[at..at + 4].try_into().unwrap_or_default();
        u64::from(u32::from_le_bytes(bytes))
    };
    Ok(Room { blocks: number(0x158) << 32 | number(0xC), inodes: number(0x10) })
}

/// The directories that the launcher expects at the root of a disk.
pub(super) fn make_directories(root: &Path, owners: Owners) -> io::Result<()> {
    for name in DISK_DIRECTORIES {
        let directory = root.join(name);
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
    }
    match owners {
        Owners::AsInside => chown(root.join("workspace"), Some(AGENT_ID), Some(AGENT_ID)),
        Owners::Server => Ok(()),
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Copies the written parts of a file; the rest stays a hole. Shares blocks where the file system can.
fn copy_sparse(source: &Path, target: &Path) -> io::Result<()> {
    let (from, to) = (File::open(source)?, create(target)?);
    if ioctl_ficlone(&to, &from).is_ok() {
        return Ok(());
    }
    ftruncate(&to, from.metadata()?.len())?;
    for part in written_parts(&from)? {
        copy_part(&from, &to, part)?;
    }
    Ok(())
}

/// Makes a file of the same size the same as another, holes and all.
fn renew(template: &File, file: &File) -> io::Result<()> {
    if ioctl_ficlone(file, template).is_ok() {
        return Ok(());
    }
    let mut end = 0;
    for part in written_parts(template)? {
        make_hole(file, end..part.start)?;
        end = part.end;
        copy_part(template, file, part)?;
    }
    make_hole(file, end..template.metadata()?.len())
}

fn make_hole(file: &File, part: Range<u64>) -> io::Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, part.start, part.end - part.start)?)
}

/// Where a file is no hole, in order.
fn written_parts(file: &File) -> io::Result<Vec<Range<u64>>> {
    let (mut parts, mut position) = (Vec::new(), 0);
    loop {
        let start = match seek(file, SeekFrom::Data(position)) {
            // There are no more.
            Err(rustix::io::Errno::NXIO) => return Ok(parts),
            other => other?,
        };
        position = seek(file, SeekFrom::Hole(start))?;
        parts.push(start..position);
    }
}

fn copy_part(from: &File, to: &File, part: Range<u64>) -> io::Result<()> {
    let mut position = part.start;
    let wanted = usize::try_from(part.end - part.start).unwrap_or(usize::MAX);
    let mut buffer = vec![0; wanted.min(COPIED_AT_ONCE)];
    while position < part.end {
        let wanted = usize::try_from(part.end - position).unwrap_or(usize::MAX).min(buffer.len());
        let count = from.read_at(&mut buffer[..wanted], position)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all_at(&buffer[..count], position)?;
        position += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_and_the_same_holes() {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("a"), directory.path().join("b"));
        let file = create(&source).unwrap();
        ftruncate(&file, 64 << 20).unwrap();
        file.write_all_at(b"start", 0).unwrap();
        file.write_all_at(b"middle", 33 << 20).unwrap();
        copy_sparse(&source, &target).unwrap();
        assert!(fs::read(&source).unwrap() == fs::read(&target).unwrap());
        assert!(fs::metadata(&target).unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn the_file_of_a_disk_is_used_again_and_nothing_of_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let shelf = Shelf { directory: directory.path().into(), ready: 1 };
        let target = directory.path().join("taken");
        let earlier = directory.path().join("ext4-0-64.3.ready");
        fs::write(&earlier, "of an earlier version").unwrap();
        shelf.make_template(64).unwrap();
        assert!(!earlier.exists());
        copy_sparse(&shelf.template(64), &target).unwrap();
        let file = OpenOptions::new().write(true).open(&target).unwrap();
        file.write_all_at(&[7; 1 << 20], 32 << 20).unwrap();
        file.write_all_at(&[7; 1 << 12], 0).unwrap();
        let inode = file.metadata().unwrap().ino();
        shelf.take_back(&target);
        assert!(!target.exists());
        assert!(shelf.take(64, &target));
        assert_eq!(fs::metadata(&target).unwrap().ino(), inode);
        assert!(fs::read(&target).unwrap() == fs::read(shelf.template(64)).unwrap());
        assert!(fs::metadata(&target).unwrap().blocks() * 512 < MEBIBYTE);
        // One is enough: the second goes with its sandbox.
        fs::write(shelf.ready_disk(64, 0), "").unwrap();
        shelf.take_back(&target);
        assert!(target.exists());
        shelf.take_back(&directory.path().join("missing"));
    }

    #[test]
    fn disks_are_made_when_half_of_them_are_gone() {
        let directory = tempfile::tempdir().unwrap();
        let shelf = Shelf { directory: directory.path().into(), ready: 4 };
        let count = || (0..4).filter(|number| shelf.ready_disk(64, *number).exists()).count();
        shelf.fill(64).unwrap();
        assert_eq!(count(), 4);
        for (left, filled) in [(3, 3), (2, 4)] {
            assert!(shelf.take(64, &directory.path().join("taken")));
            assert_eq!(count(), left);
            shelf.fill(64).unwrap();
            assert_eq!(count(), filled);
        }
    }

    #[test]
    fn disks_are_small_on_the_host_and_a_taken_one_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let store = DiskStore::new(directory.path().into(), 2);
        let target = directory.path().join("taken");
        store.take(8192, &target).unwrap();
        let metadata = fs::metadata(&target).unwrap();
        assert_eq!(metadata.len(), 8192 * MEBIBYTE);
        assert!(metadata.blocks() * 512 < MEBIBYTE, "{} bytes are allocated", metadata.blocks() * 512);
        // The thread that `take` started makes them; another beside it would take its half-made ones away.
        let end = Instant::now() + Duration::from_secs(120);
        while !(0..2).all(|number| store.shelf.ready_disk(8192, number).exists()) {
            assert!(Instant::now() < end, "no disks were made ready");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
