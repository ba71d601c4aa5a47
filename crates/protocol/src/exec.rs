//! Messages about processes.
//!
//! A [`CallKey`] identifies a call. The guest keeps a journal: it never runs the same key twice, and a repeated
//! request returns the state or the result. Output is a sequence of numbered chunks, so that a follower can reconnect
//! and resume at the next number.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::kernel::Cell;

/// Identifies one attempt at one call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallKey {
    /// Unique within the sandbox. Only letters, digits and `-`.
    pub call: String,
    /// Starts at 1.
    pub attempt: u32,
}

impl CallKey {
    #[must_use]
    pub fn new(call: impl Into<String>, attempt: u32) -> Self {
        Self { call: call.into(), attempt }
    }

    /// Whether the call ID is safe as a file name: 1 to 64 ASCII letters, digits and `-`.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A command line for `bash`, or for `sh` if the image has no bash.
    Shell(String),
    /// A program, looked up in `PATH`, and its arguments.
    Arguments(Vec<String>),
    /// Code for a live kernel, which keeps its variables between calls.
    Cell(Cell),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// A request to start a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Identifies the call. A second request with the same key follows the first.
    pub key: CallKey,
    pub program: Program,
    /// The whole environment. The guest adds only `CAISSON_CALL`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Absolute path of the working directory; `/workspace` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Written to standard input at the start. If this is absent and `keep_stdin_open` is false, standard input is
    /// empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Leaves standard input open for [`crate::Request::Input`].
    #[serde(default)]
    pub keep_stdin_open: bool,
    /// Gives the process a terminal of this size instead of pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Ends the call and all its processes, daemons included, after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL.
    #[serde(default = "default_grace_ms")]
    pub kill_grace_ms: u64,
}

fn default_grace_ms() -> u64 {
    2_000
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Follow {
    /// Sends the first 8 MiB as they arrive, then only counts, and the last 8 MiB at the end. Bounded, for a log.
    Capped,
    /// Sends everything as it arrives. A follower that falls more than 8 MiB behind gets a gap. For human viewers.
    Live,
    /// Sends everything as it arrives, without gaps: while the follower is behind, the process blocks on its pipes.
    /// For programs. Since version 2.
    Paced,
}

impl Follow {
    /// The closest mode that a guest with this link version supports.
    pub(crate) fn for_version(self, version: u16) -> Self {
        if self == Self::Paced && version < 2 { Self::Live } else { self }
    }
}

/// The highest signal number. The lowest is 1.
pub const MAX_SIGNAL: i32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum OutputStream {
    Stdout = 1,
    Stderr = 2,
    /// A terminal, where stdout and stderr cannot be told apart.
    Terminal = 3,
    /// Output of a kernel besides text, as [`crate::Display`] records.
    Display = 4,
}

/// A chunk of output. The sequence numbers of a call count from 0 without gaps across all its streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    pub sequence: u64,
    pub stream: OutputStream,
    /// At most [`crate::frame::MAX_OUTPUT_BYTES`].
    pub bytes: Bytes,
}

/// Messages to a follower besides output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum ExecEvent {
    /// The process is running.
    Started {
        /// The process ID inside the sandbox.
        pid: u32,
    },
    /// The guest will not send chunks `from_sequence..to_sequence`.
    Gap {
        /// First missing number.
        from_sequence: u64,
        /// First number after the gap.
        to_sequence: u64,
        /// How many bytes are missing.
        bytes: u64,
    },
    /// How much the process has printed so far. Sent periodically while the guest withholds chunks.
    Progress {
        /// On all streams.
        bytes: u64,
        /// Newlines on all streams.
        lines: u64,
    },
    /// The call has ended. This is the last event.
    Ended(ExecOutcome),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecUpdate {
    Event(ExecEvent),
    Output(OutputChunk),
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecEnd {
    /// The process exited with this code.
    Code(i32),
    /// A signal ended the process.
    Signal(i32),
    /// The call exceeded its time limit, so the guest ended it.
    TimedOut,
    /// [`crate::Request::Kill`] ended the call.
    Killed,
    NotStarted(NotStarted),
    /// The code of a cell raised an exception.
    Raised {
        /// The type of the exception.
        name: String,
        message: String,
    },
    /// The kernel ended before the cell did. The text says how.
    KernelDied(String),
}

/// Why a process could not be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotStarted {
    pub cause: NotStartedCause,
    pub message: String,
}

impl NotStarted {
    #[must_use]
    pub fn new(cause: NotStartedCause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }
}

/// A reason that callers tell apart from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotStartedCause {
    ProgramNotFound,
    /// The program may not be executed, or is none.
    ProgramNotExecutable,
    /// The working directory does not exist, or cannot be entered.
    BadDirectory,
    /// The arguments and the environment are too long.
    ArgumentsTooLong,
    #[serde(other)]
    Other,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOutcome {
    pub end: ExecEnd,
    /// Time from start to end.
    pub duration_ms: u64,
    /// Bytes printed on all streams, whether kept or not.
    pub output_bytes: u64,
    /// Newlines printed on all streams.
    pub output_lines: u64,
    /// Bytes that were in neither the first nor the last 8 MiB.
    pub dropped_bytes: u64,
    /// The number after the last chunk.
    pub next_sequence: u64,
    /// Free bytes on the workspace's disk at the end. 0 explains many failures.
    pub disk_free_bytes: u64,
    /// Free inodes on that disk.
    pub disk_free_inodes: u64,
    /// A remark about how the call ran, for example that the kernel was restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The kernel that ran the cell. Absent for processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelRun>,
}

/// The kernel that ran a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRun {
    pub name: String,
    /// In lower case.
    pub language: String,
    /// How often the kernel has been started in this sandbox, including this time. Cells with the same number share
    /// their variables.
    pub life: u64,
    /// Whether the kernel was still running after the cell.
    #[serde(rename = "alive")]
    pub is_alive: bool,
}

/// The state of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum CallStatus {
    /// The guest does not know the call: it did not run and can be started.
    Unknown,
    Running {
        /// The number after the newest chunk.
        next_sequence: u64,
    },
    /// The process has ended.
    Ended(ExecOutcome),
    /// A request of another kind is done. The same request with the same key returns its result.
    Answered,
    /// A file operation succeeded or was refused.
    File(crate::file::FileResult),
}

#[cfg(test)]
mod tests {
    use super::Follow;

    #[test]
    fn paced_falls_back_to_live_for_old_guests() {
        assert_eq!(Follow::Paced.for_version(1), Follow::Live);
        assert_eq!(Follow::Paced.for_version(2), Follow::Paced);
        assert_eq!(Follow::Capped.for_version(1), Follow::Capped);
    }
}
