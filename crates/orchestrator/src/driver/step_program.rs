//! The process that carries out a step.

use job::CellCode;
use protocol::Program;

use super::cells::program_of_code;
use super::desktop_script::{script_command, script_text};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StepProgram {
    pub(super) program: Program,
    pub(super) stdin: Option<String>,
}

impl From<Program> for StepProgram {
    fn from(program: Program) -> Self {
        Self { program, stdin: None }
    }
}

impl StepProgram {
    pub(super) fn of_cell(cell: &CellCode) -> Self {
        program_of_code(&cell.language, &cell.code).into()
    }

    /// Runs `xdotool`, which reads the script from its stdin.
    pub(super) fn of_script(script: &str) -> Self {
        Self { program: Program::Arguments(script_command()), stdin: Some(script_text(script)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read_from_stdin() {
        let StepProgram { program, stdin } = StepProgram::of_script("key Return");
        assert_eq!(program, Program::Arguments(script_command()));
        assert_eq!(stdin.as_deref(), Some("key Return\n"));
    }
}
