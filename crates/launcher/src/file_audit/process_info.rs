//! Identifies the process behind an event, by its pid inside the sandbox, and the call that it belongs to, if it
//! still exists.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::time::{Duration, Instant};

/// How long an entry is valid: a process may exec another program, and pids are reused.
const FRESH: Duration = Duration::from_millis(50);
const MOST: usize = 4096;
/// The guest's pid, in sandboxes with a pid namespace.
const GUEST_PID: u32 = 1;
/// Identifies the call in the environment of its processes: the user name for the proxy.
const CALL_MARK: &[u8] = b"HTTP_PROXY=http://";
const MAX_ENVIRONMENT: u64 = 256 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    /// The pid inside the sandbox.
    pub(super) pid: Option<u32>,
    pub(super) process: Option<String>,
    /// The call and its attempt.
    pub(super) call: Option<String>,
    /// Start time in ticks since boot, because pids are reused.
    pub(super) start_time: Option<u64>,
}

/// A short-lived cache of process information.
#[derive(Default)]
pub(super) struct ProcessCache {
    known: HashMap<i32, (Instant, ProcessInfo)>,
}

impl ProcessCache {
    pub(super) fn who(&mut self, pid: i32) -> ProcessInfo {
        if let Some((when, who)) = self.known.get(&pid)
            && when.elapsed() < FRESH
        {
            return who.clone();
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let who = read_process(pid);
        // The guest never changes. Any other process without a call may be about to exec the program of one.
        if who.call.is_some() || who.pid == Some(GUEST_PID) {
            self.known.insert(pid, (Instant::now(), who.clone()));
        } else {
            self.known.remove(&pid);
        }
        who
    }
}

fn read_process(pid: i32) -> ProcessInfo {
    // Read first: on exec the kernel sets the name before the environment, so the name is never older than the call.
    let environment = environment_of(pid);
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return ProcessInfo::default() };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ProcessInfo {
        pid: field("NSpid:").and_then(|numbers| numbers.split_whitespace().last()?.parse().ok()),
        process: field("Name:").map(|name| name.trim().chars().take(64).collect()),
        call: parse_call(&environment),
        start_time: parse_start_time(&stat),
    }
}

/// The beginning of a process's environment, which may be megabytes long.
fn environment_of(pid: i32) -> Vec<u8> {
    let mut environment = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        let _ = file.take(MAX_ENVIRONMENT).read_to_end(&mut environment);
    }
    environment
}

/// Parses a process's start time. The name, in parentheses, may contain anything.
fn parse_start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Extracts the call from an environment. A process may have changed its own, so only text that looks like a call is
/// accepted.
pub(super) fn parse_call(environment: &[u8]) -> Option<String> {
    let entry = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(CALL_MARK))?;
    let user = entry.split(|byte| *byte == b':').next()?;
    let is_call = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    if user.is_empty() || user.len() > 100 || !user.iter().all(is_call) {
        return None;
    }
    String::from_utf8(user.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_is_parsed_from_the_environment_and_invalid_values_are_ignored() {
        assert_eq!(
            parse_call(b"A=b\0HTTP_PROXY=http://step-1.1:x@127.0.0.1:3128\0C=d"),
            Some("step-1.1".into())
        );
        assert_eq!(parse_call(b"HTTP_PROXY=http://\"}\n:x@"), None);
        assert_eq!(parse_call(b"HTTP_PROXY=http://"), None);
        assert_eq!(parse_call(b""), None);
        assert_eq!(ProcessCache::default().who(i32::MAX), ProcessInfo::default());
    }

    #[test]
    fn only_the_beginning_of_a_large_environment_is_read() {
        let mut command = std::process::Command::new("sleep");
        command.arg("60").env_clear().env("HTTP_PROXY", "http://step-1.1:x@127.0.0.1:3128");
        for number in 0..8 {
            command.env(format!("Z{number}"), "x".repeat(100_000));
        }
        let mut child = command.spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Until the child has executed its program, it has the test's environment.
        let end = Instant::now() + Duration::from_secs(60);
        while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim() != "sleep" {
            assert!(Instant::now() < end, "it does not begin");
            std::thread::yield_now();
        }
        let (read, call) = (environment_of(pid), read_process(pid).call);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((read.len() as u64, call.as_deref()), (MAX_ENVIRONMENT, Some("step-1.1")));
    }

    #[test]
    fn a_process_without_a_call_is_not_cached() {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "read line; exec env HTTP_PROXY=http://step-1.1:x@127.0.0.1:3128 sleep 60"]);
        let mut child = command.env_remove("HTTP_PROXY").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let mut asked = ProcessCache::default();
        assert_eq!(asked.who(pid).call, None);
        assert!(asked.known.is_empty(), "it is remembered");
        drop(child.stdin.take());
        let end = Instant::now() + Duration::from_secs(60);
        let who = loop {
            let who = asked.who(pid);
            if who.call.is_some() || Instant::now() > end {
                break who;
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((who.call.as_deref(), who.process.as_deref()), (Some("step-1.1"), Some("sleep")));
        assert!(asked.known.contains_key(&pid), "it is asked each time");
    }

    #[test]
    fn the_start_time_of_a_process_is_parsed() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 10 0 0 0 0 0 0 0 20 0 1 0 4711 1000 10";
        assert_eq!(parse_start_time(stat), Some(4711));
        assert_eq!((parse_start_time(""), parse_start_time("7 (x) S 1")), (None, None));
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(ProcessCache::default().who(own).start_time.is_some());
    }
}
