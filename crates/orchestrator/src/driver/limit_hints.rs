//! Recognizes what programs print when the sandbox's disk is full or no process can be created. Pure.
//!
//! The sandbox's counters sometimes miss both: `dd bs=1M` leaves room for less than one block, `fallocate` fails with
//! half of the disk free, and an `RLIMIT_NPROC` limit counts nothing. So the messages of the C library count as well,
//! if a failed call printed them to stderr. A program that hides its error is not recognized.

/// Only this many bytes of a line are examined.
const LINE_BYTES: usize = 2048;

/// Messages of the C library for ENOSPC and EDQUOT; in lower case, because some runtimes write them that way.
const NO_SPACE: [&str; 2] = ["no space left on device", "disk quota exceeded"];
/// In-memory file systems: if one of these is full, the disk is not.
const IN_MEMORY: [&str; 2] = ["/dev/shm", "/run/"];
/// Messages for EAGAIN, which `fork` shares with reads that would block ...
const TRY_AGAIN: [&str; 2] = ["resource temporarily unavailable", "eagain"];
/// ... so they count only if one of these words is in the same output.
const MAKING: [&str; 6] = ["fork", "clone", "spawn", "subprocess", "pthread", "native thread"];
/// Messages that are unambiguous by themselves.
const NO_PROCESS: [&str; 3] = ["can't start new thread", "cannot fork", "can't fork"];

/// The limits that a call's messages refer to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LimitHints {
    /// A disk is full.
    pub(crate) no_space: bool,
    /// A process or thread could not be created.
    pub(crate) no_process: bool,
}

/// Scans stderr as it arrives.
#[derive(Debug, Default)]
pub(super) struct LimitHintScanner {
    line: Vec<u8>,
    no_space: bool,
    no_process: bool,
    try_again: bool,
    making: bool,
}

impl LimitHintScanner {
    /// Takes the next piece.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        let mut lines = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(part) = lines.next() {
            let room = LINE_BYTES.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if lines.peek().is_some() {
                self.end_line();
            }
        }
    }

    /// Takes a whole message.
    pub(super) fn take_message(&mut self, message: &str) {
        self.take(b"\n");
        self.take(message.as_bytes());
        self.take(b"\n");
    }

    /// What was recognized so far.
    pub(super) fn hints(&mut self) -> LimitHints {
        self.end_line();
        LimitHints { no_space: self.no_space, no_process: self.no_process || (self.try_again && self.making) }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line).to_ascii_lowercase();
        let has = |texts: &[&str]| texts.iter().any(|text| line.contains(text));
        self.no_space |= has(&NO_SPACE) && !has(&IN_MEMORY);
        self.no_process |= has(&NO_PROCESS);
        self.try_again |= has(&TRY_AGAIN);
        self.making |= has(&MAKING);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hints(text: &str) -> LimitHints {
        let mut reader = LimitHintScanner::default();
        reader.take(text.as_bytes());
        reader.hints()
    }

    #[test]
    fn messages_of_common_programs_are_recognised() {
        for text in [
            "dd: error writing 'large.bin': No space left on device\n",
            "fallocate: fallocate failed: No space left on device",
            "OSError: [Errno 28] No space left on device: 'x'\n",
            "Error: ENOSPC: no space left on device, write\n",
            "cp: error writing 'y': Disk quota exceeded",
        ] {
            assert_eq!(hints(text), LimitHints { no_space: true, no_process: false }, "{text}");
        }
        for text in [
            "bash: fork: retry: Resource temporarily unavailable\n",
            "Traceback:\n  pid = os.fork()\nBlockingIOError: [Errno 11] Resource temporarily unavailable\n",
            "RuntimeError: can't start new thread\n",
            "sh: 1: Cannot fork\n",
            "Error: spawn /bin/sh EAGAIN",
        ] {
            assert_eq!(hints(text), LimitHints { no_space: false, no_process: true }, "{text}");
        }
    }

    #[test]
    fn unrelated_failures_are_not_mistaken_for_limits() {
        for text in [
            "",
            "read: Resource temporarily unavailable\n",
            "OSError: [Errno 28] No space left on device: '/dev/shm/block'\n",
            "thread 'main' panicked: Resource temporarily unavailable\n",
        ] {
            assert_eq!(hints(text), LimitHints::default(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn limit_hints_do_not_depend_on_chunk_boundaries(
            before in "[a-z \n]{0,40}",
            message in prop::sample::select(vec![NO_SPACE[0], NO_PROCESS[0], "fork: Resource temporarily unavailable", "fine"]),
            after in "[a-z \n]{0,40}",
            size in 1usize..9,
        ) {
            let text = format!("{before}{message}{after}");
            let mut reader = LimitHintScanner::default();
            for piece in text.as_bytes().chunks(size) {
                reader.take(piece);
            }
            prop_assert_eq!(reader.hints(), hints(&text));
        }
    }
}
