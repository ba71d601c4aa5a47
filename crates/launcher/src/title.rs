//! What people see of a process in the list of all: a launcher that was forked names its sandbox, as one that was started would.
#![allow(unsafe_code)]

use std::fs;
use std::ops::Range;

/// Where the arguments of this process lie after its name.
pub(crate) struct Title {
    room: Range<usize>,
}

impl Title {
    /// Finds it. `name` is the program's name as it was started.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        let arguments = arguments_in(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let start = arguments.start + name.len() + 1;
        (start < arguments.end).then_some(Self { room: start..arguments.end })
    }

    /// Shows a text in place of the arguments, where it fits.
    pub(crate) fn show(&self, text: &[u8]) {
        let room = self.room.len();
        if text.len() >= room {
            return;
        }
        let start = self.room.start as *mut u8;
        // SAFETY: the kernel has told that these bytes are the arguments of this process, which has one thread. They are
        // writable, and the standard library hands out copies of them only.
        unsafe {
            start.write_bytes(0, room);
            start.copy_from_nonoverlapping(text.as_ptr(), text.len());
        }
    }
}

/// Where the kernel says that the arguments of a process are. Its name, in parentheses, may have anything in it.
fn arguments_in(stat: &str) -> Option<Range<usize>> {
    const FIRST_AFTER_NAME: usize = 45;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(FIRST_AFTER_NAME);
    let mut next = || fields.next()?.parse().ok().filter(|address| *address > 0);
    Some(next()?..next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_where_the_kernel_says() {
        let own = arguments_in(&fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(own.len(), fs::read("/proc/self/cmdline").unwrap().len());
        assert_eq!(arguments_in("1 (a) b) S 1 2"), None);
    }
}
