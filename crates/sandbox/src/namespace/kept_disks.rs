//! Disks that stay mounted from one sandbox to the next. To mount a disk, to take it down and to write its file anew costs
//! more than to delete the few files of a short job.
//!
//! That a disk is empty again is what its file system says: as many free blocks and inodes as a new one has. Whoever used more
//! than a little gets no such care: the file below becomes an empty disk in its place, see [`super::disk`].

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use launcher::spec::Disk;
use rustix::fs::{Mode, OFlags, fstatvfs, open, openat, syncfs};

use super::destroy::{is_held, wait_for_image};
use super::disk::{DiskStore, MEBIBYTE, Room, make_directories};
use super::host_image::Owners;
use crate::background::Background;

/// So many are kept, and so many are emptied at a time: those that end and those that begin take turns, in bursts.
const MOST_KEPT: usize = 16;
/// What may have been used of a disk that is emptied file by file.
const MOST_USED: Room = Room { blocks: 1024, inodes: 128 };
/// What its file may have on the host's disk: blocks that were used once stay there.
const MOST_ALLOCATED: u64 = 32 * MEBIBYTE;
/// Nobody inside can see these. Were there anything in them after all, less would be free than on a new disk.
const OUT_OF_SIGHT: [&str; 3] = ["lower", "root", "lost+found"];
/// The last mount of a sandbox goes a moment after its last process.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
const DEVICE_PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(1);
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

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

#[derive(Default)]
struct Shelf {
    kept: Vec<Kept>,
    /// How many are being emptied.
    pending: usize,
    /// How many were not kept although they were cleared.
    #[cfg(test)]
    given_up: usize,
}

/// Disks that are mounted and empty. Clones share them.
#[derive(Clone)]
pub(super) struct KeptDisks {
    files: DiskStore,
    /// How long a cleared disk may take to be as a new one.
    patience: Duration,
    shelf: Arc<Mutex<Shelf>>,
    /// Empties them.
    thread: Background,
    /// What new disks of each size have, once it was asked for.
    new: Arc<Mutex<HashMap<u64, Room>>>,
}

impl HeldDisk {
    /// Mounts the disk that a device has mounted already.
    fn of(device: u32, image: &Path) -> io::Result<Self> {
        let disk = Disk::Mounted { device, image: image.to_path_buf() };
        let mount = launcher::disk::open(&disk).map_err(|error| error.source)?.mount;
        Ok(Self { root: openat(&mount, ".", DIRECTORY, Mode::empty())?, device })
    }

    /// Its loop device.
    pub(super) fn device(&self) -> u32 {
        self.device
    }

    /// Deletes everything on it and makes its directories anew.
    fn clear(&self) -> io::Result<()> {
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
        make_directories(&root, Owners::AsInside)
    }

    /// Whether it is as a new one. What was deleted on it is then no longer in the file below.
    fn is_as_new(&self, new: Room) -> io::Result<bool> {
        if room(&self.root)? != new {
            return Ok(false);
        }
        // Tells of what could not be written since it was opened.
        syncfs(&self.root)?;
        launcher::disk::forget_deleted(&self.root)?;
        let errors = fs::read_to_string(format!("/sys/fs/ext4/loop{}/errors_count", self.device))?;
        if errors.trim() == "0" { Ok(true) } else { Err(io::Error::other("its file system has errors")) }
    }
}

impl AsFd for HeldDisk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// One that was cleared and is not yet seen to be as a new one.
struct Cleared {
    kept: Kept,
    new: Room,
    /// When it is given up.
    end: Instant,
    _place: Place,
}

/// A place of one that is being emptied; given back when this is dropped.
struct Place(Arc<Mutex<Shelf>>);

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.0).pending -= 1;
    }
}

impl Shelf {
    fn has_room_for(&self, mib: u64) -> bool {
        let is_other = |kept: &Kept| kept.mib != mib;
        self.pending < MOST_KEPT && (self.kept.len() < MOST_KEPT || self.kept.iter().any(is_other))
    }

