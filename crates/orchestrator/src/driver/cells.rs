//! The program that runs a notebook cell.

use job::Language;
use protocol::{Cell, KernelChoice, Program};

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
