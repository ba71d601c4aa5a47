//! Messages about processes.
//!
//! A call is named by [`CallKey`]. The guest keeps a journal: the same key never runs twice, and asking again gives
//! the state or the result. Output is a sequence of chunks with numbers, so that a follower may come back after a
//! break and name the number that it wants next.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::kernel::Cell;

/// Names one attempt at one call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallKey {
    /// Unique within the sandbox; letters, digits and `-` only.
    pub call: String,
    /// Counts from 1.
    pub attempt: u32,
}

impl CallKey {
    /// The key of the given attempt at a call.
    #[must_use]
    pub fn new(call: impl Into<String>, attempt: u32) -> Self {
        Self { call: call.into(), attempt }
    }

    /// Whether the call's name is safe as a file name: 1 to 64 letters, digits and `-`.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        (1..=64).contains(&self.call.len())
            && self.call.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    }
}

impl std::fmt::Display for CallKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.call, self.attempt)
    }
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A command line for `bash`, or `sh` where there is no bash.
    Shell(String),
    /// A program, found through `PATH`, and its arguments.
    Arguments(Vec<String>),
    /// Code for a live kernel, which keeps its variables from call to call.
    Cell(Cell),
}

/// Rows and columns of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Height in characters.
    pub rows: u16,
    /// Width in characters.
    pub columns: u16,
}

/// Starts a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Names the call; a second request with the same key follows the first.
    pub key: CallKey,
    /// What to run.
    pub program: Program,
    /// The whole environment; the guest adds nothing but `CAISSON_CALL`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Working directory, absolute. `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Written to standard input at the start. Without it and without `keep_stdin_open` input is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Leaves standard input open for [`crate::Request::Input`].
    #[serde(default)]
    pub keep_stdin_open: bool,
    /// Gives the process a terminal of this size instead of pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Ends the whole process group after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL.
    #[serde(default = "default_grace_ms")]
    pub kill_grace_ms: u64,
}

fn default_grace_ms() -> u64 {
    2_000
}

/// Which output a follower wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Follow {
    /// The first 8 MiB as they come, then only counts, and at the end the last 8 MiB: bounded, for a log.
    Capped,
    /// Everything as it comes; a follower that falls more than 8 MiB behind gets a gap. For a person watching.
    Live,
    /// Everything as it comes, and whole: the process waits at its pipes while the follower is behind. For a program that reads.
    /// Since version 2.
    Paced,
}

impl Follow {
    /// What a guest of this version knows that comes nearest.
    pub(crate) fn for_version(self, version: u16) -> Self {
        if self == Self::Paced && version < 2 { Self::Live } else { self }
    }
}

/// The highest signal number; the lowest is 1.
pub const MAX_SIGNAL: i32 = 64;

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum OutputStream {
    /// Standard output.
    Stdout = 1,
    /// Standard error.
    Stderr = 2,
    /// A terminal, where the two cannot be told apart.
    Terminal = 3,
    /// What a kernel shows beside text: [`crate::Display`] records.
    Display = 4,
}

/// A piece of output. Sequence numbers of a call count from 0 without gaps over all its streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    /// Position in the call's output.
    pub sequence: u64,
    /// Where it came from.
    pub stream: OutputStream,
    /// At most [`crate::frame::MAX_OUTPUT_BYTES`].
    pub bytes: Bytes,
}

/// What a follower is told beside output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ExecEvent {
    /// The process runs.
    Started {
        /// Its process id inside the sandbox.
        pid: u32,
    },
    /// Chunks `from_sequence..to_sequence` will not be sent.
    Gap {
        /// First missing number.
        from_sequence: u64,
        /// First number that is there again.
        to_sequence: u64,
        /// How many bytes are missing.
        bytes: u64,
    },
    /// So much was printed so far; sent at intervals while chunks are held back.
    Progress {
        /// Bytes of all streams.
        bytes: u64,
        /// Line ends of all streams.
        lines: u64,
    },
    /// The end; nothing follows.
    Ended(ExecOutcome),
}

/// What a follower receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecUpdate {
    /// Anything but output.
    Event(ExecEvent),
    /// Output.
    Output(OutputChunk),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// It exited by itself.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It ran longer than its time and was ended.
    TimedOut,
    /// It was ended by [`crate::Request::Kill`].
    Killed,
    /// It could not be started; the text says why.
    NotStarted(String),
    /// The code of a cell has raised an exception.
    Raised {
        /// Its type.
        name: String,
        /// What it says.
        message: String,
    },
    /// The kernel of a cell has ended before the cell did; the text says how.
    KernelDied(String),
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOutcome {
    /// How it ended.
    pub end: ExecEnd,
    /// From start to end.
    pub duration_ms: u64,
    /// Bytes printed on all streams, kept or not.
    pub output_bytes: u64,
    /// Line ends printed on all streams.
    pub output_lines: u64,
    /// Bytes that were neither in the first nor in the last 8 MiB.
    pub dropped_bytes: u64,
    /// The number after the last chunk.
    pub next_sequence: u64,
    /// Free bytes on the workspace's disk at the end; 0 explains many failures.
    pub disk_free_bytes: u64,
    /// Free inodes on that disk.
    pub disk_free_inodes: u64,
    /// What should be known of how it ran, such as that a kernel was started anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The kernel that was given a cell; absent for processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelRun>,
}

/// The kernel that was given a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRun {
    /// By which it is called.
    pub name: String,
    /// In lower case.
    pub language: String,
    /// How often it was started in this sandbox, this time included: cells with the same number share their variables.
    pub life: u64,
    /// Whether it lived on after the cell.
    #[serde(rename = "alive")]
    pub is_alive: bool,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum CallStatus {
    /// The guest has never heard of it: it did not run and may be started.
    Unknown,
    /// It runs.
    Running {
        /// The number after the newest chunk.
        next_sequence: u64,
    },
    /// A process has ended.
    Ended(ExecOutcome),
    /// Something else has been done; the same request with the same key gives its result again.
    Answered,
    /// A file operation has been done or refused.
    File(crate::file::FileResult),
}

#[cfg(test)]
mod tests {
    use super::Follow;

    #[test]
    fn a_guest_that_knows_no_pace_is_asked_for_what_it_knows() {
        assert_eq!(Follow::Paced.for_version(1), Follow::Live);
        assert_eq!(Follow::Paced.for_version(2), Follow::Paced);
        assert_eq!(Follow::Capped.for_version(1), Follow::Capped);
    }
}