    /// Adds one and gives back what is too much then: one of another size, if there is any.
    fn add(&mut self, kept: Kept) -> Option<Kept> {
        let place = self.kept.iter().position(|other| other.mib != kept.mib).unwrap_or_default();
        self.kept.push(kept);
        (self.kept.len() > MOST_KEPT).then(|| self.kept.remove(place))
    }
}

impl KeptDisks {
    pub(super) fn new(files: DiskStore, patience: Duration) -> Self {
        Self {
            files,
            patience,
            shelf: Arc::default(),
            thread: Background::new("kept disks"),
            new: Arc::default(),
        }
    }

    /// Deletes the files of disks that an earlier server has kept: they are mounted no more.
    pub(super) fn remove_old(&self) {
        for file in self.files.kept_files() {
            // Another server may use the same disks.
            if !is_held(&file) {
                let _ = fs::remove_file(file);
            }
        }
    }

    /// Puts the file of a kept disk at a path, where there is one of this size.
    pub(super) fn take(&self, mib: u64, target: &Path) -> Option<HeldDisk> {
        let Kept { disk, file, .. } = {
            let mut shelf = lock(&self.shelf);
            let place = shelf.kept.iter().rposition(|kept| kept.mib == mib)?;
            shelf.kept.swap_remove(place)
        };
        if let Err(error) = fs::rename(&file, target) {
            tracing::warn!(path = %file.display(), %error, "a kept disk is lost");
            let _ = fs::remove_file(file);
            return None;
        }
        Some(disk)
    }

    /// Keeps a disk mounted, by a directory that the first process of a sandbox sees on it, while the sandbox is ended. `None` when
    /// it shall go its usual way. Nothing is waited for: whoever writes to the disk may do so for long.
    pub(super) fn hold(&self, guest: u32, image: &Path) -> Option<OwnedFd> {
        let directory = open(
            Path::new("/proc").join(guest.to_string()).join("root").join("workspace"),
            DIRECTORY,
            Mode::empty(),
        )
        .ok()?;
        self.is_worth_keeping(&directory, image).ok()?.then_some(directory)
    }

    fn is_worth_keeping(&self, disk: impl AsFd, image: &Path) -> io::Result<bool> {
        let facts = fs::metadata(image)?;
        let mib = facts.len() / MEBIBYTE;
        if !self.files.keeps_any() || !lock(&self.shelf).has_room_for(mib) {
            return Ok(false);
        }
        self.is_little_used(disk, &facts)
    }

    fn is_little_used(&self, disk: impl AsFd, facts: &fs::Metadata) -> io::Result<bool> {
        let (new, left) = (self.new_room(facts.len() / MEBIBYTE)?, room(disk)?);
        Ok(left.blocks.saturating_add(MOST_USED.blocks) >= new.blocks
            && left.inodes.saturating_add(MOST_USED.inodes) >= new.inodes
            && facts.blocks() * 512 <= MOST_ALLOCATED)
    }

    /// Keeps the disk of a sandbox whose processes are gone. False when it shall go its usual way.
    pub(super) fn keep(&self, held: OwnedFd, device: u32, image: &Path) -> bool {
        self.try_to_keep(held, device, image).unwrap_or_else(|error| {
            tracing::warn!(path = %image.display(), %error, "a disk is not kept");
            false
        })
    }

    fn try_to_keep(&self, held: OwnedFd, device: u32, image: &Path) -> io::Result<bool> {
        let disk = HeldDisk::of(device, image)?;
        drop(held);
        let facts = fs::metadata(image)?;
        let mib = facts.len() / MEBIBYTE;
        let Some(place) = self.reserve(mib).filter(|_| self.files.keeps_any()) else { return Ok(false) };
        if !self.is_little_used(&disk, &facts)? {
            return Ok(false);
        }
        let new = self.new_room(mib)?;
        let file = self.files.kept_file(mib);
        fs::rename(image, &file)?;
        let kept = Kept { disk, file, mib };
        let this = self.clone();
        self.thread.later(move || {
            let result = kept.disk.clear();
            let cleared = Cleared { kept, new, end: Instant::now() + this.patience, _place: place };
            match result {
                Ok(()) => this.shelve(cleared),
                Err(error) => this.give_up(cleared, &error),
            }
        });
        Ok(true)
    }

