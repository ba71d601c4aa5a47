//! Ends a call with all its processes.
//!
//! The process tree of a call consists of the processes with its [`ProcessMark`], its process group, its session and
//! all descendants of these processes, found in `/proc`. A process seen once stays a member even if another process
//! adopts it. A daemon that has changed the limit with the mark is not found.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::process_mark::ProcessMark;
use crate::sys;

/// How long killed processes may take to exit, for which each needs CPU time. Together with the grace period and the
/// wait for the exit status, this must stay below the host's timeout for the end of a killed call.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A process as shown by `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    state: u8,
    parent: i32,
    group: i32,
    session: i32,
    /// Start time, to detect a reused process ID.
    started: u64,
}

/// The process tree of one call.
pub(crate) struct ProcessTree {
    root: i32,
    mark: Option<ProcessMark>,
    /// The living members, with their start times.
    known: HashMap<i32, u64>,
    /// Processes without the mark, with their start times. No process gets the mark later, except the root before its
    /// program runs, so their limits are read only once.
    unmarked: HashMap<i32, u64>,
}

impl ProcessTree {
    /// The tree of a session leader, without the daemons that it started.
    pub(crate) fn of(root: i32) -> Self {
        Self { root, mark: None, known: HashMap::new(), unmarked: HashMap::new() }
    }

    /// The tree of a session leader, with all processes that have its mark.
    pub(crate) fn with_mark(root: i32, mark: ProcessMark) -> Self {
        Self { mark: Some(mark), ..Self::of(root) }
    }

    /// Ends the tree with SIGTERM, then SIGKILL after the grace period. Returns when all processes have ended, or
    /// after [`KILL_TIMEOUT`].
    pub(crate) async fn end(mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.refresh();
        self.signal(libc::SIGTERM);
        // A stopped process handles SIGTERM only after it continues.
        self.signal(libc::SIGCONT);
        let mut pause = Duration::from_millis(2);
        while self.is_alive() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(Duration::from_millis(50));
            self.refresh();
        }
        // Each round kills all current members, so only a fork bomb needs more than two rounds.
        let deadline = Instant::now() + KILL_TIMEOUT;
        while self.is_alive() && Instant::now() < deadline {
            self.signal(libc::SIGKILL);
            sleep(Duration::from_millis(2)).await;
            self.refresh();
        }
    }

    fn is_alive(&self) -> bool {
        !self.known.is_empty()
    }

    fn signal(&self, signal: i32) {
        let _ = sys::signal_group(self.root, signal);
        for pid in self.known.keys() {
            sys::signal_process(*pid, signal);
        }
    }

    fn refresh(&mut self) {
        let processes = processes();
        let marked = self.marked(&processes);
        self.known = members(self.root, &self.known, &marked, &processes);
    }

    /// The processes that have the mark.
    fn marked(&mut self, processes: &[Process]) -> HashSet<i32> {
        let Some(mark) = self.mark else { return HashSet::new() };
        let mut marked = HashSet::new();
        for process in processes {
            if self.unmarked.get(&process.pid) == Some(&process.started) {
                continue;
            }
            match mark.is_on(process.pid) {
                Some(true) => {
                    marked.insert(process.pid);
                }
                Some(false) => {
                    self.unmarked.insert(process.pid, process.started);
                }
                // The process has just ended.
                None => {}
            }
        }
        marked
    }
}

/// The living processes that belong to the tree of `root`.
fn members(
    root: i32,
    known: &HashMap<i32, u64>,
    marked: &HashSet<i32>,
    processes: &[Process],
) -> HashMap<i32, u64> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    let belongs = |process: &&Process| {
        process.pid == root
            || process.group == root
            || process.session == root
            || marked.contains(&process.pid)
            || known.get(&process.pid) == Some(&process.started)
    };
    let mut seen: HashSet<i32> = HashSet::new();
    let mut waiting: Vec<&Process> = processes.iter().filter(belongs).collect();
    let mut members = HashMap::new();
    while let Some(process) = waiting.pop() {
        if !seen.insert(process.pid) {
            continue;
        }
        if !matches!(process.state, b'Z' | b'X') {
            members.insert(process.pid, process.started);
        }
        waiting.extend(children.get(&process.pid).into_iter().flatten());
    }
    members
}

fn processes() -> Vec<Process> {
    pids().filter_map(|pid| parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)).collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The number of processes in the sandbox, which has a separate PID namespace.
pub(crate) fn count_processes() -> u32 {
    u32::try_from(pids().count()).unwrap_or(u32::MAX)
}

/// The number of descendants of this process, including itself.
pub(crate) fn count_descendants() -> u32 {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let all = processes();
    let mut below: HashSet<i32> = HashSet::from([own]);
    loop {
        let before = below.len();
        let children =
            all.iter().filter(|process| below.contains(&process.parent)).map(|process| process.pid);
        below.extend(children.collect::<Vec<_>>());
        if below.len() == before {
            return u32::try_from(before).unwrap_or(u32::MAX);
        }
    }
}

fn parse(stat: &[u8]) -> Option<Process> {
    // The name can contain anything, including parentheses and spaces. The last closing parenthesis ends it.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let pid = std::str::from_utf8(stat.split(|byte| *byte == b' ').next()?).ok()?.parse().ok()?;
    let mut fields = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?.split(' ');
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let started = fields.nth(15)?.parse().ok()?;
    Some(Process { pid, state, parent, group, session, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, session: i32) -> Process {
        Process { pid, state: b'S', parent, group: session, session, started: 7 }
    }

    #[test]
    fn a_name_with_brackets_does_not_confuse_the_parser() {
        let stat = b"42 (a) R 1 1 (x) S 7 42 41 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 9000 1 2\n";
        let expected = Process { pid: 42, state: b'S', parent: 7, group: 42, session: 41, started: 9000 };
        assert_eq!(parse(stat), Some(expected));
    }

    #[test]
    fn own_stat_entry_can_be_parsed() {
        let own = parse(&std::fs::read("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(u32::try_from(own.pid).unwrap(), std::process::id());
    }

    #[test]
    fn a_child_with_its_own_session_and_its_children_belong_to_the_tree() {
        let all = [process(10, 1, 10), process(11, 10, 11), process(12, 11, 11), process(20, 1, 20)];
        let members = members(10, &HashMap::new(), &HashSet::new(), &all);
        assert_eq!(members.keys().copied().collect::<HashSet<_>>(), HashSet::from([10, 11, 12]));
    }

    #[test]
    fn reparented_process_stays_in_the_tree_but_a_reused_pid_does_not() {
        let known = HashMap::from([(11, 7), (12, 6)]);
        let members = members(10, &known, &HashSet::new(), &[process(11, 1, 11), process(12, 1, 12)]);
        assert_eq!(members.keys().copied().collect::<Vec<_>>(), vec![11]);
    }

    #[test]
    fn marked_process_and_its_children_belong_to_the_tree() {
        let all = [process(10, 1, 10), process(11, 1, 11), process(12, 11, 12), process(20, 1, 20)];
        let members = members(10, &HashMap::new(), &HashSet::from([11]), &all);
        assert_eq!(members.keys().copied().collect::<HashSet<_>>(), HashSet::from([10, 11, 12]));
    }
}
