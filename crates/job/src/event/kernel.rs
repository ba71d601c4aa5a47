//! Notebook kernels in the log: which kernel ran a cell, and which were lost.

use protocol::KernelRun;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::step::check_kernel_name;

/// Maximum number of variables to name.
const MAX_NAMED: usize = 40;

/// The kernel that was given a cell, as it is logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KernelUse {
    /// By which it is called.
    pub name: String,
    /// In lower case.
    pub language: String,
    /// How often it was started in this sandbox; 0 where the cell was not given to it.
    pub life: u64,
    /// Whether it lived on after the cell.
    pub alive: bool,
}

impl KernelUse {
    /// Validates what the guest reports; `None` if it is not plausible.
    pub fn of(run: KernelRun) -> Option<Self> {
        let is_language = (1..=64).contains(&run.language.len()) && run.language.is_ascii();
        let is_kernel = check_kernel_name(&run.name).is_ok() && is_language && run.life > 0;
        is_kernel.then_some(Self {
            name: run.name,
            language: run.language,
            life: run.life,
            alive: run.is_alive,
        })
    }
}

/// A kernel that was lost with its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostKernel {
    /// By which it was called.
    pub name: String,
    /// In lower case.
    pub language: String,
    /// How many cells it had run since it was started, without those whose steps are done again anyway.
    pub cells: usize,
    /// The variables that these cells assigned at their top level, as far as their code tells; at most 40.
    pub variables: Vec<String>,
    /// How many more there were.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_variables: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl LostKernel {
    pub fn new(name: &str, language: &str, cells: usize, mut variables: Vec<String>) -> Self {
        let more_variables = variables.len().saturating_sub(MAX_NAMED);
        variables.truncate(MAX_NAMED);
        Self { name: name.to_owned(), language: language.to_owned(), cells, variables, more_variables }
    }

    /// Describes which variables are gone.
    pub fn gone(&self) -> String {
        let cells = if self.cells == 1 { "1 cell".to_owned() } else { format!("{} cells", self.cells) };
        let more = match self.more_variables {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        match self.variables.as_slice() {
            [] => format!("what its {cells} left in it is gone (no variable is known by name)"),
            names => format!("the variables of its {cells} are gone: {}{more}", names.join(", ")),
        }
    }
}
