//! `gui`: mouse, keyboard and windows of the sandbox's desktop.

use protocol::GuiAction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{screenshot, windows_text};
use crate::event::ToolEnd;
use crate::host::{Capability, DesktopReport, Stopped};
use crate::tools::{CallContext, EndedCall, Tool, ToolFlow, ToolRole};

/// How long to wait after an action before taking a screenshot.
const SETTLE_S: f64 = 0.4;

pub(super) struct Gui;

/// What to do.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// What to do.
    action: Action,
    /// What the action is done with.
    #[serde(flatten)]
    arguments: Arguments,
    /// Shows the screen afterwards.
    #[serde(default)]
    screenshot: bool,
}

/// What can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Action {
    #[serde(alias = "left_click")]
    Click,
    DoubleClick,
    #[serde(alias = "mouse_move")]
    Move,
    Drag,
    Scroll,
    Type,
    Key,
    Wait,
    Windows,
    Focus,
    Close,
    Launch,
}

/// Everything that some action takes.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
struct Arguments {
    /// Pixels from the left: click, double_click, move, scroll.
    #[serde(default)]
    x: Option<i32>,
    /// Pixels from the top.
    #[serde(default)]
    y: Option<i32>,
    /// Where a drag begins.
    #[serde(default)]
    from_x: Option<i32>,
    /// Where a drag begins.
    #[serde(default)]
    from_y: Option<i32>,
    /// Where a drag ends.
    #[serde(default)]
    to_x: Option<i32>,
    /// Where a drag ends.
    #[serde(default)]
    to_y: Option<i32>,
    /// left (the default), middle or right.
    #[serde(default)]
    button: Option<String>,
    /// Keys held while clicking: ctrl, shift, alt, super.
    #[serde(default)]
    modifiers: Option<Vec<String>>,
    /// Steps of the wheel downwards, negative upwards: scroll.
    #[serde(default)]
    down: Option<i32>,
    /// Steps of the wheel to the right: scroll.
    #[serde(default)]
    right: Option<i32>,
    /// What to type.
    #[serde(default)]
    text: Option<String>,
    /// Keys to press together, such as Return or ctrl+s: key.
    #[serde(default, alias = "key")]
    keys: Option<String>,
    /// How long to wait.
    #[serde(default)]
    seconds: Option<f64>,
    /// A part of a window's title, or its number: wait, focus, close.
    #[serde(default)]
    window: Option<String>,
    /// The program to start: launch.
    #[serde(default)]
    command: Option<String>,
}

impl Tool for Gui {
    const NAME: &'static str = "gui";
    const DESCRIPTION: &'static str = "Uses the desktop: launch a program with a window, click, type, press keys, \
        scroll, drag, wait for a window, list, focus and close windows. Look with `screenshot` first; places are \
        pixels from the top left of the screen.";
    type Input = Input;
    const ROLE: ToolRole = ToolRole {
        other_names: &["computer", "click", "mouse", "desktop", "computeruse", "keyboard"],
        ..ToolRole::OPTIONAL
    };

    fn needs(&self) -> &'static [Capability] {
        &[Capability::Desktop]
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        let action = match action_of(input.action, &input.arguments) {
            Ok(action) => action,
            Err(problem) => return Ok(ToolEnd::malformed(format!("gui: {problem}")).into()),
        };
        let report = match call.host.desktop(Some(call.key()), action).await? {
            Ok(report) => report,
            Err(problem) => return Ok(ToolEnd::failed(format!("gui: {problem}")).into()),
        };
        let mut end = ToolEnd::done(text_of(&report));
        if input.screenshot {
            let settle = GuiAction::Wait { seconds: Some(SETTLE_S), window: None };
            // Only a delay. If it fails, the screenshot shows it.
            let _ = call.host.desktop(None, settle).await?;
            match screenshot::take_screenshot(None, call).await? {
                Ok((picture, text)) => {
                    end.text = format!("{}\n{text}", end.text);
                    end.images.push(picture);
                }
                Err(problem) => end.text += &format!("\n[no picture: {problem}]"),
            }
        }
        Ok(end.into())
    }

    fn step(input: Input, _end: &EndedCall<'_>) -> Option<Value> {
        let action = action_of(input.action, &input.arguments).ok()?;
        let mut step = serde_json::to_value(action).ok()?;
        step["tool"] = Self::NAME.into();
        Some(step)
    }
}

