//! A pool of empty disks, created ahead of time: taking one is a rename.
//!
//! A disk is a sparse file with an ext4 file system without a journal. A template of each size is formatted once; the
//! others are copies of its few written blocks. On hosts without loop devices a disk is a plain directory.
//!
//! Several processes may use the same pool at the same time: a server, and commands that run a job of their own. Each
//! prepares files in a folder of its own and renames them when they are complete.
//!
//! No disk is reused: it is deleted with its sandbox, and a new copy takes its place. Sizes are rounded up. Templates
//! and ready disks are kept for at most [`MAX_SIZES`] sizes, the most recently used ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use launcher::spec::{AGENT_ID, DISK_DIRECTORIES};
use rustix::fs::{FlockOperation, SeekFrom, flock, ftruncate, ioctl_ficlone, seek};
use uuid::Uuid;

use super::background::Background;
use crate::error::{SandboxError, failed};

/// File name of the disk in its sandbox's directory.
pub(crate) const DISK_FILE: &str = "disk.img";
/// Part of a template's name; increase when the way templates are made changes.
const FORMAT: &str = "ext4-4";
const TEMPLATE: &str = "template";
/// File name prefix of all disks, in any format version.
const OTHER_FORMATS: &str = "ext4-";
/// Name prefix of the folders in which disks are prepared.
const PREPARING: &str = "preparing-";
const MEBIBYTE: u64 = 1 << 20;
/// Templates and ready disks are kept for at most this many sizes.
const MAX_SIZES: usize = 8;
/// Rounding up makes a disk larger than requested by less than 1/8.
const STEPS_PER_DOUBLING: u64 = 8;
const COPIED_AT_ONCE: usize = 256 << 10;
/// Sparse and fast to mount: no journal, metadata in one place without a second copy, and tables that the kernel may
/// assume to be zero.
const FORMAT_OPTIONS: [&str; 10] = [
    "-q",
    "-F",
    // Equal to the hole size of the file below, also on small disks.
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

/// Who owns the agent's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owners {
    /// The users in the recipe: the server is root, and mounts map ids.
    AsInside,
    /// The server's user: the launcher changes the owner inside the sandbox.
    Server,
}

/// Path of `mkfs.ext4`, if the host has it.
fn format_program() -> Option<PathBuf> {
    PROGRAM_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(FORMAT_PROGRAM))
        .find(|path| path.exists())
}

/// Why this host cannot make disks of a given size; `None` if it can.
pub(crate) fn disk_obstacle() -> Option<String> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
        return Some(format!("no loop devices: /dev/loop-control: {error}"));
    }
    format_program().is_none().then(|| "mkfs.ext4 is missing (package e2fsprogs)".into())
}

/// The disk pool of one host.
#[derive(Clone)]
pub(crate) struct DiskPools {
    pool: DiskPool,
    /// Fills the pool.
    thread: Background,
    /// Sizes queued for refilling.
    queued: Arc<Mutex<BTreeSet<u64>>>,
}

impl DiskPools {
    pub(crate) fn new(directory: PathBuf, ready: usize) -> Self {
        Self { pool: DiskPool { directory, ready }, thread: Background::new("disks"), queued: Arc::default() }
    }

    /// Deletes leftovers of earlier servers that this one does not use: unfinished disks, disks of other formats
    /// (including disks that were in use in the past), and surplus ready disks or sizes.
    pub(crate) fn remove_leftovers(&self) {
        self.pool.remove_leftovers();
    }

    /// Puts an empty disk of at least the given size at `target`, and refills the pool if it runs low.
    pub(crate) fn take(&self, mib: u64, target: &Path) -> Result<(), SandboxError> {
        let mib = rounded(mib);
        if !self.pool.take(mib, target) {
            let template = self.pool.open_template(mib)?;
            copy_sparse(&template, target).map_err(|source| failed("copying a disk to", target, source))?;
        }
        self.refill(mib);
        Ok(())
    }

    /// Creates ready disks in the background if there are not enough.
    fn refill(&self, mib: u64) {
        if self.pool.ready == 0 || !self.queued.lock().unwrap_or_else(PoisonError::into_inner).insert(mib) {
            return;
        }
        let (pool, queued) = (self.pool.clone(), Arc::clone(&self.queued));
        self.thread.run(move || {
            queued.lock().unwrap_or_else(PoisonError::into_inner).remove(&mib);
            if let Err(error) = pool.fill(mib) {
                tracing::warn!(error = %error, "cannot prepare a spare disk");
            }
        });
    }
}

