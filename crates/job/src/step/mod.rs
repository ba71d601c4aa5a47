//! The steps of a step job: one file per tool, one line per tool in [`StepTool`]. Parses what a caller submits; errors name
//! the offending field.

mod browser;
mod code;
mod delete_file;
mod edit_file;
mod gui;
mod input;
mod list_files;
mod move_file;
#[cfg(test)]
mod named_elsewhere;
mod python;
mod read_file;
mod shell;
mod typescript;
mod write_file;
mod xdotool;

pub use self::browser::{BrowserInput, ElementChoice, ReadFormat};
pub use self::code::check_kernel_name;
pub use self::gui::GuiInput;
pub use self::input::{CellCode, Language, StepCall, StepInput, StepToolInfo};
pub use self::xdotool::{MAX_SCRIPT_BYTES, check_script};

use context::ToolEffect;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::{IntoStaticStr, VariantNames};
use utoipa::ToSchema;

use self::code::CodeInput;
use self::delete_file::DeleteFileInput;
use self::edit_file::EditFileInput;
use self::list_files::ListFilesInput;
use self::move_file::MoveFileInput;
use self::python::PythonInput;
use self::read_file::ReadFileInput;
use self::shell::ShellInput;
use self::typescript::TypescriptInput;
use self::write_file::WriteFileInput;
use crate::invalid::InvalidField;
use crate::json::{explain, read_object};

pub const TOOL_NAMES: &[&str] = StepTool::VARIANTS;

/// Declares the tools. A tool's name is its variant in snake case; everything else comes from its input type.
macro_rules! step_tools {
    ($($(#[$attribute:meta])* $tool:ident($input:ident),)*) => {
        /// What a step does.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, IntoStaticStr, VariantNames)]
        #[serde(rename_all = "snake_case", tag = "tool")]
        #[strum(serialize_all = "snake_case")]
        pub enum StepTool {
            $($(#[$attribute])* $tool($input),)*
        }

        /// All tools of steps, in the order of [`TOOL_NAMES`].
        pub const STEP_TOOLS: &[StepToolInfo] = &[$(StepToolInfo::of::<$input>()),*];

        impl StepTool {
            /// Checks the input and converts it to the request that carries it out.
            ///
            /// # Errors
            /// The first invalid field.
            pub fn call(&self) -> Result<StepCall<'_>, InvalidField> {
                match self {
                    $(Self::$tool(input) => input.call(),)*
                }
            }
        }
    };
}

step_tools! {
    Shell(ShellInput),
    Python(PythonInput),
    Typescript(TypescriptInput),
    Code(CodeInput),
    WriteFile(WriteFileInput),
    ReadFile(ReadFileInput),
    EditFile(EditFileInput),
    MoveFile(MoveFileInput),
    DeleteFile(DeleteFileInput),
    ListFiles(ListFilesInput),
    /// Does something on the desktop, which is started at its first use.
    Gui(GuiInput),
    /// Does something in the browser on the desktop, which is started at its first use.
    Browser(BrowserInput),
}

/// The step tool of this name.
#[must_use]
pub fn step_tool(name: &str) -> Option<&'static StepToolInfo> {
    STEP_TOOLS.get(TOOL_NAMES.iter().position(|tool| *tool == name)?)
}

/// What a call of a step or an agent does to the workspace; `None` for tools of MCP servers and other programs.
#[must_use]
pub fn tool_effect(name: &str) -> Option<ToolEffect> {
    step_tool(name).map(|tool| tool.effect).or_else(|| context::tool_effect(name))
}

/// One step: a tool, its input, and how to treat the result.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Step {
    /// What to do.
    #[serde(flatten)]
    pub tool: StepTool,
    /// How to treat it.
    #[serde(flatten)]
    pub options: StepOptions,
}

/// How to treat a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepOptions {
    /// Shown in status and log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Ends the step after so many seconds; the server's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Continue with the next step if this one fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continue_on_error: bool,
    /// How often to try again when it fails, at most 10.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry: u32,
    /// What counts as success; exit code 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Expectation>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What counts as success.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// The exit code, 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// A text that standard output must contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_contains: Option<String>,
}

