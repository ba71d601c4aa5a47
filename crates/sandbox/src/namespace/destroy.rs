//! Ending a sandbox and removing everything that belongs to it.
//!
//! Processes are killed first. The kernel then releases what depends on them (mounts, the loop device); this code
//! waits for that and then removes the cgroup and the directories. Every step succeeds if there is nothing left to
//! do.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use launcher::cgroup::{Frozen, Group};
use launcher::disk::is_under;
use launcher::launch_file::{self, LaunchFileContents};
use launcher::spec::{Network, Removal, Running, Users};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::create::{Record, group_of};
use super::disk::DISK_FILE;
use super::layout::failed;
use super::{Inner, landlock_only, launcher_process};
use crate::error::SandboxError;
use crate::spec::{Isolation, SandboxId};

const BLOCK_DEVICES: &str = "/sys/block";
const TICK: Duration = Duration::from_micros(500);

/// Ends a sandbox and removes it. Returns when all that is left is garbage that is deleted in the background.
pub(super) fn destroy(inner: &Inner, id: SandboxId) -> Result<(), SandboxError> {
    let directory = inner.layout.sandbox(id);
    let patience = inner.config.stop_timeout;
    let text = LaunchFileContents::read(&directory).ok().flatten();
    let ran_before = text.as_ref().and_then(LaunchFileContents::running);
    let record: Option<Record> = text.and_then(|text| text.record().ok().flatten());
    let group = group_of(inner, id, record.as_ref());
    let network = ran_before.as_ref().and_then(lent_network);
    let mark = record
        .filter(|record| record.isolation == Isolation::Landlock)
        .map(|_| launcher::process_mark::of(id.as_u128()));
    let ending = |source| failed("ending the processes of", &directory, source);
    stop_launcher(&directory, group.as_ref(), patience).map_err(ending)?;
    // Read only now, because the launcher appends to the launch file.
    let ran = running(&directory);
    kill_remaining_processes(ran.as_ref(), group.as_ref(), patience)
        .and_then(|()| mark.map_or(Ok(()), |mark| launcher::process_mark::kill_all(mark, patience)))
        .map_err(ending)?;
    if let Some(network) = network {
        inner.networks.give_back(network);
    }
    wait_for_disk(&directory, ran.and_then(|ran| ran.loop_device), patience)?;
    if let Some(group) = &group {
        group
            .remove(patience)
            .map_err(|error| SandboxError::Io { doing: error.step, source: error.source })?;
    }
    remove_socket(&inner.layout.socket_path(id))?;
    let tree = landlock_only::tree(inner, id);
    if !tree.starts_with(&directory) {
        let name = format!("{}{id}", landlock_only::TRASH_PREFIX);
        move_to_trash(inner, &tree, &inner.config.landlock_only_dir.join(name))?;
    }
    move_to_trash(inner, &directory, &inner.layout.trash().join(id.to_string()))
}

/// The network namespace lent to a running sandbox, opened while the sandbox still has it.
fn lent_network(ran: &Running) -> Option<OwnedFd> {
    if ran.network != Network::Lent {
        return None;
    }
    let network = File::open(format!("/proc/{}/ns/net", ran.guest_pid)).ok()?;
    // Checked after opening: then the namespace belongs to that process, not to a later one with the same id.
    is_guest(ran).then(|| network.into())
}

