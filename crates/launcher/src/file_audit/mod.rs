//! Records which files the processes of a sandbox touch, using fanotify. Writes JSON lines to a file in the sandbox's
//! directory.
//!
//! There are two fanotify groups:
//!
//! - names (created, deleted, renamed), from a mark on the disk image, which holds everything that is written,
//!   including the upper directory of the root;
//! - files (opened, written), from a mark on the root's own file system and one on the disk.
//!
//! The owner of the sandbox reads both in its main loop, so recording continues while no server runs. Recording works
//! only for disks that are images: a mark on a host directory would report events of the host.

mod access_log;
mod directories;
mod event;
mod open_files;
mod process_info;
mod seen_reads;
mod seen_set;
mod sys;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

use self::access_log::AccessLog;
use self::directories::Directories;
use self::event::{Name, RawEvent, Role};
use self::process_info::ProcessCache;
use self::seen_reads::SeenReads;
use self::seen_set::SeenSet;
use self::sys::ReportMode;
use crate::spec::FILES_FILE;

/// How many recently reported files are remembered.
const MAX_REMEMBERED: usize = 16_384;
/// Pending text is written to the file once it is longer than this.
const MAX_TEXT: usize = 256 * 1024;
/// The maximum bytes written before the owner handles other work.
const MAX_AT_A_TIME: usize = 1024 * 1024;
/// Opens below these directories are not recorded: they hold the image's files and kernel file systems.
const IMAGE: [&[u8]; 11] = [
    b"/usr/",
    b"/bin/",
    b"/sbin/",
    b"/lib/",
    b"/lib32/",
    b"/lib64/",
    b"/etc/",
    b"/var/lib/",
    b"/proc/",
    b"/sys/",
    b"/dev/",
];
/// An exception below a kernel file system.
const SHARED_MEMORY: &[u8] = b"/dev/shm/";
/// File systems other than the root and the disk.
const EXTRA_FILE_SYSTEMS: [&str; 2] = ["dev/shm", "run"];
/// Events recorded for files.
const FILE_EVENTS: u64 = libc::FAN_OPEN | libc::FAN_CLOSE_WRITE;
/// The maximum number of rounds when reading all pending events: a sandbox that never stops must not block its own
/// end.
const MAX_TURNS: u32 = 64;
/// The maximum number of reads per round.
const MAX_READS: u32 = 256;
/// Overlayfs prepares files here before it moves them into place.
const OVERLAY_WORK: &str = "/work";
const OVERLAY_UPPER: &str = "/upper";

/// Whether more events may be pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    All,
    Some,
}

/// Consumes fanotify events and writes the file access log.
pub(crate) struct FileAudit {
    names: OwnedFd,
    files: OwnedFd,
    disk: OwnedFd,
    list: AccessLog,
    process_cache: ProcessCache,
    /// Paths of directories by their handles.
    directories: Directories,
    /// Opens that were already recorded.
    reads: SeenReads,
    /// The most recent write event.
    last_written: Option<(i32, Vec<u8>)>,
    /// Files recorded as written while they were still open.
    seen_open: SeenSet,
    /// Whether the log already says that some files have no path.
    reported_nameless: bool,
    /// Reused for reading events.
    buffer: Vec<u8>,
}

impl FileAudit {
    /// Starts recording, with a mark on the disk image.
    pub(crate) fn begin(disk: BorrowedFd<'_>, directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let disk = openat(disk, ".", flags, Mode::empty())?;
        let (names, files) = (sys::group(ReportMode::Names)?, sys::group(ReportMode::Descriptors)?);
        let name_events = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_RENAME | libc::FAN_ONDIR;
        sys::mark(&names, name_events, &disk)?;
        sys::mark(&files, FILE_EVENTS, &disk)?;
        Ok(Self {
            names,
            files,
            disk,
            list: AccessLog::begin(&directory.join(FILES_FILE))?,
            process_cache: ProcessCache::default(),
            directories: Directories::default(),
            reads: SeenReads::new(MAX_REMEMBERED),
            last_written: None,
            seen_open: SeenSet::new(MAX_REMEMBERED),
            reported_nameless: false,
            buffer: vec![0; 64 * 1024],
        })
    }

