//! `screenshot`: shows the desktop's screen. A model that does not accept images gets a list of the windows instead.

use protocol::GuiAction;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{file_path, windows_text};
use crate::event::ToolEnd;
use crate::host::{Capability, Stopped};
use crate::stored_image::Picture;
use crate::tools::{CallContext, EndedCall, Tool, ToolFlow};

pub(super) struct Screenshot;

/// What to do with the picture.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Input {
    /// Also keeps the picture in the workspace, as a PNG file of this name.
    #[serde(default, alias = "path")]
    save_as: Option<String>,
}

impl Tool for Screenshot {
    const NAME: &'static str = "screenshot";
    const DESCRIPTION: &'static str = "Shows the screen of the desktop and lists its windows. Programs with a window \
        are started with `gui` (action launch). For web pages `browser` is better.";
    type Input = Input;

    fn needs(&self) -> &'static [Capability] {
        &[Capability::Desktop]
    }

    async fn run(&self, input: Input, call: &CallContext<'_>) -> Result<ToolFlow, Stopped> {
        Ok(match take_screenshot(input.save_as.as_deref(), call).await? {
            Ok((picture, text)) => ToolEnd { images: vec![picture], ..ToolEnd::done(text) },
            Err(problem) => ToolEnd::failed(format!("screenshot: {problem}")),
        }
        .into())
    }

    fn step(_input: Input, _end: &EndedCall<'_>) -> Option<Value> {
        Some(json!({"tool": "gui", "action": "screenshot"}))
    }
}

/// A screenshot and the text for the model. The inner error is for the model.
pub(super) async fn take_screenshot(
    save_as: Option<&str>,
    call: &CallContext<'_>,
) -> Result<Result<(Picture, String), String>, Stopped> {
    let windows = match call.host.desktop(None, GuiAction::Windows).await? {
        Ok(report) => windows_text(report.reply.windows.as_deref().unwrap_or_default()),
        Err(problem) => return Ok(Err(problem)),
    };
    let image = match call.host.desktop(None, GuiAction::Screenshot).await? {
        Ok(report) => report.image,
        Err(problem) => return Ok(Err(problem)),
    };
    let Some(image) = image else { return Ok(Err("the desktop gave no picture".into())) };
    let saved = match save_as {
        Some(path) => save(path, &image, call).await?,
        None => String::new(),
    };
    let picture = call.host.store_image(image).await?;
    let note = if call.limits.vision { "" } else { "You cannot see pictures; this is what is open.\n" };
    let text = format!("{}\n{note}{windows}{saved}", picture.text());
    Ok(Ok((picture, text)))
}

/// Saves the image in the workspace and returns a line about it.
pub(super) async fn save(
    path: &str,
    image: &model::Image,
    call: &CallContext<'_>,
) -> Result<String, Stopped> {
    let path = match file_path(path) {
        Ok(path) => path,
        Err(problem) => return Ok(format!("\nnot saved: {problem}")),
    };
    Ok(match call.host.save_file(&path, &image.bytes).await? {
        Ok(()) => format!("\nsaved as {path}"),
        Err(problem) => format!("\nnot saved: {problem}"),
    })
}
