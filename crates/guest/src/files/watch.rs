//! Reports changes below a directory.
//!
//! The thread for long work finds directories and adds watches; the event loop reads the kernel's events. If there
//! are too many directories or the kernel's queue overflows, the guest reports to the host that changes were lost.

use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use protocol::{
    FileError, FileErrorCode, FileResult, Incoming, MessageStream, ProtocolError, Reply, WatchChange,
};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::files::Files;
use crate::files::errors::{failed, refusal};
use crate::files::resolve::{RelativePath, Root, Workspace, open_name};
use crate::files::walk::Walker;
use crate::reply::send_reply;
use crate::sys;

/// The most directories of one watch.
const MAX_DIRECTORIES: usize = 8192;
/// Size of the event buffer.
const REPORT_BYTES: usize = 32 * 1024;

/// Directories by their inotify watch descriptor.
type Directories = HashMap<i32, RelativePath>;

/// The directories that were added, and whether the limit was exceeded.
#[derive(Default)]
struct Found {
    directories: Vec<(i32, RelativePath)>,
    is_over_limit: bool,
}

/// Watches until the stream is closed.
pub(crate) async fn watch(
    files: &Files,
    mut stream: MessageStream,
    path: String,
) -> Result<(), ProtocolError> {
    let workspace = Arc::clone(&files.workspace);
    let begun = files.workers.long(move || begin(&workspace, &path)).await;
    let (queue, found) = match begun.and_then(|begun| begun) {
        Ok(begun) => begun,
        Err(error) => return send_reply(&mut stream, &Reply::File(FileResult::Error(error))).await,
    };
    let mut directories: Directories = found.directories.into_iter().collect();
    if found.is_over_limit {
        stream.send(&overflow()).await?;
    }
    let queue = sys::register(queue)?;
    loop {
        tokio::select! {
            incoming = stream.receive() => return match incoming? {
                Incoming::Closed => Ok(()),
                _ => Err(ProtocolError::Unexpected("something on a stream that only watches".into())),
            },
            guard = queue.readable() => {
                let mut guard = guard?;
                let reports = read_reports(guard.get_inner().as_fd(), &mut directories);
                if reports.is_empty() {
                    guard.clear_ready();
                }
                for change in reports.changes {
                    stream.send(&change).await?;
                }
                watch_new(files, &mut stream, &queue, &mut directories, reports.new).await?;
            }
        }
    }
}

/// Adds watches for new directories. Reports the entries that they already contain as created.
async fn watch_new(
    files: &Files,
    stream: &mut MessageStream,
    queue: &AsyncFd<OwnedFd>,
    directories: &mut Directories,
    new: Vec<RelativePath>,
) -> Result<(), ProtocolError> {
    for path in new {
        let Ok(queue) = queue.get_ref().try_clone() else { return stream.send(&overflow()).await };
        let workspace = Arc::clone(&files.workspace);
        let room = MAX_DIRECTORIES.saturating_sub(directories.len());
        let added = files.workers.long(move || add_tree(&workspace, &queue, &path, room)).await;
        // Ignore a directory that has vanished meanwhile.
        let Ok(Ok((found, entries))) = added else { continue };
        for entry in entries {
            stream.send(&WatchChange { path: entry, change: "created".to_owned() }).await?;
        }
        directories.extend(found.directories);
        if found.is_over_limit {
            stream.send(&overflow()).await?;
        }
    }
    Ok(())
}

fn overflow() -> WatchChange {
    WatchChange { path: String::new(), change: "overflow".to_owned() }
}

fn begin(workspace: &Workspace, path: &str) -> Result<(OwnedFd, Found), FileError> {
    let path = RelativePath::parse(path, Root::Allowed)?;
    let queue =
        inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed("watching", &path))?;
    let (found, _) = add_tree(workspace, &queue, &path, MAX_DIRECTORIES)?;
    if found.directories.is_empty() {
        let message = format!("watching `{path}`: the sandbox has too many watches");
        return Err(refusal(FileErrorCode::Other, message));
    }
    Ok((queue, found))
}

/// Adds watches for a directory and everything below it. Also returns the paths of the entries.
fn add_tree(
    workspace: &Workspace,
    queue: &OwnedFd,
    path: &RelativePath,
    room: usize,
) -> Result<(Found, Vec<String>), FileError> {
    let directory = workspace.open_directory("watching", path)?;
    let mut found = Found::default();
    let mut entries = Vec::new();
    match add(queue, &directory) {
        Ok(number) if room > 0 => found.directories.push((number, path.clone())),
        Ok(_) | Err(Errno::NOSPC) => found.is_over_limit = true,
        Err(error) => return Err(failed("watching", path)(error)),
    }
    let mut walker = Walker::start(directory).map_err(failed("watching", path))?;
    while let Some(entry) = walker.next() {
        let below = path.join(&entry.path);
        if entries.len() < MAX_DIRECTORIES {
            entries.push(below.to_text());
        }
        if entry.kind() != FileType::Directory {
            continue;
        }
        if found.directories.len() >= room {
            found.is_over_limit = true;
            break;
        }
        let opened =
            walker.parent().map(|parent| open_name(parent, &entry.name, OFlags::PATH | OFlags::DIRECTORY));
        match opened.map(|opened| opened.and_then(|directory| add(queue, &directory))) {
            Some(Ok(number)) => found.directories.push((number, below)),
            Some(Err(Errno::NOSPC)) => found.is_over_limit = true,
            Some(Err(_)) | None => {}
        }
    }
    Ok((found, entries))
}

fn add(queue: &OwnedFd, directory: &OwnedFd) -> Result<i32, Errno> {
    let flags = WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ONLYDIR;
    // inotify takes no file descriptor, but this path refers to exactly this directory.
    inotify::add_watch(queue, format!("/proc/self/fd/{}", directory.as_raw_fd()), flags)
}

#[derive(Default)]
struct Reports {
    changes: Vec<WatchChange>,
    new: Vec<RelativePath>,
}

impl Reports {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.new.is_empty()
    }
}

/// Reads the pending events. Merges repeated modifications of one file in a batch.
fn read_reports(queue: impl AsFd, directories: &mut Directories) -> Reports {
    let mut buffer = [MaybeUninit::uninit(); REPORT_BYTES];
    let mut reader = inotify::Reader::new(queue, &mut buffer);
    let mut reports = Reports::default();
    let mut seen: BTreeSet<(String, &str)> = BTreeSet::new();
    while let Ok(event) = reader.next() {
        let flags = event.events();
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            reports.changes.push(overflow());
        } else if flags.contains(ReadFlags::IGNORED) {
            directories.remove(&event.wd());
        } else if let (Some(directory), Some(name)) = (directories.get(&event.wd()), event.file_name()) {
            let path = directory.join(name.to_bytes());
            let change = if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                "created"
            } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                "removed"
            } else {
                "modified"
            };
            if change != "modified" || seen.insert((path.to_text(), change)) {
                reports.changes.push(WatchChange { path: path.to_text(), change: change.to_owned() });
            }
            if change == "created" && flags.contains(ReadFlags::ISDIR) {
                reports.new.push(path);
            }
        }
        if reader.is_buffer_empty() {
            break;
        }
    }
    reports
}
