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

mod directories;
mod event;
mod list;
mod open;
mod reads;
mod sys;
mod told;
mod who;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

use self::directories::Directories;
use self::event::{Name, RawEvent, Role};
use self::list::List;
use self::reads::Reads;
use self::sys::Tells;
use self::told::Told;
use self::who::Asked;
use crate::spec::FILES_FILE;

/// How many recently reported files are remembered.
const MOST_REMEMBERED: usize = 16_384;
/// Pending text is written to the file once it is longer than this.
const MOST_TEXT: usize = 256 * 1024;
/// The maximum bytes written before the owner handles other work.
const MOST_AT_A_TIME: usize = 1024 * 1024;
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
const BESIDE: [&str; 2] = ["dev/shm", "run"];
/// Events recorded for files.
const OF_FILES: u64 = libc::FAN_OPEN | libc::FAN_CLOSE_WRITE;
/// The maximum number of rounds when reading all pending events: a sandbox that never stops must not block its own
/// end.
const MOST_TURNS: u32 = 64;
/// The maximum number of reads per round.
const MOST_READS: u32 = 256;
/// Overlayfs prepares files here before it moves them into place.
const WORK: &str = "/work";
const UPPER: &str = "/upper";

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
    list: List,
    asked: Asked,
    /// Paths of directories by their handles.
    directories: Directories,
    /// Opens that were already recorded.
    reads: Reads,
    /// The most recent write event.
    last_written: Option<(i32, Vec<u8>)>,
    /// Files recorded as written while they were still open.
    told_open: Told,
    /// Whether the log already says that some files have no path.
    is_nameless_told: bool,
    /// Reused for reading events.
    buffer: Vec<u8>,
}

impl FileAudit {
    /// Starts recording, with a mark on the disk image.
    pub(crate) fn begin(disk: BorrowedFd<'_>, directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let disk = openat(disk, ".", flags, Mode::empty())?;
        let (names, files) = (sys::group(Tells::Names)?, sys::group(Tells::Descriptors)?);
        let of_names = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_RENAME | libc::FAN_ONDIR;
        sys::mark(&names, of_names, &disk)?;
        sys::mark(&files, OF_FILES, &disk)?;
        Ok(Self {
            names,
            files,
            disk,
            list: List::begin(&directory.join(FILES_FILE))?,
            asked: Asked::default(),
            directories: Directories::default(),
            reads: Reads::new(MOST_REMEMBERED),
            last_written: None,
            told_open: Told::new(MOST_REMEMBERED),
            is_nameless_told: false,
            buffer: vec![0; 64 * 1024],
        })
    }

