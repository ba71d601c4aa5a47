//! Messages about kernels: processes that keep the variables of the code that they were given.

use serde::{Deserialize, Serialize};

/// Code for a live kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Which kernel.
    pub kernel: KernelChoice,
    /// The code.
    pub code: String,
    /// Run with the code as standard input where the image has no such kernel; without it that is a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Vec<String>>,
}

/// Which kernel is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelChoice {
    /// The image's kernel for a language, in lower case.
    Language(String),
    /// The kernel of this name.
    Name(String),
}

/// What can be done to a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelAction {
    /// Ends what it does now; its variables stay.
    Interrupt,
    /// Ends it and starts it anew, without variables.
    Restart,
}

/// Where a kernel stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelState {
    /// The image has it; it is started at its first cell.
    NotStarted,
    /// It does not answer yet.
    Starting,
    /// It waits for code.
    Idle,
    /// It runs code.
    Busy,
}

/// One kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// By which it is called.
    pub name: String,
    /// For people.
    pub display_name: String,
    /// In lower case.
    pub language: String,
    /// Where it stands.
    pub state: KernelState,
    /// How many cells it was given since it was started.
    pub cells: u64,
}
