//! The desktop of a job as the driver uses it: settings for the guest, screenshots, results of actions.

use std::time::Instant;

use agent::ToolEffect;
use bytes::Bytes;
use job::{CallEnd, CallRef, CallStatus, JobSpec, Work};
use protocol::{
    DesktopSpec, GuestClient, GuiErrorCode, GuiReply, ProtocolError, ServiceState, ServiceStatus,
};
use serde_json::{Value, json};

use crate::driver::environment;
use crate::error::OrchestratorError;
use crate::recorder::Recorder;

/// The first bytes of every PNG file.
pub(crate) const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The name of the guest's service that runs the X server.
const X_SERVER: &str = "x-server";

/// Whether the desktop is running. Does not start it.
pub(crate) async fn is_running(client: &GuestClient) -> Result<bool, ProtocolError> {
    let runs =
        |service: &ServiceStatus| service.name.as_str() == X_SERVER && service.state == ServiceState::Running;
    Ok(client.services().await?.iter().any(runs))
}

/// Whether the programs of a job should find the desktop.
pub(crate) fn is_announced(spec: &JobSpec) -> bool {
    let uses_it = |step: &job::Step| step.tool.effect() == Some(ToolEffect::Screen);
    spec.desktop.is_announced || matches!(&spec.work, Work::Steps(steps) if steps.iter().any(uses_it))
}

/// The desktop settings that the guest receives for a job.
pub(crate) fn desktop_spec(spec: &JobSpec) -> DesktopSpec {
    let call = CallRef { id: "desktop".into(), attempt: 1 };
    DesktopSpec {
        width: spec.desktop.width,
        height: spec.desktop.height,
        environment: environment(spec, &call),
        idle_ms: Some(u64::try_from(spec.desktop.idle.as_millis()).unwrap_or(u64::MAX)),
        recording: spec.desktop.recording,
    }
}

/// Stores a screenshot and returns the JSON that an event contains about it.
pub(crate) async fn store_screenshot(recorder: &Recorder, png: &Bytes) -> Result<Value, OrchestratorError> {
    let digest = recorder.put_blob(png.to_vec()).await?;
    let mut facts = json!({ "digest": digest, "media_type": "image/png", "bytes": png.len() });
    if let Some((width, height)) = png_size(png) {
        facts["width"] = width.into();
        facts["height"] = height.into();
    }
    Ok(facts)
}

/// Width and height from the PNG header.
pub(crate) fn png_size(png: &[u8]) -> Option<(u32, u32)> {
    let number = |at: usize| png.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let is_png = png.starts_with(PNG_SIGNATURE) && png.get(12..16)? == b"IHDR";
    if is_png { Some((number(16)?, number(20)?)) } else { None }
}

/// Builds the end of a desktop call, after storing its screenshot if there is one.
pub(crate) async fn end_of_action(
    recorder: &Recorder,
    done: Result<(GuiReply, Bytes), ProtocolError>,
    started: Instant,
) -> Result<CallEnd, OrchestratorError> {
    let mut end = CallEnd {
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        ..CallEnd::default()
    };
    match done {
        Ok((reply, image)) => {
            let mut result = json!({ "windows": reply.windows, "window": reply.window, "pid": reply.pid });
            if reply.image.is_some() {
                result["screenshot"] = store_screenshot(recorder, &image).await?;
            }
            if let Value::Object(fields) = &mut result {
                fields.retain(|_, value| !value.is_null());
            }
            end.result = Some(result);
        }
        Err(ProtocolError::Gui(error)) => {
            end.status = CallStatus::Failed;
            end.code = Some(code_of(error.code).to_owned());
            end.reason = Some(error.message);
        }
        Err(error) => {
            end.status = CallStatus::Failed;
            end.code = Some("no_desktop".into());
            end.reason = Some(error.to_string());
        }
    }
    Ok(end)
}

fn code_of(code: GuiErrorCode) -> &'static str {
    match code {
        GuiErrorCode::BadInput => "bad_input",
        GuiErrorCode::NoDesktop => "no_desktop",
        GuiErrorCode::Timeout => "timeout",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_size_is_read_from_the_png_header() {
        let mut png = PNG_SIGNATURE.to_vec();
        png.extend([0, 0, 0, 13]);
        png.extend(b"IHDR");
        png.extend([0, 0, 5, 0, 0, 0, 3, 32]);
        assert_eq!(png_size(&png), Some((1280, 800)));
        png.pop();
        assert_eq!(png_size(&png), None);
        assert_eq!(png_size(b"GIF89a"), None);
    }
}
