//! Marks every process of a sandbox that has no pid namespace, so that all of them can be found and killed.
//!
//! The mark is the sandbox's number, stored in a resource limit that nothing uses. A child inherits it through fork,
//! exec, setsid and reparenting, and the seccomp filter forbids changing it. So no process can escape it.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, pidfd_send_signal, setrlimit};

/// The limit: how long a process with real-time priority may run without blocking. Values as large as a mark have no
/// effect.
const MARK_LIMIT: Resource = Resource::Rttime;
/// The limit's name in `/proc/PID/limits`.
const NAME: &str = "Max realtime timeout";
/// No process has a real-time limit this high: in microseconds it is about 73,000 years.
const MIN_MARK: u64 = 1 << 61;
const TICK: Duration = Duration::from_millis(1);

/// The mark for a sandbox with this number.
#[must_use]
pub fn of(number: u128) -> u64 {
    // The low bits of an id are the random ones.
    let low = u64::try_from(number & u128::from(MIN_MARK - 1)).unwrap_or(0);
    MIN_MARK | low
}

/// Marks this process and all its descendants.
pub(crate) fn apply_mark(mark: u64) -> rustix::io::Result<()> {
    setrlimit(MARK_LIMIT, Rlimit { current: Some(mark), maximum: Some(mark) })
}

/// The live processes that have a mark.
#[must_use]
pub fn processes(mark: u64) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| has(*pid, mark)).collect()
}

/// Whether a process has a mark and is alive; a zombie may stay around for long.
fn has(pid: i32, mark: u64) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
    read("limits").is_ok_and(|limits| is_in(&limits, mark)) && read("stat").is_ok_and(|stat| is_alive(&stat))
}

/// The process name may contain anything, including parentheses and spaces; the last parenthesis ends it.
fn is_alive(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn is_in(limits: &str, mark: u64) -> bool {
    let line = limits.lines().find_map(|line| line.strip_prefix(NAME));
    let hard = line.and_then(|line| line.split_whitespace().nth(1));
    hard.and_then(|number| number.parse().ok()) == Some(mark)
}

/// Kills every process that has a mark and waits until none is left.
///
/// # Errors
/// Some processes are still alive after `timeout`.
pub fn kill_all(mark: u64, timeout: Duration) -> io::Result<()> {
    let end = Instant::now() + timeout;
    loop {
        let left = processes(mark);
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("cannot kill the processes {left:?}"),
            ));
        }
        // Stop all of them before killing any; otherwise a process that forks faster than it is killed would survive.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &left {
                signal_marked(*pid, mark, signal);
            }
        }
        std::thread::sleep(TICK);
    }
}

fn signal_marked(pid: i32, mark: u64, signal: Signal) {
    let Some(process) = Pid::from_raw(pid) else { return };
    let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { return };
    // Checked after the handle is opened: a pidfd never refers to another process.
    if has(pid, mark) {
        let _ = pidfd_send_signal(&handle, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_limit_is_the_mark() {
        let text = "Max cpu time              unlimited            unlimited            seconds\n\
                    Max realtime timeout      2305843009213693959  2305843009213693959  us\n";
        assert!(is_in(text, 2_305_843_009_213_693_959));
        assert!(!is_in(text, 2_305_843_009_213_693_958));
        assert!(!is_in("Max realtime timeout      unlimited            unlimited            us\n", MIN_MARK));
    }

    #[test]
    fn no_process_has_a_mark_by_accident() {
        assert!(of(0) >= MIN_MARK && of(u128::MAX) >= MIN_MARK && of(u128::MAX) != of(0));
        assert_eq!(processes(of(1)), Vec::<i32>::new());
    }
}
