//! Messages about kernels: processes that run code and keep its variables.

use serde::{Deserialize, Serialize};

/// Code for a live kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub kernel: KernelChoice,
    pub code: String,
    /// The program to run with the code as standard input if the image has no such kernel. If absent, the call fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelChoice {
    /// The image's kernel for a language, in lower case.
    Language(String),
    Name(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelAction {
    /// Stops the current computation. The variables remain.
    Interrupt,
    /// Ends the kernel and starts it again without its variables.
    Restart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelState {
    /// The image provides the kernel. Its first cell starts it.
    NotStarted,
    /// The kernel does not respond yet.
    Starting,
    /// The kernel waits for code.
    Idle,
    /// The kernel runs code.
    Busy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    pub name: String,
    pub display_name: String,
    /// In lower case.
    pub language: String,
    pub state: KernelState,
    /// How many cells the kernel has run since its last start.
    pub cells: u64,
}
