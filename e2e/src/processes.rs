//! The processes of this machine, for tests that inspect or kill those of a server.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) command: String,
}

/// All processes with their command lines.
pub(crate) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
        Some(Process { pid, parent, command })
    })
    .collect()
}

/// Kills a process; it may already be gone.
pub(crate) fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Whether the process's cgroup is frozen.
pub(crate) fn is_frozen(pid: i32) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return false };
        let (file, word) = match controllers {
            "" => (format!("/sys/fs/cgroup{path}/cgroup.events"), "frozen 1"),
            "freezer" => (format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN"),
            _ => return false,
        };
        fs::read_to_string(file).is_ok_and(|text| text.contains(word))
    })
}

/// The two processes of a sandbox on the host.
#[derive(Debug, Clone, Copy)]
pub struct SandboxProcesses {
    pub launcher: i32,
    /// Pid 1 inside the sandbox.
    pub guest: i32,
}

impl SandboxProcesses {
    /// Finds the sandbox whose launcher has `word` in the path of its launch file.
    #[must_use]
    #[track_caller]
    pub(crate) fn find(word: &str) -> Self {
        let all = all();
        let launcher = all
            .iter()
            .find(|process| process.command.contains("launch.jsonl") && process.command.contains(word))
            .unwrap_or_else(|| panic!("no launcher for {word}"));
        let guest = all
            .iter()
            .find(|process| process.parent == launcher.pid)
            .unwrap_or_else(|| panic!("launcher {} has no guest", launcher.pid));
        Self { launcher: launcher.pid, guest: guest.pid }
    }

    /// Whether the guest has child processes, which are what the job runs.
    #[must_use]
    pub fn has_children_of_guest(self) -> bool {
        all().iter().any(|process| process.parent == self.guest)
    }

    pub fn kill_guest(self) {
        kill(self.guest);
    }

    pub fn kill_launcher(self) {
        kill(self.launcher);
    }

    pub fn signal_launcher(self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.launcher) {
            let _ = kill_process(pid, signal);
        }
    }

    pub fn kill_both(self) {
        kill(self.launcher);
        kill(self.guest);
    }
}
