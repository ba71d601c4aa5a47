//! Ending a sandbox and removing every trace of it.
//!
//! Processes go first, then what hangs on them goes by itself (mounts, the loop device) and is waited for, then the
//! control group and the directories. Every step succeeds when there is nothing left to do.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use launcher::cgroup::{Frozen, Group};
use launcher::disk::is_under;
use launcher::launch_file::{self, LaunchText};
use launcher::spec::{Network, Removal, Running, Users};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::create::{Record, group_of};
use super::disk::DISK_FILE;
use super::layout::failed;
use super::{Inner, owner, shelter};
use crate::error::SandboxError;
use crate::spec::{Isolation, SandboxId};

const BLOCK_DEVICES: &str = "/sys/block";
const TICK: Duration = Duration::from_micros(500);

/// Ends a sandbox and removes it; returns when nothing is left but garbage that is deleted in the background.
pub(super) fn destroy(inner: &Inner, id: SandboxId) -> Result<(), SandboxError> {
    let directory = inner.layout.sandbox(id);
    let patience = inner.config.stop_timeout;
    let text = LaunchText::read(&directory).ok().flatten();
    let ran_before = text.as_ref().and_then(LaunchText::running);
    let record: Option<Record> = text.and_then(|text| text.record().ok().flatten());
    let group = group_of(inner, id, record.as_ref());
    let network = ran_before.as_ref().and_then(lent_network);
    let mark = record
        .filter(|record| record.isolation == Isolation::Landlock)
        .map(|_| launcher::mark::of(id.as_u128()));
    let ending = |source| failed("ending the processes of", &directory, source);
    end_launcher(&directory, group.as_ref(), patience).map_err(ending)?;
    // Only now: the launcher adds to it.
    let ran = running(&directory);
    end_stragglers(ran.as_ref(), group.as_ref(), patience)
        .and_then(|()| mark.map_or(Ok(()), |mark| launcher::mark::end_all(mark, patience)))
        .map_err(ending)?;
    if let Some(network) = network {
        inner.networks.take_back(network);
    }
    wait_for_disk(&directory, ran.and_then(|ran| ran.loop_device), patience)?;
    if let Some(group) = &group {
        group
            .remove(patience)
            .map_err(|error| SandboxError::Io { doing: error.step, source: error.source })?;
    }
    remove_socket(&inner.layout.socket_path(id))?;
    let tree = shelter::tree(inner, id);
    if !tree.starts_with(&directory) {
        let name = format!("{}{id}", shelter::TRASH_PREFIX);
        throw_away(inner, &tree, &inner.config.shelter_dir.join(name))?;
    }
    throw_away(inner, &directory, &inner.layout.trash().join(id.to_string()))
}

/// The network that a running sandbox was lent, held while the sandbox still has it.
fn lent_network(ran: &Running) -> Option<OwnedFd> {
    if ran.network != Network::Lent {
        return None;
    }
    let network = File::open(format!("/proc/{}/ns/net", ran.guest_pid)).ok()?;
    // After it was opened: then it is of that process and of no later one.
    is_guest(ran).then(|| network.into())
}

fn end_launcher(directory: &Path, group: Option<&Group>, patience: Duration) -> io::Result<()> {
    if let Some(group) = group
        && group.hierarchy.controllers().contains(&launcher::cgroup::Controller::Freezer)
        && group.directories().iter().all(|directory| directory.exists())
    {
        // Frozen processes do not die before they are let go. Without the group nobody is frozen.
        let _ = group.set_frozen(Frozen::No, patience);
    }
    if let Some(owner) = owner::find(directory)? {
        owner.signal(Signal::TERM)?;
        if !owner.wait(patience)? {
            owner.signal(Signal::KILL)?;
            if !owner.wait(patience)? {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the launcher does not die"));
            }
        }
    }
    launch_file::close(directory)
}

/// After a launcher that was killed the kernel is still busy ending its sandbox.
fn end_stragglers(ran: Option<&Running>, group: Option<&Group>, patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    if let Some(guest) = ran.and_then(guest_handle) {
        let _ = pidfd_send_signal(&guest, Signal::KILL);
        if !owner::wait_for_exit(&guest, patience)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the guest does not die"));
        }
    }
    let Some(group) = group else { return Ok(()) };
    loop {
        let left = group.processes();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("processes {left:?} do not die")));
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(TICK);
    }
}

/// The guest's process, if the number still means that process.
fn guest_handle(ran: &Running) -> Option<OwnedFd> {
    let number = i32::try_from(ran.guest_pid).ok()?;
    let handle = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
    // After the handle was opened: what it means now it means for ever.
    is_guest(ran).then_some(handle)
}