/// The fields that an action takes. Models also send others, which are ignored.
fn fields_of(action: Action) -> &'static [&'static str] {
    match action {
        Action::Click | Action::DoubleClick => &["x", "y", "button", "modifiers"],
        Action::Move => &["x", "y"],
        Action::Drag => &["from_x", "from_y", "to_x", "to_y", "button"],
        Action::Scroll => &["x", "y", "down", "right"],
        Action::Type => &["text"],
        Action::Key => &["keys"],
        Action::Wait => &["seconds", "window"],
        Action::Windows => &[],
        Action::Focus | Action::Close => &["window"],
        Action::Launch => &["command"],
    }
}

fn action_of(action: Action, arguments: &Arguments) -> Result<GuiAction, String> {
    let given = serde_json::to_value(arguments).unwrap_or_default();
    let mut fields = Map::new();
    fields.insert("action".into(), serde_json::to_value(action).unwrap_or_default());
    for name in fields_of(action) {
        let value = &given[*name];
        if !value.is_null() {
            fields.insert((*name).to_owned(), value.clone());
        }
    }
    // A window by its id, which models write as a string.
    if let Some(number) = fields.get("window").and_then(Value::as_str).and_then(|text| text.parse().ok())
        && matches!(action, Action::Focus | Action::Close)
    {
        fields.insert("window".into(), Value::Number(u32::into(number)));
    }
    let parsed = serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())?;
    match &parsed {
        GuiAction::Launch { command } if command.trim().is_empty() => Err("`command` is empty".into()),
        GuiAction::Wait { seconds: Some(seconds), .. } if !(0.0..=protocol::MAX_WAIT_S).contains(seconds) => {
            Err(format!("`seconds` is not between 0 and {}", protocol::MAX_WAIT_S))
        }
        GuiAction::Type { text } if text.chars().count() > protocol::MAX_TYPED_CHARS => {
            Err(format!("`text` has more than {} characters", protocol::MAX_TYPED_CHARS))
        }
        _ => Ok(parsed),
    }
}

fn text_of(report: &DesktopReport) -> String {
    let reply = &report.reply;
    if let Some(windows) = &reply.windows {
        return windows_text(windows);
    }
    if let Some(window) = &reply.window {
        return windows_text(std::slice::from_ref(window));
    }
    match reply.pid {
        Some(pid) => format!("started, process {pid}"),
        None => "done".into(),
    }
}

#[cfg(test)]
mod tests {
    use protocol::WindowChoice;
    use serde_json::json;

    use super::*;

    fn parse(input: Value) -> Result<GuiAction, String> {
        let input: Input = serde_json::from_value(input).map_err(|error| error.to_string())?;
        action_of(input.action, &input.arguments)
    }

    #[test]
    fn gui_actions_accept_common_forms() {
        let click =
            parse(json!({"action": "left_click", "x": 3, "y": 4, "text": null, "seconds": 1})).unwrap();
        assert!(matches!(click, GuiAction::Click { x: Some(3), y: Some(4), .. }));
        let close = parse(json!({"action": "close", "window": "3"})).unwrap();
        assert_eq!(close, GuiAction::Close { window: WindowChoice::Number(3) });
        assert!(parse(json!({"action": "type"})).unwrap_err().contains("missing field `text`"));
        let button = parse(json!({"action": "click", "button": "lft"})).unwrap_err();
        assert!(button.contains("unknown variant `lft`"), "{button}");
        assert!(parse(json!({"action": "wait", "seconds": 1e9})).unwrap_err().contains("is not between"));
    }
}
