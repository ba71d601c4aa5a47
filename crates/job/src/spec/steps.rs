//! Validates the steps of a submitted job.

use crate::invalid::{InvalidField, invalid};
use crate::spec::check_seconds;
use crate::spec::workspace_path;
use crate::step::{Step, StepTool};

/// Validates one step. Errors name the field within the step.
pub fn check_step(step: &Step) -> Result<(), InvalidField> {
    let options = &step.options;
    if let Some(seconds) = options.timeout_s {
        check_seconds("timeout_s", seconds)?;
    }
    if options.retry > 10 {
        return Err(invalid("retry", format!("{} is more than 10", options.retry)));
    }
    if options.name.as_ref().is_some_and(|name| name.is_empty() || name.chars().count() > 200) {
        return Err(invalid("name", "must have 1 to 200 characters"));
    }
    match &step.tool {
        StepTool::Shell { command } if command.trim().is_empty() => Err(invalid("command", "is empty")),
        StepTool::Shell { command } if command.contains('\0') => {
            Err(invalid("command", "has a NUL character"))
        }
        StepTool::Python { code } | StepTool::Typescript { code } | StepTool::Code { code, .. }
            if code.trim().is_empty() =>
        {
            Err(invalid("code", "is empty"))
        }
        StepTool::Code { kernel, .. } => check_kernel_name(kernel),
        StepTool::EditFile { old, .. } if old.is_empty() => {
            Err(invalid("old", "is empty; give the text to replace"))
        }
        StepTool::ListFiles { depth, .. } if !(1..=100).contains(depth) => {
            Err(invalid("depth", format!("{depth} is not between 1 and 100")))
        }
        StepTool::Gui(input) => input.check(),
        StepTool::Browser(input) => input.check(),
        StepTool::WriteFile { mode: Some(mode), .. } => parse_mode(mode).map(drop),
        _ => Ok(()),
    }?;
    for (field, path) in paths_of(&step.tool) {
        workspace_path(path).map_err(|problem| invalid(field, problem))?;
    }
    Ok(())
}

/// Kernel names are directory names in the image.
pub fn check_kernel_name(name: &str) -> Result<(), InvalidField> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if (1..=64).contains(&name.len()) && name.bytes().all(is_letter) {
        return Ok(());
    }
    Err(invalid("kernel", "must have 1 to 64 letters, digits, `.`, `-` or `_`"))
}

fn paths_of(tool: &StepTool) -> Vec<(&'static str, &str)> {
    match tool {
        StepTool::Shell { .. }
        | StepTool::Python { .. }
        | StepTool::Typescript { .. }
        | StepTool::Code { .. }
        | StepTool::Gui(_)
        | StepTool::Browser(_) => vec![],
        StepTool::WriteFile { path, .. }
        | StepTool::ReadFile { path }
        | StepTool::EditFile { path, .. }
        | StepTool::DeleteFile { path, .. } => vec![("path", path)],
        StepTool::ListFiles { path, .. } if path.is_empty() => vec![],
        StepTool::ListFiles { path, .. } => vec![("path", path)],
        StepTool::MoveFile { from, to } => vec![("from", from), ("to", to)],
    }
}

/// Parses permission bits in octal.
pub fn parse_mode(mode: &str) -> Result<u32, InvalidField> {
    let is_octal = (1..=3).contains(&mode.len()) && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    match u32::from_str_radix(mode, 8) {
        Ok(bits) if is_octal => Ok(bits),
        _ => Err(invalid("mode", format!("`{mode}` is not an octal number from 0 to 777"))),
    }
}