    /// Adds the files of the root file system, once the sandbox has one.
    pub(crate) fn add_root(&mut self, pid: i32) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())?;
        sys::mark(&self.files, FILE_EVENTS, &root)?;
        for name in EXTRA_FILE_SYSTEMS {
            // Name events of these file systems cannot be recorded: their handles cannot be resolved on the disk.
            let marked = openat(&root, name, flags, Mode::empty())
                .map_err(io::Error::from)
                .and_then(|place| sys::mark(&self.files, FILE_EVENTS, &place));
            if let Err(error) = marked {
                let mut text = Vec::new();
                access_log::gap(&mut text, &format!("changes in /{name} cannot be recorded: {error}"));
                self.list.write(&text);
            }
        }
        Ok(())
    }

    /// Records everything that has happened so far, including the files that are still open for writing: they might
    /// never be closed before the sandbox ends.
    pub(crate) fn record_open_files(&mut self, guest: i32) {
        self.drain_all();
        let Self { seen_open, process_cache, list, .. } = self;
        let mut text = Vec::new();
        open_files::for_each_open_for_writing(guest, |pid, path| {
            if seen_open.is_full() || !seen_open.is_new(path) {
                return;
            }
            access_log::add(
                &mut text,
                "written",
                Some(shown(path)),
                None,
                process_cache.who(pid),
                Some("it is still open"),
            );
            if seen_open.is_full() {
                access_log::gap(&mut text, "more files are open for writing than are listed");
            }
            list.write_over(MAX_TEXT, &mut text);
        });
        list.write(&text);
    }

    /// Like [`Self::drain`], but reads everything that is pending, in up to `MAX_TURNS` rounds.
    pub(crate) fn drain_all(&mut self) {
        for _ in 0..MAX_TURNS {
            if self.drain() == Drained::All {
                return;
            }
        }
    }

    /// The descriptors to poll.
    pub(crate) fn descriptors(&self) -> [&OwnedFd; 2] {
        [&self.names, &self.files]
    }

    /// Records pending events, up to the limits for one round.
    pub(crate) fn drain(&mut self) -> Drained {
        let mut drained = Drained::All;
        let mut text = Vec::new();
        let mut written = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        for turn in 0..2 {
            for number in 0.. {
                // A sandbox whose events are not worth a line must not block its owner either.
                if number == MAX_READS {
                    drained = Drained::Some;
                    break;
                }
                let group = if turn == 0 { &self.names } else { &self.files };
                let Ok(count @ 1..) = rustix::io::read(group, &mut buffer) else { break };
                for event in event::read(&buffer[..count]) {
                    self.tell(event, &mut text);
                    written += self.list.write_over(MAX_TEXT, &mut text);
                }
                // A sandbox that never stops must not block its owner.
                if written > MAX_AT_A_TIME {
                    drained = Drained::Some;
                    break;
                }
            }
        }
        self.buffer = buffer;
        self.list.write(&text);
        drained
    }

    fn tell(&mut self, event: RawEvent, text: &mut Vec<u8>) {
        let RawEvent { mask, fd, pid, names } = event;
        let file = fd.map(sys::take_descriptor);
        // Resolving a file of the root opens the underlying file on the disk, so the owner's own events are ignored.
        if u32::try_from(pid) == Ok(std::process::id()) {
            return;
        }
        if mask & libc::FAN_Q_OVERFLOW != 0 {
            return access_log::gap(text, "more happened at once than the kernel remembers");
        }
        match file {
            Some(file) => self.record_file_event(mask, pid, &file, text),
            None => self.record_name_events(mask, pid, &names, text),
        }
    }

    fn record_file_event(&mut self, mask: u64, pid: i32, file: &OwnedFd, text: &mut Vec<u8>) {
        let path = path_of_fd(file).unwrap_or_else(|_| {
            self.record_missing_path(text);
            path_by_inode(file)
        });
        let path = path.as_slice();
        if path == b"/" {
            return;
        }
        if mask & libc::FAN_CLOSE_WRITE != 0 {
            // A write through the root is reported twice: by the root and by the disk below it.
            if self.last_written.as_ref().is_some_and(|(who, what)| *who == pid && what == path) {
                self.last_written = None;
                return;
            }
            self.last_written = Some((pid, path.to_vec()));
            let who = self.process_cache.who(pid);
            return access_log::add(text, "written", Some(shown(path)), None, who, None);
        }
        if is_image_path(path) {
            return;
        }
        let who = self.process_cache.who(pid);
        if self.reads.is_new(pid, who.start_time, path) {
            access_log::add(text, "opened", Some(shown(path)), None, who, None);
        }
    }

    /// Records once per sandbox that some lines have an inode number instead of a path.
    fn record_missing_path(&mut self, text: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.reported_nameless, true) {
            access_log::gap(
                text,
                "some files are so deep that the kernel does not report their paths; they are listed as /?/inode-NUMBER",
            );
        }
    }

    fn record_name_events(&mut self, mask: u64, pid: i32, names: &[Name], text: &mut Vec<u8>) {
        let path = |audit: &mut Self, role: Role| {
            names.iter().find(|name| name.role == role).map(|name| audit.path_of(name))
        };
        let who = |audit: &mut Self| audit.process_cache.who(pid);
        if mask & libc::FAN_RENAME != 0 {
            let (from, to) = (path(self, Role::Old).flatten(), path(self, Role::New).flatten());
            match (from, to) {
                (Some(from), Some(to)) => {
                    access_log::add(text, "renamed", Some(to), Some(from), who(self), None)
                }
                // A rename out of the work directory means that overlayfs created something; a rename into it, that
                // it deleted something.
                (None, Some(to)) => access_log::add(text, "created", Some(to), None, who(self), None),
                (Some(from), None) => access_log::add(text, "deleted", Some(from), None, who(self), None),
                (None, None) => {}
            }
            return;
        }
        let Some(Some(path)) = path(self, Role::Only) else { return };
        if mask & libc::FAN_CREATE != 0 {
            access_log::add(text, "created", Some(path.clone()), None, who(self), None);
        }
        if mask & libc::FAN_DELETE != 0 {
            access_log::add(text, "deleted", Some(path), None, who(self), None);
        }
    }

    /// The path inside the sandbox; `None` for overlayfs's own files.
    fn path_of(&mut self, name: &Name) -> Option<String> {
        let directory = self.directory(name)?;
        let below = |place: &str| {
            directory.strip_prefix(place).filter(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if below(OVERLAY_WORK).is_some() {
            return None;
        }
        let inside = below(OVERLAY_UPPER).unwrap_or(&directory);
        Some(format!("{}/{}", inside.trim_end_matches('/'), shown(&name.name)))
    }

    fn directory(&mut self, name: &Name) -> Option<String> {
        let found = sys::open_handle(&self.disk, name.handle_kind, &name.handle)
            .map(|directory| shown(&path_of_fd(&directory).unwrap_or_else(|_| path_by_inode(&directory))));
        match found {
            Ok(path) => {
                self.directories.keep(&name.handle, &path);
                Some(path)
            }
            // The directory is gone; use its last known path.
            Err(_) => Some(self.directories.find(&name.handle).unwrap_or("/?").to_owned()),
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The path of an open file; an error if it is longer than the kernel reports.
fn path_of_fd(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(named(path.as_os_str().as_bytes(), file).to_vec())
}

/// The substitute for a path that the kernel does not report.
fn path_by_inode(file: &OwnedFd) -> Vec<u8> {
    match rustix::fs::fstat(file) {
        Ok(stat) => format!("/?/inode-{}", stat.st_ino).into_bytes(),
        Err(_) => b"/?".to_vec(),
    }
}

/// The path of an open file without the suffix that the kernel adds for deleted files.
fn named<'a>(path: &'a [u8], file: &OwnedFd) -> &'a [u8] {
    let is_gone = rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0);
    if is_gone { path.strip_suffix(b" (deleted)").unwrap_or(path) } else { path }
}

fn is_image_path(path: &[u8]) -> bool {
    !path.starts_with(SHARED_MEMORY) && IMAGE.iter().any(|start| path.starts_with(start))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn only_deleted_files_lose_the_deleted_suffix() {
        let path = std::env::temp_dir().join(format!("caisson-{} (deleted)", std::process::id()));
        let file = OwnedFd::from(fs::File::create(&path).unwrap());
        let link = || fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(named(link().as_os_str().as_bytes(), &file), path.as_os_str().as_bytes());
        fs::remove_file(&path).unwrap();
        assert_eq!(named(link().as_os_str().as_bytes(), &file), path.as_os_str().as_bytes());
    }

    #[test]
    fn files_with_too_long_paths_are_reported_by_inode() {
        let top = std::env::temp_dir().join(format!("caisson-deep-{}", std::process::id()));
        fs::create_dir_all(&top).unwrap();
        let name = "n".repeat(250);
        let mut place = rustix::fs::open(&top, OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..20 {
            rustix::fs::mkdirat(&place, &name, Mode::RWXU).unwrap();
            place = openat(&place, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let file = openat(&place, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        let told = path_of_fd(&file);
        let number = shown(&path_by_inode(&file));
        fs::remove_dir_all(&top).unwrap();
        assert!(told.is_err(), "{told:?}");
        let inode = number.strip_prefix("/?/inode-").unwrap();
        assert!(inode.parse::<u64>().is_ok(), "{number}");
        assert!(!is_image_path(number.as_bytes()));
    }

    #[test]
    fn reads_of_image_files_are_not_recorded_and_all_others_are() {
        for path in ["/usr/lib/x", "/lib64/ld.so", "/etc/passwd", "/proc/self/maps", "/dev/null"] {
            assert!(is_image_path(path.as_bytes()), "{path}");
        }
        for path in ["/workspace/a", "/opt/tool/x", "/data/x", "/dev/shm/x", "/var/cache/x", "/usrlocal"] {
            assert!(!is_image_path(path.as_bytes()), "{path}");
        }
    }
}