    /// Adds the files of the root file system, once the sandbox has one.
    pub(crate) fn add_root(&mut self, pid: i32) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())?;
        sys::mark(&self.files, OF_FILES, &root)?;
        for name in BESIDE {
            // Name events of these file systems cannot be recorded: their handles cannot be resolved on the disk.
            let marked = openat(&root, name, flags, Mode::empty())
                .map_err(io::Error::from)
                .and_then(|place| sys::mark(&self.files, OF_FILES, &place));
            if let Err(error) = marked {
                let mut text = Vec::new();
                list::gap(&mut text, &format!("what happens in /{name} cannot be told: {error}"));
                self.list.write(&text);
            }
        }
        Ok(())
    }

    /// Records everything that has happened so far, including the files that are still open for writing: they might
    /// never be closed before the sandbox ends.
    pub(crate) fn tell_open(&mut self, guest: i32) {
        self.drain_all();
        let Self { told_open, asked, list, .. } = self;
        let mut text = Vec::new();
        open::for_writing(guest, |pid, path| {
            if told_open.is_full() || !told_open.is_new(path) {
                return;
            }
            list::add(
                &mut text,
                "written",
                Some(shown(path)),
                None,
                asked.who(pid),
                Some("it is still open"),
            );
            if told_open.is_full() {
                list::gap(&mut text, "more files are open for writing than are told");
            }
            list.write_over(MOST_TEXT, &mut text);
        });
        list.write(&text);
    }

    /// Like [`Self::drain`], but reads everything that is pending, in up to `MOST_TURNS` rounds.
    pub(crate) fn drain_all(&mut self) {
        for _ in 0..MOST_TURNS {
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
                if number == MOST_READS {
                    drained = Drained::Some;
                    break;
                }
                let group = if turn == 0 { &self.names } else { &self.files };
                let Ok(count @ 1..) = rustix::io::read(group, &mut buffer) else { break };
                for event in event::read(&buffer[..count]) {
                    self.tell(event, &mut text);
                    written += self.list.write_over(MOST_TEXT, &mut text);
                }
                // A sandbox that never stops must not block its owner.
                if written > MOST_AT_A_TIME {
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
            return list::gap(text, "more happened at once than the kernel remembers");
        }
        match file {
            Some(file) => self.tell_of_file(mask, pid, &file, text),
            None => self.tell_of_names(mask, pid, &names, text),
        }
    }

    fn tell_of_file(&mut self, mask: u64, pid: i32, file: &OwnedFd, text: &mut Vec<u8>) {
        let path = path_told(file).unwrap_or_else(|_| {
            self.tell_of_no_path(text);
            by_number(file)
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
            let who = self.asked.who(pid);
            return list::add(text, "written", Some(shown(path)), None, who, None);
        }
        if is_of_the_image(path) {
            return;
        }
        let who = self.asked.who(pid);
        if self.reads.is_new(pid, who.began, path) {
            list::add(text, "opened", Some(shown(path)), None, who, None);
        }
    }

    /// Records once per sandbox that some lines have an inode number instead of a path.
    fn tell_of_no_path(&mut self, text: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_nameless_told, true) {
            list::gap(
                text,
                "files lie so deep that the kernel does not say their paths; they are told as /?/inode-NUMBER",
            );
        }
    }

    fn tell_of_names(&mut self, mask: u64, pid: i32, names: &[Name], text: &mut Vec<u8>) {
        let path = |audit: &mut Self, role: Role| {
            names.iter().find(|name| name.role == role).map(|name| audit.path_of(name))
        };
        let who = |audit: &mut Self| audit.asked.who(pid);
        if mask & libc::FAN_RENAME != 0 {
            let (from, to) = (path(self, Role::Old).flatten(), path(self, Role::New).flatten());
            match (from, to) {
                (Some(from), Some(to)) => list::add(text, "renamed", Some(to), Some(from), who(self), None),
                // A rename out of the work directory means that overlayfs created something; a rename into it, that
                // it deleted something.
                (None, Some(to)) => list::add(text, "created", Some(to), None, who(self), None),
                (Some(from), None) => list::add(text, "deleted", Some(from), None, who(self), None),
                (None, None) => {}
            }
            return;
        }
        let Some(Some(path)) = path(self, Role::Only) else { return };
        if mask & libc::FAN_CREATE != 0 {
            list::add(text, "created", Some(path.clone()), None, who(self), None);
        }
        if mask & libc::FAN_DELETE != 0 {
            list::add(text, "deleted", Some(path), None, who(self), None);
        }
    }

    /// The path inside the sandbox; `None` for overlayfs's own files.
    fn path_of(&mut self, name: &Name) -> Option<String> {
        let directory = self.directory(name)?;
        let below = |place: &str| {
            directory.strip_prefix(place).filter(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if below(WORK).is_some() {
            return None;
        }
        let inside = below(UPPER).unwrap_or(&directory);
        Some(format!("{}/{}", inside.trim_end_matches('/'), shown(&name.name)))
    }

    fn directory(&mut self, name: &Name) -> Option<String> {
        let found = sys::open_handle(&self.disk, name.handle_kind, &name.handle)
            .map(|directory| shown(&path_told(&directory).unwrap_or_else(|_| by_number(&directory))));
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
fn path_told(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(named(path.as_os_str().as_bytes(), file).to_vec())
}

/// The substitute for a path that the kernel does not report.
fn by_number(file: &OwnedFd) -> Vec<u8> {
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

fn is_of_the_image(path: &[u8]) -> bool {
    !path.starts_with(SHARED_MEMORY) && IMAGE.iter().any(|start| path.starts_with(start))
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn only_what_is_gone_loses_the_mark_of_what_is_gone() {
        let path = std::env::temp_dir().join(format!("caisson-{} (deleted)", std::process::id()));
        let file = OwnedFd::from(fs::File::create(&path).unwrap());
        let link = || fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(named(link().as_os_str().as_bytes(), &file), path.as_os_str().as_bytes());
        fs::remove_file(&path).unwrap();
        assert_eq!(named(link().as_os_str().as_bytes(), &file), path.as_os_str().as_bytes());
    }

    #[test]
    fn what_lies_too_deep_for_a_path_is_told_by_its_number() {
        let top = std::env::temp_dir().join(format!("caisson-deep-{}", std::process::id()));
        fs::create_dir_all(&top).unwrap();
        let name = "n".repeat(250);
        let mut place = rustix::fs::open(&top, OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..20 {
            rustix::fs::mkdirat(&place, &name, Mode::RWXU).unwrap();
            place = openat(&place, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        let file = openat(&place, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        let told = path_told(&file);
        let number = shown(&by_number(&file));
        fs::remove_dir_all(&top).unwrap();
        assert!(told.is_err(), "{told:?}");
        let inode = number.strip_prefix("/?/inode-").unwrap();
        assert!(inode.parse::<u64>().is_ok(), "{number}");
        assert!(!is_of_the_image(number.as_bytes()));
    }

    #[test]
    fn reads_of_the_image_are_not_told_and_all_others_are() {
        for path in ["/usr/lib/x", "/lib64/ld.so", "/etc/passwd", "/proc/self/maps", "/dev/null"] {
            assert!(is_of_the_image(path.as_bytes()), "{path}");
        }
        for path in ["/workspace/a", "/opt/tool/x", "/data/x", "/dev/shm/x", "/var/cache/x", "/usrlocal"] {
            assert!(!is_of_the_image(path.as_bytes()), "{path}");
        }
    }
}