fn stop_launcher(directory: &Path, group: Option<&Group>, patience: Duration) -> io::Result<()> {
    if let Some(group) = group
        && group.hierarchy.controllers().contains(&launcher::cgroup::Controller::Freezer)
        && group.directories().iter().all(|directory| directory.exists())
    {
        // Frozen processes do not die until they are thawed. If the cgroup is gone, nothing is frozen.
        let _ = group.set_frozen(Frozen::No, patience);
    }
    if let Some(owner) = launcher_process::find(directory)? {
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

/// If the launcher was killed, the kernel may still be busy killing its sandbox.
fn kill_remaining_processes(
    ran: Option<&Running>,
    group: Option<&Group>,
    patience: Duration,
) -> io::Result<()> {
    let end = Instant::now() + patience;
    if let Some(guest) = ran.and_then(guest_handle) {
        let _ = pidfd_send_signal(&guest, Signal::KILL);
        if !launcher_process::wait_for_exit(&guest, patience)? {
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

/// A pidfd for the guest, if the process id still refers to it.
fn guest_handle(ran: &Running) -> Option<OwnedFd> {
    let number = i32::try_from(ran.guest_pid).ok()?;
    let handle = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
    // Checked after opening: from then on the pidfd always refers to the same process.
    is_guest(ran).then_some(handle)
}

/// Whether the recorded process id still refers to the guest.
fn is_guest(ran: &Running) -> bool {
    let number = i32::try_from(ran.guest_pid).ok();
    number.and_then(launcher::process::started) == Some(ran.guest_started)
}

fn running(directory: &Path) -> Option<Running> {
    LaunchFileContents::read(directory).ok()??.running()
}

/// Waits until no loop device uses the disk. The last unmount releases the device a moment after the last process is
/// gone. `device` is its number, if known.
pub(crate) fn wait_for_disk(
    directory: &Path,
    device: Option<u32>,
    patience: Duration,
) -> Result<(), SandboxError> {
    let image = directory.join(DISK_FILE);
    // The kernel reports the path with symlinks resolved.
    let image = match fs::canonicalize(&image) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|source| failed("looking at", &image, source))?,
    };
    let end = Instant::now() + patience;
    while is_in_use(device, &image) {
        if Instant::now() > end {
            return Err(failed("waiting for the loop device of", &image, io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Whether a loop device still uses an image: the given device, or any.
fn is_in_use(device: Option<u32>, image: &Path) -> bool {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok();
    match device {
        Some(number) => is_under(number, image),
        None => fs::read_dir(BLOCK_DEVICES)
            .is_ok_and(|entries| entries.flatten().filter_map(number).any(|number| is_under(number, image))),
    }
}

/// A launcher that exits normally removes the socket itself.
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

/// Moves a tree to the trash. Deleting a large disk takes longer than everything else, so the background thread does
/// it.
fn move_to_trash(inner: &Inner, directory: &Path, trash: &Path) -> Result<(), SandboxError> {
    if !directory.exists() {
        return Ok(());
    }
    fs::rename(directory, trash).map_err(|source| failed("removing", directory, source))?;
    remove_later(inner, vec![trash.to_path_buf()]);
    Ok(())
}

/// Deletes the trash, and returns when it is gone.
pub(super) fn empty_trash_now(inner: &Inner) -> Result<(), SandboxError> {
    for path in trash(inner) {
        let removed = remove_as(&inner.config.launcher, &inner.identity.users, &path);
        // The background thread may be deleting the same tree, so each may find entries already gone.
        if path.exists() {
            removed?;
        }
    }
    Ok(())
}

/// Deletes the remains of a probe of the host. Not in the background, because a short command that probes exits soon.
pub(super) fn discard_probe(inner: &Inner, directory: &Path) {
    if let Err(error) = remove_as(&inner.config.launcher, &inner.identity.users, directory) {
        tracing::warn!(error = %error, "garbage is left");
    }
}

/// Deletes the trash of earlier servers in the background.
pub(super) fn empty_trash(inner: &Inner) {
    remove_later(inner, trash(inner));
}

fn trash(inner: &Inner) -> Vec<PathBuf> {
    let below = |directory: &Path| {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_trash = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(landlock_only::TRASH_PREFIX))
    };
    let mut all = below(&inner.layout.trash());
    all.extend(below(&inner.config.landlock_only_dir).into_iter().filter(is_trash));
    all
}

fn remove_as(launcher: &Path, users: &Users, path: &Path) -> Result<(), SandboxError> {
    match users {
        Users::Ranges(_) => remove_tree(path),
        // Without namespaces, all files belong to the server's own user.
        Users::Lent { .. } | Users::Single => remove_by_launcher(launcher, users, path)
            .or_else(|error| remove_unreadable_tree(path).map_err(|_| error)),
    }
}

/// Deletes a tree owned by this user even if directories in it deny access. No process may use it any more.
fn remove_unreadable_tree(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return fs::remove_file(path);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        remove_unreadable_tree(&entry?.path())?;
    }
    fs::remove_dir(path)
}

fn remove_later(inner: &Inner, paths: Vec<PathBuf>) {
    if paths.is_empty() {
        return;
    }
    let (launcher, users) = (inner.config.launcher.clone(), inner.identity.users.clone());
    inner.trash.run(move || {
        for path in &paths {
            if let Err(error) = remove_as(&launcher, &users, path) {
                tracing::warn!(error = %error, "garbage is left");
            }
        }
    });
}

/// An ordinary user may not delete files of its subordinate ids, nor files in directories that deny it access. The
/// launcher can, in a user namespace.
fn remove_by_launcher(launcher: &Path, users: &Users, path: &Path) -> Result<(), SandboxError> {
    let order = Removal { users: users.clone(), directory: path.to_path_buf() };
    let ask = || -> io::Result<()> {
        match launcher_process::run_once(launcher, "--remove", &order)? {
            None => Ok(()),
            Some(error) => Err(io::Error::other(format!("{}: {}", error.step, error.source))),
        }
    };
    ask().map_err(|source| failed("removing", path, source))
}
