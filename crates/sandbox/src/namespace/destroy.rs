//! Ending a sandbox and removing everything that belongs to it.
//!
//! Processes are killed first. The kernel then releases what depends on them (mounts, the loop device); this code
//! waits for that and then removes the cgroup and the directories. Every step succeeds if there is nothing left to
//! do.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use launcher::cgroup::{Frozen, Group};
use launcher::launch_file::{self, LaunchFileContents};
use launcher::spec::{Network, Running};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cleanup::remove_later;
use super::create::{Record, group_of};
use super::{Inner, NamespaceBackend, landlock_only, launcher_process};
use crate::error::{SandboxError, failed};
use crate::host::loop_device::wait_for_disk;
use crate::spec::{Isolation, SandboxId};

const TICK: Duration = Duration::from_micros(500);

/// Ends a sandbox and removes it, after a call that creates it has ended. Returns when all that is left is garbage that
/// is deleted in the background.
pub(super) async fn destroy(backend: &NamespaceBackend, id: SandboxId) -> Result<(), SandboxError> {
    let turn = backend.locks.turn(id).await;
    let backend = backend.clone();
    turn.run_to_completion(async move { backend.blocking(move |inner| remove(inner, id)).await }).await
}

/// Ends a sandbox and removes it. Returns when all that is left is garbage that is deleted in the background.
pub(super) fn remove(inner: &Inner, id: SandboxId) -> Result<(), SandboxError> {
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
    let ending = |source| failed("killing the processes of", &directory, source);
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
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the launcher did not exit"));
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
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the guest did not exit"));
        }
    }
    let Some(group) = group else { return Ok(()) };
    loop {
        let left = group.processes();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("processes {left:?} did not exit")));
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

/// A launcher that exits normally removes the socket itself.
fn remove_socket(path: &Path) -> Result<(), SandboxError> {
    match fs::remove_file(path) {
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
