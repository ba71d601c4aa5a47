//! What both programs, the server and the guest, ask of the kernel for themselves.
#![allow(unsafe_code)]

use std::ptr::{from_ref, null_mut};

unsafe extern "C" {
    /// The linker's: where the program begins in memory.
    static __executable_start: u8;
    /// The linker's: where its code ends. Behind it is what relocations and the program itself change.
    static etext: u8;
}

/// Gives the pages of the program's constants and code back that only its start has needed; the kernel maps many at once
/// and keeps them for as long as nobody wants the memory. What is needed again comes back from the page cache.
pub fn give_back_program_pages() {
    // SAFETY: only the addresses are taken.
    let (from, to) = unsafe { (from_ref(&__executable_start) as usize, from_ref(&etext) as usize) };
    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
    let (from, to) = (from - from % page, to - to % page);
    if from < to {
        // SAFETY: these pages are mapped from the program's file, may not be written to, and nothing has changed them, so
        // they are the same when they are read again. A gap between them is reported, and changes nothing.
        unsafe { libc::madvise(null_mut::<libc::c_void>().with_addr(from), to - from, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "constants are the same afterwards";

    #[test]
    fn a_program_goes_on_after_it() {
        let before = WORDS.to_owned();
        for _ in 0..3 {
            give_back_program_pages();
            assert_eq!(WORDS, before);
        }
    }
}