    /// Puts one on the shelf as soon as it is as a new one. Others have their turn until then.
    fn shelve(&self, cleared: Cleared) {
        match cleared.kept.disk.is_as_new(cleared.new) {
            Ok(true) => {
                let too_much = lock(&self.shelf).add(cleared.kept);
                if let Some(kept) = too_much {
                    give_back(&self.files, kept);
                }
            }
            Ok(false) if Instant::now() < cleared.end => {
                std::thread::sleep(TICK);
                let this = self.clone();
                self.thread.later(move || this.shelve(cleared));
            }
            Ok(false) => self.give_up(cleared, &io::Error::other("something is left on it")),
            Err(error) => self.give_up(cleared, &error),
        }
    }

    fn give_up(&self, cleared: Cleared, error: &io::Error) {
        tracing::debug!(%error, "a disk is made anew");
        #[cfg(test)]
        {
            lock(&self.shelf).given_up += 1;
        }
        give_back(&self.files, cleared.kept);
    }

    fn reserve(&self, mib: u64) -> Option<Place> {
        let mut shelf = lock(&self.shelf);
        if !shelf.has_room_for(mib) {
            return None;
        }
        shelf.pending += 1;
        Some(Place(Arc::clone(&self.shelf)))
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

fn room(disk: impl AsFd) -> io::Result<Room> {
    let told = fstatvfs(disk)?;
    Ok(Room { blocks: told.f_bfree, inodes: told.f_ffree })
}

/// Makes the file below an empty disk again, or deletes it.
fn give_back(files: &DiskStore, kept: Kept) {
    let Kept { disk, file, .. } = kept;
    let device = disk.device();
    drop(disk);
    if wait_for_image(&file, Some(device), DEVICE_PATIENCE).is_ok() {
        files.take_back(&file);
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

    use super::*;

    const MIB: u64 = 64;

    struct Bench {
        directory: tempfile::TempDir,
        disks: KeptDisks,
    }

    impl Bench {
        /// Waits for a disk to be as a new one for as long as a busy machine may need.
        fn new(ready: usize) -> Self {
            Self::with_patience(ready, Duration::from_secs(600))
        }

        fn with_patience(ready: usize, patience: Duration) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let disks = KeptDisks::new(DiskStore::new(directory.path().into(), ready), patience);
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

        /// Keeps it as if a sandbox with it had just ended.
        fn keep(&self, disk: HeldDisk) -> bool {
            let device = disk.device();
            self.disks.keep(disk.root, device, &self.image())
        }

        /// Waits until so many disks were given up.
        fn wait_until_given_up(&self, count: usize) {
            while lock(&self.disks.shelf).given_up < count {
                std::thread::sleep(TICK);
            }
        }

        /// Waits until all that was asked for is done.
        fn settle(&self) {
            while lock(&self.disks.shelf).pending > 0 {
                std::thread::sleep(TICK);
            }
        }

        fn kept(&self) -> usize {
            let shelf = lock(&self.disks.shelf);
            assert_eq!(shelf.pending, 0);
            shelf.kept.len()
        }

        /// Files of disks that are or were kept.
        fn kept_files(&self) -> usize {
            self.disks.files.kept_files().len()
        }
    }

    fn contains(file: &Path, text: &[u8]) -> bool {
        fs::read(file).unwrap().windows(text.len()).any(|part| part == text)
    }

    fn path(disk: &HeldDisk, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", disk.root.as_raw_fd()))
    }

    #[test]
    fn a_disk_that_was_used_a_little_is_kept_and_nothing_on_it() {
        let bench = Bench::new(1);
        let disk = bench.mounted();
        let device = disk.device();
        fs::write(path(&disk, "workspace/secret"), "only here").unwrap();
        syncfs(&disk.root).unwrap();
        assert!(contains(&bench.image(), b"only here"));
        fs::create_dir_all(path(&disk, "upper/var/tmp/.cache")).unwrap();
        fs::create_dir_all(path(&disk, "work/index/a")).unwrap();
        std::os::unix::fs::symlink("/etc", path(&disk, "upper/etc")).unwrap();
        fs::set_permissions(path(&disk, "workspace"), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(bench.keep(disk));
        assert!(!bench.image().exists());
        bench.settle();
        assert!(bench.disks.take(MIB * 2, &bench.image()).is_none());
        let disk = bench.disks.take(MIB, &bench.image()).unwrap();
        assert_eq!(disk.device(), device);
        assert!(bench.image().exists());
        assert!(!contains(&bench.image(), b"only here"), "it is still in the file below");
        assert_eq!((bench.kept(), bench.kept_files()), (0, 0));
        for name in ["workspace", "upper", "work", "lower", "root"] {
            assert_eq!(fs::read_dir(path(&disk, name)).unwrap().count(), 0, "{name}");
            assert_eq!(fs::metadata(path(&disk, name)).unwrap().mode() & 0o7777, 0o755, "{name}");
        }
        assert_eq!(fs::metadata(path(&disk, "workspace")).unwrap().uid(), launcher::spec::AGENT_ID);
        assert_eq!(room(&disk).unwrap(), bench.disks.new_room(MIB).unwrap());
        assert!(bench.disks.take(MIB, &bench.image()).is_none());
    }

    #[test]
    fn a_disk_that_was_used_much_goes_its_usual_way() {
        let bench = Bench::new(1);
        let disk = bench.mounted();
        fs::write(path(&disk, "workspace/large"), vec![7; 8 << 20]).unwrap();
        assert!(!bench.keep(disk));
        assert!(bench.image().exists());
        let without = Bench::new(0);
        assert!(!without.keep(without.mounted()));
    }

    #[test]
    fn a_disk_that_something_is_left_on_is_not_kept() {
        let bench = Bench::with_patience(1, PATIENCE);
        for (place, count) in [("workspace/open", 1), ("lower/hidden", 2)] {
            let disk = bench.mounted();
            fs::write(path(&disk, place), "x").unwrap();
            // Deleted and still there as long as this is open.
            let open = fs::File::open(path(&disk, place)).unwrap();
            assert!(bench.keep(disk));
            bench.wait_until_given_up(count);
            drop(open);
            bench.settle();
            assert_eq!((bench.kept(), bench.kept_files()), (0, 0), "{place}");
        }
    }

    #[test]
    fn a_disk_that_takes_long_keeps_no_other_waiting() {
        let bench = Bench::new(2);
        let slow = bench.mounted();
        fs::write(path(&slow, "workspace/open"), "x").unwrap();
        let open = fs::File::open(path(&slow, "workspace/open")).unwrap();
        assert!(bench.keep(slow));
        assert!(bench.keep(bench.mounted()));
        let counts = || {
            let shelf = lock(&bench.disks.shelf);
            (shelf.kept.len(), shelf.pending)
        };
        while counts() != (1, 1) {
            std::thread::sleep(TICK);
        }
        drop(open);
        bench.settle();
        assert_eq!(bench.kept(), 2);
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for_and_another_size_gives_way() {
        let bench = Bench::new(MOST_KEPT + 2);
        let shelf = |sizes: &[u64]| {
            let shelf = lock(&bench.disks.shelf);
            assert_eq!(shelf.kept.iter().map(|kept| kept.mib).collect::<Vec<_>>(), sizes);
        };
        for _ in 0..MOST_KEPT {
            assert!(bench.keep(bench.mounted()));
            bench.settle();
        }
        shelf(&[MIB; MOST_KEPT]);
        assert!(!bench.keep(bench.mounted()));
        lock(&bench.disks.shelf).kept[3].mib = MIB * 2;
        assert!(bench.keep(bench.mounted()));
        bench.settle();
        shelf(&[MIB; MOST_KEPT]);
        assert_eq!(bench.kept_files(), MOST_KEPT);
    }

    #[test]
    fn what_an_earlier_server_kept_is_deleted() {
        let bench = Bench::new(1);
        assert!(bench.keep(bench.mounted()));
        fs::write(bench.disks.files.kept_file(MIB), "").unwrap();
        bench.settle();
        assert_eq!(bench.kept_files(), 2);
        bench.disks.remove_old();
        // That of a server that lives, here of this one, stays.
        assert_eq!((bench.kept(), bench.kept_files()), (1, 1));
        assert!(bench.disks.take(MIB, &bench.image()).is_some());
    }
}