/// The files of the pool.
#[derive(Clone)]
struct DiskPool {
    directory: PathBuf,
    ready: usize,
}

impl DiskPool {
    fn template(&self, mib: u64) -> PathBuf {
        self.directory.join(format!("{FORMAT}-{mib}.{TEMPLATE}"))
    }

    fn ready_disk(&self, mib: u64, number: usize) -> PathBuf {
        self.directory.join(format!("{FORMAT}-{mib}.{number}.ready"))
    }

    fn take(&self, mib: u64, target: &Path) -> bool {
        (0..self.ready).any(|number| fs::rename(self.ready_disk(mib, number), target).is_ok())
    }

    /// Creates disks once half of them are gone.
    fn fill(&self, mib: u64) -> Result<(), SandboxError> {
        // Needed even if enough disks are ready: opening the template records that the size was used.
        let template = self.open_template(mib)?;
        let is_missing = |path: &PathBuf| !path.exists();
        let missing: Vec<_> =
            (0..self.ready).map(|number| self.ready_disk(mib, number)).filter(is_missing).collect();
        if missing.len() * 2 < self.ready {
            return Ok(());
        }
        for target in missing {
            let folder = WorkFolder::create(&self.directory)
                .map_err(|source| failed("preparing a disk in", &self.directory, source))?;
            let partial = folder.path.join(DISK_FILE);
            // Attaching a loop device waits until its file is on the host's disk. Syncing it here avoids that wait
            // later.
            copy_sparse(&template, &partial)
                .and_then(|copy| copy.sync_all())
                .and_then(|()| fs::rename(&partial, &target))
                .map_err(|source| failed("copying a disk to", &target, source))?;
        }
        // Another thread may have removed this size while its disks were being created.
        self.remove_unused_sizes();
        Ok(())
    }

    fn remove_leftovers(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_kept = match size_of(&path) {
                Some((_, TEMPLATE)) => true,
                Some((_, kind)) => kind
                    .strip_suffix(".ready")
                    .and_then(|number| number.parse::<usize>().ok())
                    .is_some_and(|number| number < self.ready),
                None if name.starts_with(PREPARING) => WorkFolder::is_in_use(&path),
                None => !name.starts_with(OTHER_FORMATS),
            };
            if !is_kept {
                // Another process may have been faster.
                let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
        self.remove_unused_sizes();
    }

    /// Opens the template of a size, creating it if necessary. An open template can still be copied after its
    /// removal.
    fn open_template(&self, mib: u64) -> Result<File, SandboxError> {
        let target = self.template(mib);
        let opening = |source| failed("opening", &target, source);
        match OpenOptions::new().read(true).write(true).open(&target) {
            Ok(template) => {
                template.set_modified(SystemTime::now()).map_err(opening)?;
                Ok(template)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let template = self.make_template(mib, &target)?;
                self.remove_unused_sizes();
                Ok(template)
            }
            Err(error) => Err(opening(error)),
        }
    }

    /// Removes templates and ready disks of the least recently used sizes.
    fn remove_unused_sizes(&self) {
        let mut sizes: BTreeMap<u64, (SystemTime, Vec<PathBuf>)> = BTreeMap::new();
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Some((mib, kind)) = size_of(&path) else { continue };
            let (used, files) = sizes.entry(mib).or_insert((SystemTime::UNIX_EPOCH, Vec::new()));
            if kind == TEMPLATE {
                *used = entry.metadata().and_then(|facts| facts.modified()).unwrap_or(*used);
            }
            files.push(path);
        }
        let mut sizes: Vec<_> = sizes.into_values().collect();
        sizes.sort();
        let too_many = sizes.len().saturating_sub(MAX_SIZES);
        for file in sizes.into_iter().take(too_many).flat_map(|(_, files)| files) {
            // It may have been taken in the meantime.
            let _ = fs::remove_file(file);
        }
    }

