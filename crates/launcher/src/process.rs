//! Telling a process from a later one with the same id.

use std::fs;

/// When a process started, in ticks since the host did; `None` when there is none.
#[must_use]
pub fn started(pid: i32) -> Option<u64> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name may hold anything, brackets and spaces too; the last bracket ends it.
fn started_in(stat: &str) -> Option<u64> {
    const FIELDS_AFTER_NAME: usize = 19;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(FIELDS_AFTER_NAME)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let stat = "42 (a) R 1 (x) S 7 42 41 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 9000 1 2\n";
        assert_eq!(started_in(stat), Some(9000));
        assert!(started(i32::try_from(std::process::id()).unwrap()).is_some());
    }
}
