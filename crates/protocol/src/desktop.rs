//! Messages about the desktop: an X server that speaks VNC, a window manager, and what is done on them.
//!
//! The guest composes it of two services; the host says how large the screen is. Actions are carried out in the guest
//! over X11, without a further process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::exec::CallKey;

/// What programs find the desktop by.
pub const DISPLAY: &str = ":1";
/// The longest text of one `type` action, in characters.
pub const MAX_TYPED: usize = 20_000;
/// The longest wait of one action, in seconds.
pub const MAX_WAIT_S: f64 = 600.0;

/// How the desktop shall be. One that runs keeps what it was started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesktopSpec {
    /// Pixels.
    pub width: u16,
    /// Pixels.
    pub height: u16,
    /// The environment of the window manager and of what is launched; `DISPLAY` is added.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Stopped when nobody looks at it, nothing was done on it and no window is open for so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Recorded into `.caisson/desktop.apng` of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<Recording>,
}

/// How a desktop is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Recording {
    /// A picture every two seconds, five of them shown a second; where nothing has changed there is none.
    Timelapse,
    /// Five pictures a second at their own speed; where nothing happens it waits two seconds at most.
    Video,
}

/// What to do with the desktop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum DesktopOrder {
    /// Starts it where needed. Answer when there is a window manager: [`crate::Reply::Done`].
    Start,
    /// Connects to its VNC server, starting it where needed. Answer: [`crate::Reply::Done`], then raw bytes both ways.
    OpenVnc,
    /// Does something on it, once where there is a key. Answer: [`crate::Reply::Gui`]; where it announces an image, data
    /// frames with the image and `DataEnd` follow.
    Act {
        /// Names the call where it must be done once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<CallKey>,
        /// What to do.
        action: GuiAction,
    },
}

/// A button of the mouse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MouseButton {
    /// The main one.
    #[default]
    Left,
    /// The wheel.
    Middle,
    /// For menus.
    Right,
}

/// A key that is held while something else is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Modifier {
    /// Control.
    Ctrl,
    /// Shift.
    Shift,
    /// Alt.
    Alt,
    /// The logo key.
    Super,
}

/// Something done on the desktop. Coordinates count pixels from the top left corner of the screen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", tag = "action", deny_unknown_fields)]
pub enum GuiAction {
    /// Takes a picture of the screen.
    Screenshot,
    /// Moves the pointer.
    Move {
        /// From the left.
        x: i32,
        /// From the top.
        y: i32,
    },
    /// Presses and releases a button, where the pointer is or at a place.
    Click {
        /// From the left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        x: Option<i32>,
        /// From the top.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        y: Option<i32>,
        /// Which button, `left` when absent.
        #[serde(default)]
        button: MouseButton,
        /// Keys held meanwhile.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    },
    /// Clicks twice.
    DoubleClick {
        /// From the left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        x: Option<i32>,
        /// From the top.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        y: Option<i32>,
        /// Which button, `left` when absent.
        #[serde(default)]
        button: MouseButton,
        /// Keys held meanwhile.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        modifiers: Vec<Modifier>,
    },
    /// Presses a button at one place and releases it at another.
    Drag {
        /// Start, from the left.
        from_x: i32,
        /// Start, from the top.
        from_y: i32,
        /// End, from the left.
        to_x: i32,
        /// End, from the top.
        to_y: i32,
        /// Which button, `left` when absent.
        #[serde(default)]
        button: MouseButton,
    },
    /// Turns the wheel.
    Scroll {
        /// From the left.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        x: Option<i32>,
        /// From the top.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        y: Option<i32>,
        /// Clicks of the wheel to the right, negative to the left.
        #[serde(default)]
        right: i32,
        /// Clicks of the wheel downwards, negative upwards.
        #[serde(default)]
        down: i32,
    },
    /// Types a text, of whatever characters.
    Type {
        /// The text; a line end is the return key, a tab the tabulator.
        text: String,
    },
    /// Presses a key or several together, such as `Return` or `ctrl+shift+t`.
    Key {
        /// Names joined by `+`.
        keys: String,
    },
    /// Waits for a time, or for a window.
    Wait {
        /// How long, at most; 10 where a window is waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<f64>,
        /// A part of the title of the window that must appear.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        window: Option<String>,
    },
    /// Lists the windows.
    Windows,
    /// Brings a window to the front.
    Focus {
        /// Its number, or a part of its title.
        window: WindowChoice,
    },
    /// Asks a window to close.
    Close {
        /// Its number, or a part of its title.
        window: WindowChoice,
    },
    /// Starts a program on the desktop and does not wait for its end.
    Launch {
        /// A command line for the shell.
        command: String,
    },
}

/// Names a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum WindowChoice {
    /// By its number in the list.
    Number(u32),
    /// By a part of its title.
    Title(String),
}

impl GuiAction {
    /// The name of the action.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Screenshot => "screenshot",
            Self::Move { .. } => "move",
            Self::Click { .. } => "click",
            Self::DoubleClick { .. } => "double_click",
            Self::Drag { .. } => "drag",
            Self::Scroll { .. } => "scroll",
            Self::Type { .. } => "type",
            Self::Key { .. } => "key",
            Self::Wait { .. } => "wait",
            Self::Windows => "windows",
            Self::Focus { .. } => "focus",
            Self::Close { .. } => "close",
            Self::Launch { .. } => "launch",
        }
    }
}

/// A window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WindowInfo {
    /// Its number, for `focus` and `close`.
    pub number: u32,
    /// Its title.
    pub title: String,
    /// From the left.
    pub x: i32,
    /// From the top.
    pub y: i32,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Whether it has the keyboard.
    pub is_active: bool,
}

/// An image that follows an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Bytes of the PNG.
    pub bytes: u64,
}

/// What came of an action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuiReply {
    /// The windows, where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<WindowInfo>>,
    /// The window that was meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Box<WindowInfo>>,
    /// The process that was launched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The picture that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageInfo>,
}

/// Why an action failed, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuiErrorCode {
    /// Something about the action itself: a place off the screen, an unknown key, no such window.
    BadInput,
    /// The desktop could not be started or has ended.
    NoDesktop,
    /// What was waited for did not come.
    Timeout,
}

/// Why an action failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct GuiError {
    /// For programs.
    pub code: GuiErrorCode,
    /// For people.
    pub message: String,
}

/// Result of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuiResult {
    /// It was done.
    Ok(GuiReply),
    /// It was not.
    Error(GuiError),
}
