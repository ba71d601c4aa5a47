//! Disks that stay mounted from one sandbox to the next. To mount a disk, to take it down and to write its file anew costs
//! more than to delete the few files of a short job.
//!
//! That a disk is empty again is what its file system says: as many free blocks and inodes as a new one has. Whoever used more
//! than a little gets no such care: the file below becomes an empty disk in its place, see [`super::disk`].

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use launcher::spec::Disk;
use rustix::fs::{Mode, OFlags, fstatvfs, openat, syncfs};

use super::destroy::{holds, wait_for_image};
use super::disk::{DiskStore, MEBIBYTE, Room, make_directories};
use super::host_image::Owners;
use crate::background::Background;

/// So many are kept: those that end and those that begin take turns.
const MOST_KEPT: usize = 8;
/// What may have been used of a disk that is emptied file by file.
const MOST_USED: Room = Room { blocks: 1024, inodes: 512 };
/// What its file may have on the host's disk: blocks that were used once stay there.
const MOST_ALLOCATED: u64 = 32 * MEBIBYTE;
/// Nobody inside can see these. Were there anything in them after all, less would be free than on a new disk.
const OUT_OF_SIGHT: [&str; 3] = ["lower", "root", "lost+found"];
/// The last mount of a sandbox goes a moment after its last process.
const PATIENCE: Duration = Duration::from_millis(100);
const DEVICE_PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_micros(500);

/// A mounted disk that nobody can take down.
pub(super) struct HeldDisk {
    /// The root of its file system.
    root: OwnedFd,
    device: u32,
}

struct Kept {
    disk: HeldDisk,
    file: PathBuf,
    mib: u64,
}

/// Disks that are mounted and empty. Clones share them.
#[derive(Clone)]
pub(super) struct KeptDisks {
    files: DiskStore,
    kept: Arc<Mutex<Vec<Kept>>>,
    /// Empties them.
    thread: Background,
    names: Arc<AtomicU64>,
    /// What new disks of each size have, once it was asked for.
    new: Arc<Mutex<HashMap<u64, Room>>>,
}

impl HeldDisk {
    /// Takes hold of the disk that is mounted from a device; `None` when that device has another file, or none.
    pub(super) fn of(device: u32, image: &Path) -> Option<Self> {
        let image = fs::canonicalize(image).ok()?;
        let is_it = || holds(Some(device), &image);
        if !is_it() {
            return None;
        }
        let mount = launcher::disk::open(&Disk::Mounted(device)).ok()?.mount;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(&mount, ".", flags, Mode::empty()).ok()?;
        // Again: from now on it cannot change.
        is_it().then_some(Self { root, device })
    }

    /// Its loop device.
    pub(super) fn device(&self) -> u32 {
        self.device
    }

    fn room(&self) -> io::Result<Room> {
        let told = fstatvfs(&self.root)?;
        Ok(Room { blocks: told.f_bfree, inodes: told.f_ffree })
    }

    /// Deletes everything on it and makes it as it was; an error where it is not.
    fn empty(&self, new: Room) -> io::Result<()> {
        let root = PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()));
        for entry in fs::read_dir(&root)? {
            let entry = entry?;
            if OUT_OF_SIGHT.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        make_directories(&root, Owners::AsInside)?;
        let end = Instant::now() + PATIENCE;
        while self.room()? != new {
            if Instant::now() > end {
                return Err(io::Error::other("something is left on it"));
            }
            std::thread::sleep(TICK);
        }
        // Tells of everything that could not be written since it was opened.
        syncfs(&self.root)?;
        let errors = fs::read_to_string(format!("/sys/fs/ext4/loop{}/errors_count", self.device))?;
        if errors.trim() == "0" { Ok(()) } else { Err(io::Error::other("its file system has errors")) }
    }
}

impl KeptDisks {
    pub(super) fn new(files: DiskStore) -> Self {
        Self {
            files,
            kept: Arc::default(),
            thread: Background::new("kept disks"),
            names: Arc::default(),
            new: Arc::default(),
        }
    }

    /// Puts the file of a kept disk at a path, where there is one of this size.
    pub(super) fn take(&self, mib: u64, target: &Path) -> Option<HeldDisk> {
        let mut kept = lock(&self.kept);
        let place = kept.iter().rposition(|kept| kept.mib == mib)?;
        let Kept { disk, file, .. } = kept.swap_remove(place);
        drop(kept);
        fs::rename(file, target).ok()?;
        Some(disk)
    }

    /// Keeps the disk of a sandbox whose processes are gone. False when it shall go its usual way.
    pub(super) fn keep(&self, disk: HeldDisk, image: &Path) -> bool {
        self.try_to_keep(disk, image).unwrap_or_else(|error| {
            tracing::warn!(path = %image.display(), %error, "a disk is not kept");
            false
        })
    }

    fn try_to_keep(&self, disk: HeldDisk, image: &Path) -> io::Result<bool> {
        if !self.files.keeps_any() || lock(&self.kept).len() >= MOST_KEPT {
            return Ok(false);
        }
        let facts = fs::metadata(image)?;
        let mib = facts.len() / MEBIBYTE;
        let (new, left) = (self.new_room(mib)?, disk.room()?);
        let is_much = left.blocks.saturating_add(MOST_USED.blocks) < new.blocks
            || left.inodes.saturating_add(MOST_USED.inodes) < new.inodes
            || facts.blocks() * 512 > MOST_ALLOCATED;
        if is_much {
            return Ok(false);
        }
        let file = self.files.kept_file(mib, self.names.fetch_add(1, Ordering::Relaxed));
        fs::rename(image, &file)?;
        let (kept, files) = (Arc::clone(&self.kept), self.files.clone());
        self.thread.later(move || match disk.empty(new) {
            Ok(()) => lock(&kept).push(Kept { disk, file, mib }),
            Err(error) => {
                tracing::debug!(path = %file.display(), %error, "a disk is made anew");
                let device = disk.device();
                drop(disk);
                give_up(&files, device, &file);
            }
        });
        Ok(true)
    }

