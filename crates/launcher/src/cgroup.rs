//! Cgroups, v2 and v1: detecting the host's hierarchy, creating a cgroup for a sandbox, reading its usage, removing
//! it.
//!
//! On hybrid hosts, a mounted v2 hierarchy counts only if it owns the controllers that limits need.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{LaunchError, Step};
use crate::limits::LaunchLimits;

/// Cgroup v1 accounts TCP and UDP socket buffers separately from all other memory, and only for sockets created while
/// a limit is set. Socket buffers may use this fraction (one eighth) of the memory limit in addition to it. Cgroup v2
/// counts them as memory.
const SOCKET_MEMORY_DIVISOR: u64 = 8;

/// A cgroup controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    Memory,
    /// CPU time limits.
    Cpu,
    /// CPU time accounting.
    Cpuacct,
    Pids,
    Freezer,
}

impl Controller {
    pub(crate) const ALL: [Self; 5] = [Self::Memory, Self::Cpu, Self::Cpuacct, Self::Pids, Self::Freezer];

    /// The kernel's name for the controller.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
        }
    }
}

/// Where the host's cgroup hierarchy is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hierarchy {
    /// One unified hierarchy for all controllers.
    V2 { root: PathBuf },
    /// One hierarchy per controller; some controllers may share one.
    V1 { roots: BTreeMap<Controller, PathBuf> },
}

impl Hierarchy {
    /// Detects the cgroup hierarchy of this host; `None` if there is none that can enforce limits.
    #[must_use]
    pub fn find() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        Self::find_in(&mounts, |root| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default())
    }

    /// Like [`Hierarchy::find`], but from the text of a `mountinfo` file and a lookup for the controllers that a v2
    /// mount owns.
    pub fn find_in(mounts: &str, controllers_of: impl Fn(&Path) -> String) -> Option<Self> {
        let mut roots = BTreeMap::new();
        for line in mounts.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let Some(target) = before.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut kind = after.split(' ');
            match (kind.next(), kind.nth(1)) {
                (Some("cgroup2"), _) => {
                    let owned = controllers_of(&target);
                    let owns = |name: &str| owned.split_whitespace().any(|word| word == name);
                    if ["memory", "cpu", "pids"].into_iter().all(owns) {
                        return Some(Self::V2 { root: target });
                    }
                }
                (Some("cgroup"), Some(options)) => {
                    for controller in Controller::ALL {
                        if options.split(',').any(|option| option == controller.name()) {
                            roots.insert(controller, target.clone());
                        }
                    }
                }
                _ => {}
            }
        }
        (!roots.is_empty()).then_some(Self::V1 { roots })
    }

    /// The controllers that are available.
    #[must_use]
    pub fn controllers(&self) -> BTreeSet<Controller> {
        match self {
            Self::V2 { .. } => Controller::ALL.into_iter().collect(),
            Self::V1 { roots } => roots.keys().copied().collect(),
        }
    }

    /// Creates the parent cgroup for sandboxes and enables controllers for its children.
    pub fn prepare_parent(&self, parent: &str) -> Result<(), LaunchError> {
        match self {
            Self::V2 { root } => {
                let group = root.join(parent);
                fs::create_dir_all(&group).step(|| format!("making cgroup {}", group.display()))?;
                let mut directory = root.clone();
                let mut parts = Path::new(parent).components();
                loop {
                    let file = directory.join("cgroup.subtree_control");
                    fs::write(&file, "+memory +cpu +pids")
                        .step(|| format!("enabling controllers in {}", file.display()))?;
                    let Some(part) = parts.next() else { return Ok(()) };
                    directory.push(part);
                }
            }
            Self::V1 { roots } => {
                for root in roots.values() {
                    let group = root.join(parent);
                    fs::create_dir_all(&group).step(|| format!("making cgroup {}", group.display()))?;
                }
                Ok(())
            }
        }
    }
}

/// Current and cumulative resource usage of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupUsage {
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    /// Total CPU time.
    pub cpu_micros: u64,
    /// Current number of processes and threads.
    pub pids: u64,
    /// Number of processes that the OOM killer has killed.
    pub oom_kills: u64,
    /// Number of forks that failed because of the pids limit.
    pub pids_refused: u64,
}

/// The cgroup of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub hierarchy: Hierarchy,
    /// Path below the root, the same in every hierarchy.
    pub name: String,
}

