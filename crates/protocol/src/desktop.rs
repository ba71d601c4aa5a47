//! Messages about the desktop: an X server with built-in VNC, a window manager, and the actions performed on them.
//!
//! The guest runs the desktop as two services; the host chooses the screen size. The guest performs actions over X11
//! without spawning a process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::exec::CallKey;

/// The value of `DISPLAY` for programs in the sandbox.
pub const DISPLAY: &str = ":1";
/// The most characters in one `type` action.
pub const MAX_TYPED_CHARS: usize = 20_000;
/// The longest wait of one action, in seconds.
pub const MAX_WAIT_S: f64 = 600.0;

/// Settings of the desktop. A running desktop keeps the settings it was started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesktopSpec {
    /// In pixels.
    pub width: u16,
    /// In pixels.
    pub height: u16,
    /// The environment of the window manager and of launched programs. The guest adds `DISPLAY`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Stops the desktop after this time without viewers, actions and open windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Records the desktop to `.caisson/desktop.apng` in the workspace.
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum DesktopRequest {
    /// Starts the desktop if it is not running. The guest replies [`crate::Reply::Done`] when the window manager is
    /// up.
    Start,
    /// Connects to the VNC server and starts the desktop if it is not running. The guest replies
    /// [`crate::Reply::Done`], then raw bytes flow both ways.
    OpenVnc,
    /// Performs an action. With a key, the guest performs it only once. The guest replies [`crate::Reply::Gui`]; if
    /// the reply announces an image, the guest sends it in data frames, followed by `DataEnd`.
    Act {
        /// Identifies the call if the action must be performed only once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<CallKey>,
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

/// Describes an image that follows a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// Size of the PNG in bytes.
    pub bytes: u64,
}

/// The result of a successful action.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuiReply {
    /// Set if the action lists windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<Vec<WindowInfo>>,
    /// The window that the action applied to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Box<WindowInfo>>,
    /// The process that the action launched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Describes the screenshot that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageInfo>,
}

/// Error code of a failed action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuiErrorCode {
    /// The action itself is invalid: coordinates off the screen, an unknown key, no such window.
    BadInput,
    /// The desktop could not be started or has ended.
    NoDesktop,
    /// The window to wait for did not appear in time.
    Timeout,
}

/// A failed action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct GuiError {
    pub code: GuiErrorCode,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuiResult {
    Ok(GuiReply),
    Error(GuiError),
}
