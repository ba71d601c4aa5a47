//! The steps of a step job. Parses what a caller submits; errors name the offending field.

mod browser;
mod gui;
mod xdotool;

pub use self::browser::{BrowserInput, ElementChoice, MAX_TEXT_BYTES, MAX_URL_BYTES, MAX_WAIT_S, ReadFormat};
pub use self::gui::GuiInput;
pub use self::xdotool::{MAX_SCRIPT_BYTES, check_script};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use strum::{IntoStaticStr, VariantNames};
use utoipa::ToSchema;

use crate::json::{explain, read_object};

pub const TOOL_NAMES: &[&str] = StepTool::VARIANTS;

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

/// What a step does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, IntoStaticStr, VariantNames)]
#[serde(rename_all = "snake_case", tag = "tool", deny_unknown_fields)]
#[strum(serialize_all = "snake_case")]
pub enum StepTool {
    /// Runs a command line with bash in `/workspace`.
    Shell {
        /// The command line.
        command: String,
    },
    /// Runs Python code in a live kernel that keeps variables from step to step; in a fresh process where the image
    /// has no kernel.
    Python {
        /// The code.
        code: String,
    },
    /// Runs TypeScript code in a live kernel that keeps variables from step to step; top-level `await` works.
    Typescript {
        /// The code.
        code: String,
    },
    /// Runs code in the live kernel of this name.
    Code {
        /// The kernel's name in the image.
        kernel: String,
        /// The code.
        code: String,
    },
    /// Writes a file as a whole, making parent directories.
    WriteFile {
        /// Path in the workspace.
        path: String,
        /// New content.
        content: String,
        /// Permission bits as an octal text, such as `755`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
    },
    /// Reads a file; the content is the step's output.
    ReadFile {
        /// Path in the workspace.
        path: String,
    },
    /// Replaces one exact text in a file; refused when it is not there exactly once.
    EditFile {
        /// Path in the workspace.
        path: String,
        /// The text to find.
        old: String,
        /// What to put in its place.
        new: String,
    },
    /// Moves a file or directory; refused when the target exists.
    MoveFile {
        /// From.
        from: String,
        /// To.
        to: String,
    },
    /// Deletes a file, or with `recursive` a directory with all that is in it.
    DeleteFile {
        /// Path in the workspace.
        path: String,
        /// Needed for a directory that is not empty.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        recursive: bool,
    },
    /// Lists a directory; the listing is the step's output.
    ListFiles {
        /// Directory in the workspace, the workspace itself when absent.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        path: String,
        /// How many levels, 1 when absent.
        #[serde(default = "one_level", skip_serializing_if = "is_one_level")]
        depth: u32,
    },
    /// Does something on the desktop, which is started at its first use.
    Gui(GuiInput),
    /// Does something in the browser on the desktop, which is started at its first use.
    Browser(BrowserInput),
}

fn one_level() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_one_level(depth: &u32) -> bool {
    *depth == 1
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
    fn a_missing_field_is_named() {
        assert!(parse(r#"{"tool":"shell"}"#).unwrap_err().contains("command: is missing"));
        assert!(parse(r#"{"command":"ls"}"#).unwrap_err().contains("missing field `tool`"));
    }
}