/// Whether the number of the guest's process still means that process.
fn is_guest(ran: &Running) -> bool {
    let number = i32::try_from(ran.guest_pid).ok();
    number.and_then(launcher::process::started) == Some(ran.guest_started)
}

fn running(directory: &Path) -> Option<Running> {
    LaunchText::read(directory).ok()??.running()
}

/// The last mount lets go of the loop device, where it is known which, a moment after the last process is gone.
pub(crate) fn wait_for_disk(
    directory: &Path,
    device: Option<u32>,
    patience: Duration,
) -> Result<(), SandboxError> {
    let image = directory.join(DISK_FILE);
    // The kernel knows it by its name without links.
    let image = match fs::canonicalize(&image) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|source| failed("looking at", &image, source))?,
    };
    let end = Instant::now() + patience;
    while holds(device, &image) {
        if Instant::now() > end {
            return Err(failed("waiting for the loop device of", &image, io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Whether a loop device still holds an image: the one that is known, or any.
fn holds(device: Option<u32>, image: &Path) -> bool {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok();
    match device {
        Some(number) => is_under(number, image),
        None => fs::read_dir(BLOCK_DEVICES)
            .is_ok_and(|entries| entries.flatten().filter_map(number).any(|number| is_under(number, image))),
    }
}

/// The launcher removes it where it ends by itself.
fn remove_socket(path: &Path) -> Result<(), SandboxError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, error)),
        _ => Ok(()),
    }
}

fn remove_tree(path: &Path) -> Result<(), SandboxError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, error)),
        _ => Ok(()),
    }
}

/// Deleting a large disk takes longer than all the rest, so that is done later by somebody else.
fn throw_away(inner: &Inner, directory: &Path, trash: &Path) -> Result<(), SandboxError> {
    if !directory.exists() {
        return Ok(());
    }
    fs::rename(directory, trash).map_err(|source| failed("removing", directory, source))?;
    remove_later(inner, vec![trash.to_path_buf()]);
    Ok(())
}

/// Deletes what was thrown away, and returns when it is gone.
pub(super) fn empty_trash_now(inner: &Inner) -> Result<(), SandboxError> {
    for path in trash(inner) {
        let removed = remove_as(&inner.config.launcher, &inner.identity.users, &path);
        // Somebody in the background may be at the same tree, and each finds what the other has just deleted.
        if path.exists() {
            removed?;
        }
    }
    Ok(())
}

/// Deletes what a probe of the host has left. A short command that probes ends soon, so not in the background.
pub(super) fn throw_away_probe(inner: &Inner, directory: &Path) {
    if let Err(error) = remove_as(&inner.config.launcher, &inner.identity.users, directory) {
        tracing::warn!(error = %error, "garbage is left");
    }
}

/// Deletes what an earlier server has not come to delete, in the background.
pub(super) fn empty_trash(inner: &Inner) {
    remove_later(inner, trash(inner));
}

fn trash(inner: &Inner) -> Vec<PathBuf> {
    let below = |directory: &Path| {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_trash = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(shelter::TRASH_PREFIX))
    };
    let mut all = below(&inner.layout.trash());
    all.extend(below(&inner.config.shelter_dir).into_iter().filter(is_trash));
    all
}

fn remove_as(launcher: &Path, users: &Users, path: &Path) -> Result<(), SandboxError> {
    match users {
        Users::Ranges(_) => remove_tree(path),
        // Where there are no namespaces, nothing belongs to anybody else.
        Users::Lent { .. } | Users::Single => remove_by_launcher(launcher, users, path)
            .or_else(|error| remove_closed_tree(path).map_err(|_| error)),
    }
}

/// Deletes a tree of our own, whose directories may be closed even to us. Nothing runs in it any more.
fn remove_closed_tree(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return fs::remove_file(path);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        remove_closed_tree(&entry?.path())?;
    }
    fs::remove_dir(path)
}

fn remove_later(inner: &Inner, paths: Vec<PathBuf>) {
    if paths.is_empty() {
        return;
    }
    let (launcher, users) = (inner.config.launcher.clone(), inner.identity.users.clone());
    inner.trash.later(move || {
        for path in &paths {
            if let Err(error) = remove_as(&launcher, &users, path) {
                tracing::warn!(error = %error, "garbage is left");
            }
        }
    });
}

/// An ordinary user may not delete what belongs to ids that it was lent, nor what is closed even to itself.
fn remove_by_launcher(launcher: &Path, users: &Users, path: &Path) -> Result<(), SandboxError> {
    let order = Removal { users: users.clone(), directory: path.to_path_buf() };
    let ask = || -> io::Result<()> {
        match owner::ask(launcher, "--remove", &order)? {
            None => Ok(()),
            Some(error) => Err(io::Error::other(format!("{}: {}", error.step, error.source))),
        }
    };
    ask().map_err(|source| failed("removing", path, source))
}