impl Group {
    /// The cgroup's directories, without duplicates.
    #[must_use]
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V2 { root } => [root.join(&self.name)].into(),
            Hierarchy::V1 { roots } => roots.values().map(|root| root.join(&self.name)).collect(),
        }
    }

    fn file(&self, controller: Controller, name: &str) -> Option<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V2 { root } => Some(root.join(&self.name).join(name)),
            Hierarchy::V1 { roots } => Some(roots.get(&controller)?.join(&self.name).join(name)),
        }
    }

    fn set(&self, controller: Controller, name: &str, value: &str) -> Result<(), LaunchError> {
        let Some(file) = self.file(controller, name) else { return Ok(()) };
        fs::write(&file, value).step(|| format!("writing {value} to {}", file.display()))
    }

    /// Creates the cgroup and sets its limits.
    pub fn create(&self, limits: &LaunchLimits) -> Result<(), LaunchError> {
        for directory in self.directories() {
            match fs::create_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other.step(|| format!("making cgroup {}", directory.display()))?,
            }
        }
        let memory = limits.memory_bytes.to_string();
        match &self.hierarchy {
            Hierarchy::V2 { .. } => {
                self.set(Controller::Memory, "memory.max", &memory)?;
                self.set_if_exists(Controller::Memory, "memory.swap.max", "0")?;
                self.set(Controller::Cpu, "cpu.max", &format!("{} 100000", limits.cpu_millis * 100))?;
            }
            Hierarchy::V1 { .. } => {
                self.set(Controller::Memory, "memory.limit_in_bytes", &memory)?;
                self.set_if_exists(Controller::Memory, "memory.memsw.limit_in_bytes", &memory)?;
                let sockets = (limits.memory_bytes / SOCKET_MEMORY_DIVISOR).to_string();
                self.set_if_exists(Controller::Memory, "memory.kmem.tcp.limit_in_bytes", &sockets)?;
                self.set(Controller::Cpu, "cpu.cfs_quota_us", &(limits.cpu_millis * 100).to_string())?;
            }
        }
        self.set(Controller::Pids, "pids.max", &limits.pids.to_string())
    }

    /// Sets a limit only if its file exists. Some limits, such as swap, exist only if the kernel accounts for the
    /// resource.
    fn set_if_exists(&self, controller: Controller, name: &str, value: &str) -> Result<(), LaunchError> {
        match self.file(controller, name) {
            Some(file) if file.exists() => self.set(controller, name, value),
            _ => Ok(()),
        }
    }

    /// The directory of a v2 cgroup, to clone a process directly into. Cgroup v1 has only [`Group::task_files`].
    pub(crate) fn clone_directory(&self) -> Result<Option<OwnedFd>, LaunchError> {
        let Hierarchy::V2 { root } = &self.hierarchy else { return Ok(None) };
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        let directory = root.join(&self.name);
        rustix::fs::open(&directory, flags, rustix::fs::Mode::empty())
            .map(Some)
            .step(|| format!("opening cgroup {}", directory.display()))
    }

    /// Files of a v1 cgroup through which a single-threaded process enters it with [`enter_v1`]. A process that moves
    /// itself does not need the host-wide lock that moving another process takes, which costs several milliseconds.
    pub(crate) fn task_files(&self) -> Result<Vec<OwnedFd>, LaunchError> {
        let open = |directory: PathBuf| {
            let file = directory.join("tasks");
            let opened = fs::OpenOptions::new().write(true).open(&file);
            opened.map(OwnedFd::from).step(|| format!("opening {}", file.display()))
        };
        self.directories().into_iter().map(open).collect()
    }

    /// Moves a process into the cgroup. Slower than [`Group::clone_directory`] and [`Group::task_files`], but works for both
    /// versions.
    pub(crate) fn add_process(&self, pid: i32) -> Result<(), LaunchError> {
        self.directories().into_iter().try_for_each(|directory| {
            let file = directory.join("cgroup.procs");
            fs::write(&file, pid.to_string()).step(|| format!("writing {pid} to {}", file.display()))
        })
    }

    /// Process ids in the cgroup; unreadable entries are skipped.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<i32> {
        let mut found = BTreeSet::new();
        for directory in self.directories() {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
        found
    }

    fn number(&self, controller: Controller, name: &str) -> u64 {
        let text = self.file(controller, name).and_then(|file| fs::read_to_string(file).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn field(&self, controller: Controller, name: &str, key: &str) -> u64 {
        let text =
            self.file(controller, name).and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        field_in(&text, key)
    }

    /// Current usage; values that cannot be read are zero.
    #[must_use]
    pub fn usage(&self) -> CgroupUsage {
        use Controller::{Cpu, Cpuacct, Memory, Pids};
        let pids = self.number(Pids, "pids.current");
        let pids_refused = self.field(Pids, "pids.events", "max");
        match self.hierarchy {
            Hierarchy::V2 { .. } => CgroupUsage {
                memory_bytes: self.number(Memory, "memory.current"),
                memory_peak_bytes: self.number(Memory, "memory.peak"),
                cpu_micros: self.field(Cpu, "cpu.stat", "usage_usec"),
                oom_kills: self.field(Memory, "memory.events", "oom_kill"),
                pids,
                pids_refused,
            },
            Hierarchy::V1 { .. } => CgroupUsage {
                memory_bytes: self.number(Memory, "memory.usage_in_bytes"),
                memory_peak_bytes: self.number(Memory, "memory.max_usage_in_bytes"),
                cpu_micros: self.number(Cpuacct, "cpuacct.usage") / 1000,
                oom_kills: self.field(Memory, "memory.oom_control", "oom_kill"),
                pids,
                pids_refused,
            },
        }
    }

    /// Bytes written by the cgroup's processes that have not reached a disk yet; `None` if the kernel does not count
    /// them.
    #[must_use]
    pub fn unwritten_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.file(Controller::Memory, "memory.stat")?).ok()?;
        let names = match self.hierarchy {
            Hierarchy::V2 { .. } => ["file_dirty", "file_writeback"],
            Hierarchy::V1 { .. } => ["total_dirty", "total_writeback"],
        };
        Some(names.into_iter().map(|name| field_in(&text, name)).sum())
    }

    /// Freezes or thaws all processes of the cgroup and waits until the new state is reached.
    ///
    /// # Errors
    /// The host has no freezer, or the state is not reached within `timeout`.
    pub fn set_frozen(&self, wanted: Frozen, timeout: Duration) -> Result<(), LaunchError> {
        let version_2 = matches!(self.hierarchy, Hierarchy::V2 { .. });
        let (file, value) = match (version_2, wanted) {
            (true, Frozen::Yes) => ("cgroup.freeze", "1"),
            (true, Frozen::No) => ("cgroup.freeze", "0"),
            (false, Frozen::Yes) => ("freezer.state", "FROZEN"),
            (false, Frozen::No) => ("freezer.state", "THAWED"),
        };
        if self.file(Controller::Freezer, file).is_none() {
            return Err(LaunchError::new("freezing a cgroup", io::Error::from(io::ErrorKind::Unsupported)));
        }
        let end = Instant::now() + timeout;
        loop {
            // Cgroup v1 needs the request repeated if a process was forking at the time.
            self.set(Controller::Freezer, file, value)?;
            let reached = if version_2 {
                (self.field(Controller::Freezer, "cgroup.events", "frozen") == 1) == (wanted == Frozen::Yes)
            } else {
                let state =
                    self.file(Controller::Freezer, file).and_then(|file| fs::read_to_string(file).ok());
                state.is_some_and(|state| state.trim() == value)
            };
            if reached {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(LaunchError::new(
                    "waiting for a cgroup to freeze",
                    io::Error::from(io::ErrorKind::TimedOut),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes the cgroup after waiting for its last processes to exit. Succeeds if the cgroup does not exist.
    ///
    /// # Errors
    /// Processes remain after `timeout`.
    pub fn remove(&self, timeout: Duration) -> Result<(), LaunchError> {
        let end = Instant::now() + timeout;
        for directory in self.directories() {
            loop {
                match fs::remove_dir(&directory) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => {
                        std::thread::sleep(Duration::from_micros(500));
                    }
                    other => {
                        other.step(|| format!("removing cgroup {}", directory.display()))?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Moves the calling process into a cgroup.
pub(crate) fn enter_v1(task_file: &OwnedFd) -> Result<(), LaunchError> {
    rustix::io::write(task_file, b"0").map(drop).named("entering the cgroup")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frozen {
    Yes,
    No,
}

fn field_in(text: &str, key: &str) -> u64 {
    let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.find(|(name, _)| *name == key).and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:3 - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_v2_hierarchy_without_controllers_is_ignored() {
        let found = Hierarchy::find_in(HYBRID, |_| "hugetlb\n".into()).unwrap();
        let Hierarchy::V1 { roots } = &found else { panic!("version 1 expected: {found:?}") };
        assert_eq!(roots[&Controller::Cpu], roots[&Controller::Cpuacct]);
        assert_eq!(roots.len(), 4);
        let group = Group { hierarchy: found, name: "caisson/x".into() };
        assert_eq!(group.directories().len(), 3, "shared trees count once");
    }

    #[test]
    fn a_v2_hierarchy_with_controllers_is_preferred() {
        let found = Hierarchy::find_in(HYBRID, |_| "cpuset cpu io memory pids\n".into()).unwrap();
        assert_eq!(found, Hierarchy::V2 { root: "/sys/fs/cgroup/unified".into() });
    }

    #[test]
    fn a_host_without_cgroups_has_no_hierarchy() {
        assert_eq!(Hierarchy::find_in("22 27 0:21 / /proc rw - proc proc rw\n", |_| String::new()), None);
    }

    /// Uses a plain directory instead of a real v2 hierarchy, so the test runs on any host.
    #[test]
    fn a_v2_cgroup_is_created_limited_read_frozen_and_removed() {
        let root = std::env::temp_dir().join(format!("caisson-cgroup-{}", std::process::id()));
        let parent = root.join("caisson");
        fs::create_dir_all(&parent).unwrap();
        let hierarchy = Hierarchy::V2 { root: root.clone() };
        hierarchy.prepare_parent("caisson").unwrap();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        for level in ["cgroup.subtree_control", "caisson/cgroup.subtree_control"] {
            assert_eq!(read(level), "+memory +cpu +pids");
        }
        let group = Group { hierarchy, name: "caisson/one".into() };
        let limits = LaunchLimits { memory_bytes: 64 << 20, cpu_millis: 1500, pids: 33, open_files: 9 };
        let directory = parent.join("one");
        fs::create_dir(&directory).unwrap();
        // Only kernels that account for swap have this file.
        fs::write(directory.join("memory.swap.max"), "max").unwrap();
        group.create(&limits).unwrap();
        for (file, value) in [
            ("memory.max", "67108864"),
            ("memory.swap.max", "0"),
            ("cpu.max", "150000 100000"),
            ("pids.max", "33"),
        ] {
            assert_eq!(read(&format!("caisson/one/{file}")), value, "{file}");
        }
        group.add_process(4711).unwrap();
        assert_eq!(group.processes(), [4711].into());
        assert!(group.clone_directory().unwrap().is_some());
        for (file, text) in [
            ("memory.current", "10\n"),
            ("memory.peak", "20\n"),
            ("cpu.stat", "usage_usec 30\nuser_usec 1\n"),
            ("memory.events", "low 0\noom 2\noom_kill 4\n"),
            ("pids.current", "5\n"),
            ("pids.events", "max 6\n"),
        ] {
            fs::write(directory.join(file), text).unwrap();
        }
        let usage = CgroupUsage {
            memory_bytes: 10,
            memory_peak_bytes: 20,
            cpu_micros: 30,
            pids: 5,
            oom_kills: 4,
            pids_refused: 6,
        };
        assert_eq!(group.usage(), usage);
        for (wanted, events, file) in
            [(Frozen::Yes, "populated 1\nfrozen 1\n", "1"), (Frozen::No, "frozen 0\n", "0")]
        {
            fs::write(directory.join("cgroup.events"), events).unwrap();
            group.set_frozen(wanted, Duration::from_secs(9)).unwrap();
            assert_eq!(read("caisson/one/cgroup.freeze"), file);
        }
        let refused = group.set_frozen(Frozen::Yes, Duration::ZERO).unwrap_err();
        assert!(refused.step.contains("freeze"), "{refused:?}");
        // In a real cgroup the kernel's files disappear with their directory; these do not.
        for entry in fs::read_dir(&directory).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        group.remove(Duration::from_secs(9)).unwrap();
        group.remove(Duration::from_secs(9)).unwrap();
        assert!(!directory.exists());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn v1_cgroups_limit_socket_buffers_separately() {
        let root = std::env::temp_dir().join(format!("caisson-cgroup-v1-{}", std::process::id()));
        let sockets = root.join("one").join("memory.kmem.tcp.limit_in_bytes");
        fs::create_dir_all(root.join("one")).unwrap();
        fs::write(&sockets, "-1").unwrap();
        let hierarchy = Hierarchy::V1 { roots: [(Controller::Memory, root.clone())].into() };
        let limits = LaunchLimits { memory_bytes: 64 << 20, cpu_millis: 1500, pids: 33, open_files: 9 };
        Group { hierarchy, name: "one".into() }.create(&limits).unwrap();
        assert_eq!(fs::read_to_string(sockets).unwrap(), (8 << 20).to_string());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn fields_are_read_by_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field_in(text, "oom_kill"), 3);
        assert_eq!(field_in(text, "absent"), 0);
    }
}