    fn make_template(&self, mib: u64, target: &Path) -> Result<File, SandboxError> {
        let program = format_program().ok_or_else(|| SandboxError::HostUnsupported {
            what: format!("{FORMAT_PROGRAM}, which formats sandbox disks, is missing"),
            remedy: "install the package e2fsprogs".into(),
        })?;
        let make = || -> io::Result<File> {
            let folder = WorkFolder::create(&self.directory)?;
            let (content, partial) = (folder.path.join("content"), folder.path.join(DISK_FILE));
            make_directories(&content, Owners::AsInside)?;
            let file = create(&partial)?;
            ftruncate(&file, mib * MEBIBYTE)?;
            let output =
                Command::new(&program).args(FORMAT_OPTIONS).arg("-d").arg(&content).arg(&partial).output()?;
            if !output.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
            fs::rename(&partial, target)?;
            Ok(file)
        };
        make().map_err(|source| failed("formatting", target, source))
    }
}

/// A folder in which one thread prepares a disk. Its lock tells other processes that it is in use; dropping it removes
/// the folder.
struct WorkFolder {
    path: PathBuf,
    _lock: File,
}

impl WorkFolder {
    fn create(parent: &Path) -> io::Result<Self> {
        loop {
            let path = parent.join(format!("{PREPARING}{}", Uuid::new_v4()));
            fs::create_dir(&path)?;
            // Another process may remove the folder before it is locked.
            let lock = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            flock(&lock, FlockOperation::LockExclusive)?;
            if path.try_exists()? {
                return Ok(Self { path, _lock: lock });
            }
        }
    }

