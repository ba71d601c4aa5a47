//! Marks the processes of a call, so that all of them can be found when the call is killed or times out.
//!
//! The mark is a random number in the soft limit on file locks (`RLIMIT_LOCKS`), which Linux does not enforce. A child
//! inherits it through fork, exec, setsid and reparenting, so daemons have it as well. A process that changes this
//! limit loses its mark; [`crate::process_tree`] then finds it only as a descendant of another process of the call.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::random::random_number;

const MARK_LIMIT: Resource = Resource::Locks;
/// The limit's name in `/proc/PID/limits`.
const NAME: &str = "Max file locks";
/// No ordinary limit is this high.
const MIN_MARK: u64 = 1 << 61;

/// The mark of one call, service or kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMark(u64);

impl ProcessMark {
    /// A mark that no process has yet.
    pub(crate) fn random() -> io::Result<Self> {
        Ok(Self(MIN_MARK | (random_number()? & (MIN_MARK - 1))))
    }

    /// Marks this process and its future descendants. Makes only system calls, so a child may call it between fork
    /// and exec. Keeps the hard limit, so that programs may still raise the limit, and a sandbox can run another guest.
    pub(crate) fn apply(self) -> rustix::io::Result<()> {
        let maximum = getrlimit(MARK_LIMIT).maximum;
        setrlimit(MARK_LIMIT, Rlimit { current: Some(self.0), maximum })
    }

    /// Whether a process has the mark; `None` if its limits cannot be read. Reads `/proc`, because prlimit(2) does not
    /// show the processes of other users.
    pub(crate) fn is_on(self, pid: i32) -> Option<bool> {
        fs::read_to_string(format!("/proc/{pid}/limits")).ok().map(|limits| self.is_in(&limits))
    }

    fn is_in(self, limits: &str) -> bool {
        let line = limits.lines().find_map(|line| line.strip_prefix(NAME));
        let soft = line.and_then(|line| line.split_whitespace().next());
        soft.and_then(|number| number.parse().ok()) == Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_the_mark() {
        let mark = ProcessMark(2_305_843_009_213_693_959);
        let text = "Max cpu time              unlimited            unlimited            seconds   \n\
                    Max file locks            2305843009213693959  unlimited            locks     \n";
        assert!(mark.is_in(text));
        assert!(!ProcessMark(2_305_843_009_213_693_958).is_in(text));
        assert!(
            !mark.is_in("Max file locks            unlimited            unlimited            locks     \n")
        );
        assert!(!mark.is_in(""));
    }

    #[test]
    fn new_marks_differ_and_no_process_has_one() {
        let (first, second) = (ProcessMark::random().unwrap(), ProcessMark::random().unwrap());
        assert_ne!(first, second);
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(first.is_on(own), Some(false));
        assert_eq!(first.is_on(i32::MAX), None);
    }
}