/// The fields of [`StepOptions`]; in JSON they are siblings of the tool's own fields.
const OPTION_FIELDS: [&str; 5] = ["name", "timeout_s", "continue_on_error", "retry", "expect"];

impl<'de> Deserialize<'de> for Step {
    /// Splits the fields between tool and options, so that the error for an unknown field names it.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut fields = Map::<String, Value>::deserialize(deserializer)?;
        let tool = fields.get("tool").ok_or_else(|| D::Error::missing_field("tool"))?;
        let name = tool.as_str().ok_or_else(|| D::Error::custom("tool: must be a string"))?;
        if !TOOL_NAMES.contains(&name) {
            let error = serde::de::value::Error::unknown_variant(name, TOOL_NAMES);
            return Err(D::Error::custom(explain("tool", &error.to_string())));
        }
        let mut options = Map::new();
        for field in OPTION_FIELDS {
            if let Some(value) = fields.shift_remove(field) {
                options.insert(field.to_owned(), value);
            }
        }
        Ok(Self {
            tool: read_object(&fields, &OPTION_FIELDS).map_err(D::Error::custom)?,
            options: read_object(&options, &[]).map_err(D::Error::custom)?,
        })
    }
}

impl StepTool {
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.into()
    }

    #[must_use]
    pub fn effect(&self) -> Option<ToolEffect> {
        step_tool(self.name()).map(|tool| tool.effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Step, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_step_with_options_round_trips() {
        let json = r#"{"tool":"shell","command":"ls","name":"look","timeout_s":3.5,"retry":2,"expect":{"exit_code":1}}"#;
        let step = parse(json).unwrap();
        assert_eq!(serde_json::from_str::<Step>(&serde_json::to_string(&step).unwrap()).unwrap(), step);
        assert_eq!(step.options.retry, 2);
    }

    #[test]
    fn an_unknown_tool_is_refused_with_the_known_ones() {
        let error = parse(r#"{"tool":"fly"}"#).unwrap_err();
        assert!(error.contains("not `fly`") && error.contains("write_file"), "{error}");
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let error = parse(r#"{"tool":"shell","command":"ls","colour":"red"}"#).unwrap_err();
        assert!(error.contains("colour: unknown field; allowed: `command`, `name`"), "{error}");
    }

    #[test]
    fn the_first_invalid_field_of_an_input_is_named() {
        for (json, field) in [
            (r#"{"tool":"shell","command":" "}"#, "command"),
            (r#"{"tool":"python","code":""}"#, "code"),
            (r#"{"tool":"code","kernel":"a/b","code":"1"}"#, "kernel"),
            (r#"{"tool":"read_file","path":"../secret"}"#, "path"),
            (r#"{"tool":"edit_file","path":"a","old":"","new":""}"#, "old"),
            (r#"{"tool":"move_file","from":"a","to":"/etc/b"}"#, "to"),
            (r#"{"tool":"gui","script":"type 'a"}"#, "script"),
            (r#"{"tool":"browser","action":"wait"}"#, "seconds"),
        ] {
            let step = parse(json).unwrap();
            assert_eq!(step.tool.call().unwrap_err().field, field, "{json}");
        }
        let code = parse(r#"{"tool":"code","kernel":"deno","code":"1"}"#).unwrap();
        let expected = CellCode { language: Language::Kernel("deno".into()), code: "1".into() };
        assert_eq!(code.tool.call(), Ok(StepCall::Cell(expected)));
    }

    #[test]
    fn tools_that_agents_have_too_do_the_same_to_the_workspace() {
        assert_eq!(STEP_TOOLS.len(), TOOL_NAMES.len());
        for name in TOOL_NAMES {
            let of_agents = context::tool_effect(name);
            assert!(of_agents.is_none() || of_agents == tool_effect(name), "{name}: {of_agents:?}");
        }
        assert_eq!(tool_effect("delete_file"), Some(ToolEffect::LogsWrites));
        assert_eq!(tool_effect("notes"), Some(ToolEffect::None));
        assert_eq!(tool_effect("hub__send"), None);
    }

    #[test]
    fn a_missing_field_is_named() {
        assert!(parse(r#"{"tool":"shell"}"#).unwrap_err().contains("command: is missing"));
        assert!(parse(r#"{"command":"ls"}"#).unwrap_err().contains("missing field `tool`"));
    }
}