    /// Whether a living process prepares a disk in this folder.
    fn is_in_use(path: &Path) -> bool {
        File::open(path).is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err())
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // Best effort: the next start removes what is left.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The disk size that serves requests for `mib`. There are few sizes, so that many requests share a template.
fn rounded(mib: u64) -> u64 {
    let step = (mib.next_power_of_two() / 2 / STEPS_PER_DOUBLING).max(1);
    mib.next_multiple_of(step)
}

/// The size of a template or ready disk, parsed from its name, and the rest of the name, which says which it is.
fn size_of(path: &Path) -> Option<(u64, &str)> {
    let (size, kind) =
        path.file_name()?.to_str()?.strip_prefix(FORMAT)?.strip_prefix('-')?.split_once('.')?;
    Some((size.parse().ok()?, kind))
}

/// The directories that the launcher expects at the root of a disk.
pub(crate) fn make_directories(root: &Path, owners: Owners) -> io::Result<()> {
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

/// Copies only the written parts of a file to a new one. Shares blocks if the file system supports that.
fn copy_sparse(from: &File, target: &Path) -> io::Result<File> {
    let to = create(target)?;
    if ioctl_ficlone(&to, from).is_ok() {
        return Ok(to);
    }
    ftruncate(&to, from.metadata()?.len())?;
    for part in written_parts(from)? {
        copy_part(from, &to, part)?;
    }
    Ok(to)
}

/// The ranges of a file that are not holes, in order.
fn written_parts(file: &File) -> io::Result<Vec<Range<u64>>> {
    let (mut parts, mut position) = (Vec::new(), 0);
    loop {
        let start = match seek(file, SeekFrom::Data(position)) {
            // There are no more ranges.
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
        copy_sparse(&file, &target).unwrap();
        assert!(fs::read(&source).unwrap() == fs::read(&target).unwrap());
        assert!(fs::metadata(&target).unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn sizes_are_rounded_up_by_less_than_an_eighth() {
        for (queued, given) in
            [(16, 16), (17, 18), (100, 104), (1025, 1152), (8192, 8192), ((1 << 24) - 1, 1 << 24)]
        {
            assert_eq!(rounded(queued), given, "{queued}");
        }
        let all: BTreeSet<u64> = (16..=1 << 16).map(rounded).collect();
        assert!(all.len() <= 12 * 8 + 1, "{}", all.len());
        assert!((16..=1 << 16).all(|mib: u64| (mib..mib + mib.div_ceil(8)).contains(&rounded(mib))));
    }

    #[test]
    fn only_recently_used_sizes_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let pool = DiskPool { directory: directory.path().into(), ready: 1 };
        let earlier = directory.path().join("ext4-3-64.1-1.kept");
        fs::write(&earlier, "of an earlier version").unwrap();
        pool.remove_leftovers();
        assert!(!earlier.exists());
        let sizes: Vec<u64> = (16..).take(MAX_SIZES).collect();
        for (age, mib) in (1..).zip(&sizes) {
            pool.fill(*mib).unwrap();
            let template = File::options().write(true).open(pool.template(*mib)).unwrap();
            template.set_modified(SystemTime::now() - Duration::from_secs(3600 - age)).unwrap();
        }
        // Using the oldest size again makes the second one the least recently used.
        pool.open_template(sizes[0]).unwrap();
        let open = pool.open_template(sizes[1]).unwrap();
        open.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        pool.fill(99).unwrap();
        let is_kept = |mib| (pool.template(mib).exists(), pool.ready_disk(mib, 0).exists());
        for mib in sizes.iter().copied().chain([99]) {
            let kept = mib != sizes[1];
            assert_eq!(is_kept(mib), (kept, kept), "{mib}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), MAX_SIZES * 2);
        // A process that has it open can still copy it.
        let target = directory.path().join("taken");
        copy_sparse(&open, &target).unwrap();
        assert_eq!(fs::metadata(&target).unwrap().len(), sizes[1] * MEBIBYTE);
    }

    #[test]
    fn leftovers_of_killed_servers_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(directory.path().join(name), "").unwrap();
        for size in 16..40 {
            write(&format!("{FORMAT}-{size}.{TEMPLATE}"));
            write(&format!("{FORMAT}-{size}.0.ready"));
        }
        for left in ["ext4-4-39.1.partial", "ext4-4-39.2.ready", "ext4-3-16.template"] {
            write(left);
        }
        fs::create_dir_all(directory.path().join("preparing-1/content/workspace")).unwrap();
        write("of-somebody-else");
        DiskPool { directory: directory.path().into(), ready: 2 }.remove_leftovers();
        let left: BTreeSet<String> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(left.len(), MAX_SIZES * 2 + 1, "{left:?}");
        let is_leftover = |name: &String| name.ends_with(".partial") || name.starts_with(PREPARING);
        assert!(left.contains("of-somebody-else") && !left.iter().any(is_leftover), "{left:?}");
    }

    #[test]
    fn a_starting_process_leaves_what_another_one_prepares() {
        let directory = tempfile::tempdir().unwrap();
        let pool = DiskPool { directory: directory.path().into(), ready: 1 };
        let preparing = [0; 2].map(|_| WorkFolder::create(directory.path()).unwrap());
        assert_ne!(preparing[0].path, preparing[1].path);
        pool.remove_leftovers();
        assert!(preparing.iter().all(|folder| folder.path.is_dir()));
        drop(preparing);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn processes_that_format_the_same_size_do_not_disturb_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let takers = 8;
        let barrier = std::sync::Barrier::new(takers);
        std::thread::scope(|scope| {
            for number in 0..takers {
                let (barrier, directory) = (&barrier, directory.path());
                // Each has a pool of its own, as a process has.
                scope.spawn(move || {
                    let pool = DiskPool { directory: directory.into(), ready: 2 };
                    barrier.wait();
                    pool.remove_leftovers();
                    pool.fill(64).unwrap();
                    let target = directory.join(format!("taken-{number}"));
                    if !pool.take(64, &target) {
                        copy_sparse(&pool.open_template(64).unwrap(), &target).unwrap();
                    }
                });
            }
        });
        for number in 0..takers {
            let disk = directory.path().join(format!("taken-{number}"));
            let checked = Command::new("e2fsck").args(["-f", "-n"]).arg(&disk).output().unwrap();
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
        }
    }

    #[test]
    fn pool_refills_when_half_empty() {
        let directory = tempfile::tempdir().unwrap();
        let pool = DiskPool { directory: directory.path().into(), ready: 4 };
        let count = || (0..4).filter(|number| pool.ready_disk(64, *number).exists()).count();
        pool.fill(64).unwrap();
        assert_eq!(count(), 4);
        for (left, filled) in [(3, 3), (2, 4)] {
            assert!(pool.take(64, &directory.path().join("taken")));
            assert_eq!(count(), left);
            pool.fill(64).unwrap();
            assert_eq!(count(), filled);
        }
    }

    #[test]
    fn disks_are_sparse_and_taken_ones_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let store = DiskPools::new(directory.path().into(), 2);
        let target = directory.path().join("taken");
        store.take(8192, &target).unwrap();
        let metadata = fs::metadata(&target).unwrap();
        assert_eq!(metadata.len(), 8192 * MEBIBYTE);
        assert!(metadata.blocks() * 512 < MEBIBYTE, "{} bytes are allocated", metadata.blocks() * 512);
        // `take` has started a background refill. A second one at the same time would delete the unfinished disks of
        // the first.
        let end = Instant::now() + Duration::from_secs(120);
        while !(0..2).all(|number| store.pool.ready_disk(8192, number).exists()) {
            assert!(Instant::now() < end, "no disks were made ready");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
