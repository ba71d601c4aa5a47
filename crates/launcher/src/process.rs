//! Distinguishes a process from a later one with the same pid.

use std::fs;
use std::ops::Range;

/// The start time of a process in ticks since boot; `None` if it does not exist.
#[must_use]
pub fn started(pid: i32) -> Option<u64> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The address range of this process's arguments.
pub(crate) fn own_arguments() -> Option<Range<usize>> {
    arguments_in(&fs::read_to_string("/proc/self/stat").ok()?)
}

fn started_in(stat: &str) -> Option<u64> {
    fields(stat)?.nth(19)?.parse().ok()
}

fn arguments_in(stat: &str) -> Option<Range<usize>> {
    let mut addresses = fields(stat)?.skip(45).map_while(|field| field.parse().ok());
    // The kernel reports zero to readers without permission.
    Some(addresses.next().filter(|address| *address > 0)?..addresses.next()?)
}

/// The fields after the process name. The name may contain anything, including parentheses and spaces; the last
/// parenthesis ends it.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_parsed_after_any_process_name() {
        let stat = "42 (a) R 1 (x) S 7 42 41 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 9000 1 2\n";
        assert_eq!(started_in(stat), Some(9000));
        assert!(started(i32::try_from(std::process::id()).unwrap()).is_some());
    }

    #[test]
    fn own_arguments_have_the_length_of_the_command_line() {
        assert_eq!(own_arguments().unwrap().len(), fs::read("/proc/self/cmdline").unwrap().len());
        assert_eq!(arguments_in("42 (a) b) S 7 42"), None);
    }
}
