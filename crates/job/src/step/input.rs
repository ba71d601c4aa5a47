//! What the input type of a tool says about the tool, and the request that a step becomes.

use std::borrow::Cow;

use context::ToolEffect;
use protocol::{FileOperation, GuiAction, Program};
use serde_json::Value;
use utoipa::ToSchema;

use super::browser::BrowserInput;
use crate::invalid::{InvalidField, invalid};
use crate::workspace_path::workspace_path;

/// The input of a step tool. It has a file of its own, and a line in `step/mod.rs`.
pub trait StepInput: ToSchema {
    /// What a call does to the files of the workspace.
    const EFFECT: ToolEffect;
    /// Whether a call runs a cell in a live kernel.
    const IS_CELL: bool = false;

    /// Checks the input and converts it to the request that carries it out.
    ///
    /// # Errors
    /// The first invalid field.
    fn call(&self) -> Result<StepCall<'_>, InvalidField>;

    /// What [`StepInput::call`] demands of the fields, as keywords of their JSON schema.
    fn limits() -> Vec<(&'static str, Value)> {
        Vec::new()
    }

    /// The same for an input that is one of several actions: the action, its field, the keywords.
    fn action_limits() -> Vec<(&'static str, &'static str, Value)> {
        Vec::new()
    }

    /// The name of the schema of these actions.
    #[must_use]
    fn actions() -> Cow<'static, str> {
        Self::name()
    }
}

/// What a step does, with every field checked.
#[derive(Debug, PartialEq)]
pub enum StepCall<'a> {
    Process(Program),
    Cell(CellCode),
    File(FileOperation),
    Action(&'a GuiAction),
    /// A script for `xdotool`, which needs the desktop.
    Script(&'a str),
    Browser(&'a BrowserInput),
}

/// Code for a live kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct CellCode {
    pub language: Language,
    pub code: String,
}

/// Which kernel runs the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Language {
    Python,
    Typescript,
    /// The kernel of this name.
    Kernel(String),
}

/// A step tool, as its input type describes it.
#[derive(Debug, Clone, Copy)]
pub struct StepToolInfo {
    pub effect: ToolEffect,
    pub is_cell: bool,
    /// The name of the input's schema.
    pub schema: fn() -> Cow<'static, str>,
    /// See [`StepInput::limits`].
    pub limits: fn() -> Vec<(&'static str, Value)>,
    /// See [`StepInput::action_limits`].
    pub action_limits: fn() -> Vec<(&'static str, &'static str, Value)>,
    /// See [`StepInput::actions`].
    pub actions: fn() -> Cow<'static, str>,
}

impl StepToolInfo {
    pub(super) const fn of<T: StepInput>() -> Self {
        Self {
            effect: T::EFFECT,
            is_cell: T::IS_CELL,
            schema: T::name,
            limits: T::limits,
            action_limits: T::action_limits,
            actions: T::actions,
        }
    }
}

/// The path of a field, relative to the workspace.
pub(super) fn path_of(field: &str, path: &str) -> Result<String, InvalidField> {
    workspace_path(path).map_err(|problem| invalid(field, problem))
}

/// The call of a tool that runs code.
pub(super) fn cell(language: Language, code: &str) -> Result<StepCall<'static>, InvalidField> {
    if code.trim().is_empty() {
        return Err(invalid("code", "is empty"));
    }
    Ok(StepCall::Cell(CellCode { language, code: code.to_owned() }))
}
