//! The input of a `gui` step.

use std::borrow::Cow;

use context::ToolEffect;
use protocol::{GuiAction, MAX_TYPED_CHARS, MAX_WAIT_S, WindowChoice};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::input::{StepCall, StepInput};
use super::xdotool::check_script;
use crate::invalid::InvalidField;
use crate::json::keywords::{not_blank, range};
use crate::json::read_object;

/// Fields of actions that count pixels or clicks of the mouse wheel.
const NUMBERS: [&str; 8] = ["x", "y", "from_x", "from_y", "to_x", "to_y", "down", "right"];

/// Something to do on the desktop: an action, or a script for `xdotool`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum GuiInput {
    /// Runs `xdotool` with these commands as they are.
    Script {
        /// The commands.
        script: String,
    },
    /// One action.
    Action(GuiAction),
}

impl<'de> Deserialize<'de> for GuiInput {
    /// Distinguishes script and action by their fields, so that the error for an unknown field names it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut fields = Map::<String, Value>::deserialize(deserializer)?;
        if let Some(script) = fields.remove("script") {
            if let Some(name) = fields.keys().next() {
                return Err(D::Error::custom(format!("{name}: is not allowed beside `script`")));
            }
            let script = script.as_str().ok_or_else(|| D::Error::custom("script: must be a string"))?;
            return Ok(Self::Script { script: script.to_owned() });
        }
        if !fields.contains_key("action") {
            return Err(D::Error::custom("action: is missing (or `script`, for xdotool)"));
        }
        for (name, value) in &fields {
            let is_whole = || value.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
            if NUMBERS.contains(&name.as_str()) && value.is_number() && !is_whole() {
                return Err(D::Error::custom(format!("{name}: must be a whole number, not {value}")));
            }
        }
        let other = fields.keys().find(|name| *name != "action").cloned();
        let action: GuiAction = read_object(&fields, &[]).map_err(D::Error::custom)?;
        // serde ignores unknown fields of variants that have none.
        match other {
            Some(name) if matches!(action, GuiAction::Screenshot | GuiAction::Windows) => {
                Err(D::Error::custom(format!("{name}: is not allowed, this action has no fields")))
            }
            _ => Ok(Self::Action(action)),
        }
    }
}

impl StepInput for GuiInput {
    const EFFECT: ToolEffect = ToolEffect::Screen;

    fn call(&self) -> Result<StepCall<'_>, InvalidField> {
        self.check()?;
        Ok(match self {
            Self::Script { script } => StepCall::Script(script),
            Self::Action(action) => StepCall::Action(action),
        })
    }

    fn action_limits() -> Vec<(&'static str, &'static str, Value)> {
        vec![
            ("type", "text", json!({ "maxLength": MAX_TYPED_CHARS })),
            ("wait", "seconds", range(0, MAX_WAIT_S)),
            ("wait", "window", not_blank()),
            ("launch", "command", not_blank()),
        ]
    }

    fn actions() -> Cow<'static, str> {
        <GuiAction as ToSchema>::name()
    }
}

impl GuiInput {
    /// Checks what can be checked before the desktop runs.
    pub fn check(&self) -> Result<(), InvalidField> {
        let invalid = |field: &str, problem: String| Err(InvalidField { field: field.to_owned(), problem });
        match self {
            Self::Script { script } => {
                check_script(script).map_err(|problem| InvalidField { field: "script".into(), problem })
            }
            Self::Action(GuiAction::Type { text }) if text.chars().count() > MAX_TYPED_CHARS => {
                invalid("text", format!("has more than {MAX_TYPED_CHARS} characters"))
            }
            Self::Action(GuiAction::Wait { seconds: Some(seconds), .. })
                if !(0.0..=MAX_WAIT_S).contains(seconds) =>
            {
                invalid("seconds", format!("{seconds} is not between 0 and {MAX_WAIT_S}"))
            }
            Self::Action(GuiAction::Launch { command }) if command.trim().is_empty() => {
                invalid("command", "is empty".into())
            }
            // Every window title contains the empty string.
            Self::Action(GuiAction::Wait { window: Some(title), .. }) if title.trim().is_empty() => {
                invalid("window", "is empty; give a part of the title".into())
            }
            Self::Action(GuiAction::Focus { window } | GuiAction::Close { window }) => match window {
                WindowChoice::Title(title) if title.trim().is_empty() => {
                    invalid("window", "is empty; give the number of the window or a part of its title".into())
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GuiInput, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn gui_input_is_action_or_script_and_unknown_fields_are_named() {
        assert!(matches!(parse(r#"{"script":"click 1"}"#), Ok(GuiInput::Script { .. })));
        let click = parse(r#"{"action":"click","x":1,"y":2}"#).unwrap();
        assert!(matches!(click, GuiInput::Action(GuiAction::Click { x: Some(1), .. })));
        assert!(parse(r#"{"script":"click 1","x":1}"#).unwrap_err().contains("x: is not allowed"));
        assert!(parse(r#"{"action":"click","colour":1}"#).unwrap_err().contains("colour: unknown field"));
        assert!(parse(r#"{"action":"windows","colour":1}"#).unwrap_err().contains("colour: is not allowed"));
        assert!(parse(r#"{"action":"fly"}"#).unwrap_err().contains("action: must be one of"));
        assert!(parse("{}").unwrap_err().contains("action: is missing"));
        let half = parse(r#"{"action":"move","x":1,"y":1.5}"#).unwrap_err();
        assert!(half.contains("y: must be a whole number, not 1.5"), "{half}");
    }

    #[test]
    fn a_step_with_an_action_round_trips() {
        for text in [
            r#"{"tool":"gui","action":"screenshot","name":"look"}"#,
            r#"{"tool":"gui","action":"type","text":"hi"}"#,
            r#"{"tool":"gui","script":"mousemove 1 1"}"#,
        ] {
            let step: crate::step::Step = serde_json::from_str(text).unwrap();
            let again: crate::step::Step =
                serde_json::from_str(&serde_json::to_string(&step).unwrap()).unwrap();
            assert_eq!(step, again);
        }
        let wrong =
            serde_json::from_str::<crate::step::Step>(r#"{"tool":"gui","action":"move","x":1,"z":2}"#);
        assert!(wrong.unwrap_err().to_string().contains("z: unknown field"));
    }

    #[test]
    fn empty_window_title_is_refused() {
        for action in ["focus", "close", "wait"] {
            let text = json!({"action": action, "window": " "}).to_string();
            let error = parse(&text).unwrap().check().unwrap_err();
            assert_eq!(error.field, "window", "{action}: {error}");
        }
        assert!(parse(r#"{"action":"focus","window":7}"#).unwrap().check().is_ok());
    }
}
