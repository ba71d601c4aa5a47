//! The program that runs a notebook cell.

use job::KernelSelector;
use protocol::{Cell, KernelChoice, Program};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    Typescript,
    Kernel(String),
}

impl Language {
    pub(crate) fn wanted(&self) -> KernelSelector<'_> {
        match self {
            Self::Python => KernelSelector::Language("python"),
            Self::Typescript => KernelSelector::Language("typescript"),
            Self::Kernel(name) => KernelSelector::Name(name),
        }
    }
}

/// The program that the guest runs for a cell.
pub(crate) fn program_of_code(language: &Language, code: &str) -> Program {
    let (kernel, otherwise) = match language {
        Language::Python => {
            let process = vec!["python3".to_owned(), "-".to_owned()];
            (KernelChoice::Language("python".into()), Some(process))
        }
        Language::Typescript => (KernelChoice::Language("typescript".into()), None),
        Language::Kernel(name) => (KernelChoice::Name(name.clone()), None),
    };
    Program::Cell(Cell { kernel, code: code.to_owned(), otherwise })
}