    fn new_room(&self, mib: u64) -> io::Result<Room> {
        let mut new = lock(&self.new);
        if let Some(room) = new.get(&mib) {
            return Ok(*room);
        }
        let room = self.files.new_room(mib)?;
        new.insert(mib, room);
        Ok(room)
    }
}

/// Makes the file below an empty disk again, or deletes it.
fn give_up(files: &DiskStore, device: u32, file: &Path) {
    if wait_for_image(file, Some(device), DEVICE_PATIENCE).is_ok() {
        files.take_back(file);
    }
    // Who takes it back has renamed it.
    let _ = fs::remove_file(file);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    use super::*;

    const MIB: u64 = 64;

    struct Bench {
        directory: tempfile::TempDir,
        disks: KeptDisks,
    }

    impl Bench {
        fn new(ready: usize) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let disks = KeptDisks::new(DiskStore::new(directory.path().into(), ready));
            Self { directory, disks }
        }

        fn image(&self) -> PathBuf {
            self.directory.path().join("disk.img")
        }

        /// A new disk, mounted.
        fn mounted(&self) -> HeldDisk {
            self.disks.files.take(MIB, &self.image()).unwrap();
            let open = launcher::disk::open(&Disk::Image(self.image())).unwrap();
            HeldDisk::of(open.loop_device.unwrap(), &self.image()).unwrap()
        }

        /// Waits until all that was asked for is done.
        fn settle(&self) {
            let (sender, receiver) = mpsc::channel();
            self.disks.thread.later(move || sender.send(()).unwrap());
            receiver.recv().unwrap();
        }

        fn kept(&self) -> usize {
            lock(&self.disks.kept).len()
        }

        /// Files of disks that are or were kept.
        fn kept_files(&self) -> usize {
            let files = fs::read_dir(self.directory.path()).unwrap().flatten();
            files.filter(|file| file.path().extension().is_some_and(|end| end == "kept")).count()
        }
    }

    fn path(disk: &HeldDisk, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", disk.root.as_raw_fd()))
    }

    #[test]
    fn a_disk_that_was_used_a_little_is_kept_and_nothing_on_it() {
        let bench = Bench::new(1);
        let disk = bench.mounted();
        let device = disk.device();
        fs::write(path(&disk, "workspace/secret"), "x").unwrap();
        fs::create_dir_all(path(&disk, "upper/home/agent/.cache")).unwrap();
        fs::create_dir_all(path(&disk, "work/work/#1")).unwrap();
        std::os::unix::fs::symlink("/etc", path(&disk, "upper/etc")).unwrap();
        fs::set_permissions(path(&disk, "workspace"), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(bench.disks.keep(disk, &bench.image()));
        assert!(!bench.image().exists());
        bench.settle();
        assert!(bench.disks.take(MIB * 2, &bench.image()).is_none());
        let disk = bench.disks.take(MIB, &bench.image()).unwrap();
        assert_eq!(disk.device(), device);
        assert!(bench.image().exists());
        assert_eq!((bench.kept(), bench.kept_files()), (0, 0));
        for name in ["workspace", "upper", "work", "lower", "root"] {
            assert_eq!(fs::read_dir(path(&disk, name)).unwrap().count(), 0, "{name}");
            assert_eq!(fs::metadata(path(&disk, name)).unwrap().mode() & 0o7777, 0o755, "{name}");
        }
        assert_eq!(fs::metadata(path(&disk, "workspace")).unwrap().uid(), launcher::spec::AGENT_ID);
        assert_eq!(disk.room().unwrap(), bench.disks.new_room(MIB).unwrap());
        assert!(bench.disks.take(MIB, &bench.image()).is_none());
    }

    #[test]
    fn a_disk_that_was_used_much_goes_its_usual_way() {
        let bench = Bench::new(1);
        let disk = bench.mounted();
        fs::write(path(&disk, "workspace/large"), vec![7; 8 << 20]).unwrap();
        assert!(!bench.disks.keep(disk, &bench.image()));
        assert!(bench.image().exists());
        let without = Bench::new(0);
        assert!(!without.disks.keep(without.mounted(), &without.image()));
    }

    #[test]
    fn a_disk_that_something_is_left_on_is_not_kept() {
        let bench = Bench::new(1);
        for place in ["workspace/open", "lower/hidden"] {
            let disk = bench.mounted();
            fs::write(path(&disk, place), "x").unwrap();
            // Deleted and still there as long as this is open.
            let open = fs::File::open(path(&disk, place)).unwrap();
            assert!(bench.disks.keep(disk, &bench.image()));
            // Long enough for the attempt, and short enough for who waits for the device.
            std::thread::sleep(PATIENCE * 2);
            drop(open);
            bench.settle();
            assert_eq!((bench.kept(), bench.kept_files()), (0, 0), "{place}");
        }
    }

    #[test]
    fn what_an_earlier_server_kept_is_deleted() {
        let bench = Bench::new(1);
        fs::write(bench.disks.files.kept_file(MIB, 3), "").unwrap();
        fs::write(bench.image(), "").unwrap();
        bench.disks.files.remove_kept();
        assert_eq!(bench.kept_files(), 0);
        assert!(bench.image().exists());
    }
}
