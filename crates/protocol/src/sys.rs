//! Memory management calls that both the server and the guest make.
#![allow(unsafe_code)]

use std::ptr::{from_ref, null_mut};

unsafe extern "C" {
    /// Defined by the linker: the start of the program in memory.
    static __executable_start: u8;
    /// Defined by the linker: the end of the program's code. Relocations and the program itself modify the memory
    /// after it.
    static etext: u8;
}

/// Returns the pages of code and constants that only startup needed to the kernel, which otherwise keeps them mapped
/// until memory is short. A page that is accessed again comes back from the page cache.
pub fn release_program_pages() {
    // SAFETY: takes only the addresses of the symbols.
    let (from, to) = unsafe { (from_ref(&__executable_start) as usize, from_ref(&etext) as usize) };
    // SAFETY: sysconf has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
    let (from, to) = (from - from % page, to - to % page);
    if from < to {
        // SAFETY: these pages are mapped read-only from the program's file and are unmodified, so later reads return
        // the same content. A gap in the mapping is reported as an error and changes nothing.
        unsafe { libc::madvise(null_mut::<libc::c_void>().with_addr(from), to - from, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "constants are the same afterwards";

    #[test]
    fn program_keeps_running_after_releasing_its_pages() {
        let before = WORDS.to_owned();
        for _ in 0..3 {
            release_program_pages();
            assert_eq!(WORDS, before);
        }
    }
}
