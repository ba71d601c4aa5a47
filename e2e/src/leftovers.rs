//! What a server must not leave behind: mounts, loop devices, cgroups, processes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::processes;
use crate::server::pause;

/// How often the removal of non-empty cgroups is retried.
const MAX_ATTEMPTS: u32 = 100;

/// Lists every mount, loop device, cgroup and process whose name contains one of the words (the server's folder, the
/// ids of its sandboxes).
pub(crate) fn find(words: &[String]) -> Vec<String> {
    let has_word = |text: &str| words.iter().any(|word| text.contains(word.as_str()));
    let mut found = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.lines().filter(|line| has_word(line)).map(|line| format!("mount {line}")));
    for (device, file) in loop_devices().into_iter().filter(|(_, file)| has_word(file)) {
        found.push(format!("loop device {device} on {file}"));
    }
    let mut groups = Vec::new();
    collect_directories(Path::new("/sys/fs/cgroup"), 8, &mut groups);
    let named = groups.iter().filter(|path| has_word(&path.to_string_lossy()));
    found.extend(named.map(|path| format!("control group {}", path.display())));
    for process in processes::all().into_iter().filter(|process| has_word(&process.command)) {
        found.push(format!("process {} {}", process.pid, process.command));
    }
    found
}

/// Each loop device in use, with its backing file.
fn loop_devices() -> Vec<(String, String)> {
    let Ok(devices) = fs::read_dir("/sys/block") else { return Vec::new() };
    let devices = devices.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("loop"));
    devices
        .filter_map(|entry| {
            let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), file.trim().to_owned()))
        })
        .collect()
}

fn collect_directories(root: &Path, depth: usize, into: &mut Vec<PathBuf>) {
    if depth == 0 {
        return;
    }
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        into.push(entry.path());
        collect_directories(&entry.path(), depth - 1, into);
    }
}

/// Kills the processes in the cgroups of these sandboxes and removes the cgroups. Hundreds of leftover cgroups make
/// creating a new one slow.
fn remove_cgroups(ids: &[String]) {
    let mut groups = Vec::new();
    collect_directories(Path::new("/sys/fs/cgroup"), 8, &mut groups);
    let is_of_sandbox = |path: &PathBuf| path.iter().any(|name| ids.iter().any(|id| name == id.as_str()));
    groups.retain(is_of_sandbox);
    // A killed process stays in its cgroup for a moment, and child cgroups must be removed before their parent.
    for _ in 0..MAX_ATTEMPTS {
        groups.retain(|group| !try_remove_cgroup(group));
        if groups.is_empty() {
            return;
        }
        pause();
    }
}

/// Thaws a cgroup, since a frozen process does not die, and kills its processes. Returns whether the cgroup is gone.
fn try_remove_cgroup(group: &Path) -> bool {
    if fs::remove_dir(group).is_ok() || !group.exists() {
        return true;
    }
    let _ = fs::write(group.join("freezer.state"), "THAWED");
    let _ = fs::write(group.join("cgroup.freeze"), "0");
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        processes::kill(pid.parse().unwrap_or_default());
    }
    false
}

/// Removes what a failed test has left, so that the next test starts clean.
pub(crate) fn sweep(folder: &str, sandboxes: &[String]) {
    let mut words = vec![folder.to_owned()];
    words.extend_from_slice(sandboxes);
    let named = |text: &str| words.iter().any(|word| text.contains(word.as_str()));
    for process in processes::all().into_iter().filter(|process| named(&process.command)) {
        processes::kill(process.pid);
    }
    let known = fs::read_dir(Path::new(folder).join("data/sandboxes")).into_iter().flatten().flatten();
    let known = known.map(|entry| entry.file_name().to_string_lossy().into_owned());
    remove_cgroups(&known.chain(sandboxes.iter().cloned()).collect::<Vec<_>>());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for target in
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|path| path.contains(folder))
    {
        let _ = std::process::Command::new("umount").args(["--lazy", target]).status();
    }
    for (device, _) in loop_devices().into_iter().filter(|(_, file)| named(file)) {
        let _ = std::process::Command::new("losetup").args(["--detach", &format!("/dev/{device}")]).status();
    }
}
