//! The desktop of a job: its size, actions on it, screenshots, and connections to its VNC server.

use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::{
    CallKey, DesktopSpec, GuiAction, GuiErrorCode, GuiReply, MAX_TYPED_CHARS, MAX_WAIT_S, ProtocolError,
    Recording, ServiceState, ServiceStatus, WindowChoice,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api_types::ExecRequest;
use crate::desktop_script::{check_script, explain_script, script_command, script_text};
use crate::driver::environment;
use crate::error::OrchestratorError;
use crate::event::{CallEnd, CallRef, CallStatus, EventBody};
use crate::ids::JobId;
use crate::orchestrator::Orchestrator;
use crate::recorder::Recorder;
use crate::request::{InvalidField, JobSpec, Work};
use crate::step::StepTool;
use crate::streams::PortStream;

/// The name of the guest's service that runs the X server.
const X_SERVER: &str = "x-server";

/// Allowed width and height of the screen in pixels.
const WIDTHS: std::ops::RangeInclusive<u16> = 320..=3840;
const HEIGHTS: std::ops::RangeInclusive<u16> = 240..=2160;
/// Fields of actions that count pixels or clicks of the mouse wheel.
const NUMBERS: [&str; 8] = ["x", "y", "from_x", "from_y", "to_x", "to_y", "down", "right"];
/// The first bytes of every PNG file.
const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Longer than any action may wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(660);

/// The screen of a job, as a caller writes it.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDesktop {
    /// Pixels, 320 to 3840; 1280 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u16>,
    /// Pixels, 240 to 2160; 800 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub height: Option<u16>,
    /// Records it into `.caisson/desktop.apng` of the workspace, and so of the zip. Not recorded when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Recording>,
}

/// Validated desktop settings of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesktopSettings {
    pub width: u16,
    pub height: u16,
    /// The desktop is stopped after it was unused for this long.
    pub idle: Duration,
    /// Whether `DISPLAY` is set for the programs of every step, so that they find the desktop once it runs.
    #[serde(default)]
    pub is_announced: bool,
    /// `None` if the desktop is not recorded.
    #[serde(default)]
    pub recording: Option<Recording>,
}

impl Default for DesktopSettings {
    fn default() -> Self {
        Self {
            width: 1280,
            height: 800,
            idle: Duration::from_secs(600),
            is_announced: false,
            recording: None,
        }
    }
}

impl NewDesktop {
    /// Validates the size. Fields that are not set are taken from `default`.
    pub fn check(self, default: DesktopSettings) -> Result<DesktopSettings, InvalidField> {
        let pick = |field: &str, asked: Option<u16>, default: u16, allowed: std::ops::RangeInclusive<u16>| {
            let value = asked.unwrap_or(default);
            if allowed.contains(&value) {
                return Ok(value);
            }
            let problem = format!("{value} is not between {} and {} pixels", allowed.start(), allowed.end());
            Err(InvalidField { field: format!("desktop.{field}"), problem })
        };
        Ok(DesktopSettings {
            width: pick("width", self.width, default.width, WIDTHS)?,
            height: pick("height", self.height, default.height, HEIGHTS)?,
            idle: default.idle,
            is_announced: true,
            recording: self.record.or(default.recording),
        })
    }
}

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
                return Err(D::Error::custom(format!("unknown field `{name}` beside `script`")));
            }
            let script = script.as_str().ok_or_else(|| D::Error::custom("`script` must be a text"))?;
            return Ok(Self::Script { script: script.to_owned() });
        }
        if !fields.contains_key("action") {
            return Err(D::Error::custom("missing field `action` (or `script`, for xdotool)"));
        }
        for (name, value) in &fields {
            let is_whole = || value.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
            if NUMBERS.contains(&name.as_str()) && value.is_number() && !is_whole() {
                return Err(D::Error::custom(format!("`{name}` must be a whole number, not {value}")));
            }
        }
        serde_json::from_value(Value::Object(fields)).map(Self::Action).map_err(D::Error::custom)
    }
}

impl GuiInput {
    /// Checks what can be checked before the desktop runs.
    pub(crate) fn check(&self) -> Result<(), InvalidField> {
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

/// What came of something done on the desktop.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GuiAnswer {
    /// The call in the job's log.
    pub call: String,
    /// Whether it was done.
    pub status: CallStatus,
    /// What it gave: `windows`, `window`, `pid`, `screenshot` with its digest, or `output` of a script.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// From start to end.
    pub duration_ms: u64,
    /// Why it was not done, for programs.
    pub code: Option<String>,
    /// Why it was not done, for people.
    pub reason: Option<String>,
}

/// Whether the programs of a job should find the desktop.
pub(crate) fn is_announced(spec: &JobSpec) -> bool {
    let uses_it = |step: &crate::step::Step| matches!(step.tool, StepTool::Gui(_) | StepTool::Browser(_));
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
fn png_size(png: &[u8]) -> Option<(u32, u32)> {
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

impl Orchestrator {
    /// Performs an action on the desktop of a job. Logged like every call.
    ///
    /// # Errors
    /// The job has no sandbox now, or the request is invalid. A failed action is not an error: the answer reports it.
    pub async fn input(&self, id: JobId, input: GuiInput) -> Result<GuiAnswer, OrchestratorError> {
        input.check()?;
        let action = match input {
            GuiInput::Script { script } => return self.run_script(id, script).await,
            GuiInput::Action(action) => action,
        };
        let (live, client) = self.reach(id).await?;
        let _in_use = live.used.begin();
        let desktop = desktop_spec(&live.spec);
        let call = CallRef { id: format!("api-{}", Uuid::now_v7().simple()), attempt: 1 };
        let given = serde_json::to_value(&action).unwrap_or_default();
        let started = EventBody::CallStarted { step: None, tool: "gui".into(), input: given };
        live.recorder.append_now(vec![started.of(&call).with_actor(self.actor())]).await?;
        let began = Instant::now();
        let key = CallKey::new(call.id.clone(), call.attempt);
        let acting = client.act_on_desktop(desktop, Some(key.clone()), action);
        let done = match tokio::time::timeout(ANSWER_TIMEOUT, acting).await {
            Ok(done) => done,
            Err(_) => Err(ProtocolError::Refused("the guest did not answer in time".into())),
        };
        let end = end_of_action(&live.recorder, done, began).await?;
        live.recorder.record(EventBody::CallEnded(end.clone()).of(&call)).await?;
        tokio::spawn(async move {
            let _ = client.forget(key).await;
        });
        Ok(answer(call.id, end))
    }

    async fn run_script(&self, id: JobId, script: String) -> Result<GuiAnswer, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        client.start_desktop(desktop_spec(&live.spec)).await.map_err(explain)?;
        let request = ExecRequest {
            argv: Some(script_command()),
            stdin: Some(script_text(&script)),
            environment: [("DISPLAY".to_owned(), protocol::DISPLAY.to_owned())].into(),
            ..ExecRequest::default()
        };
        let reply = self.exec(id, request).await?;
        let reason = reply.reason.map(|reason| explain_script(&reason, &reply.stderr));
        Ok(GuiAnswer {
            call: reply.call,
            status: reply.status,
            result: Some(json!({ "output": reply.stdout })),
            duration_ms: reply.duration_ms,
            code: reply.code,
            reason,
        })
    }

    /// A screenshot of the desktop of a job, as PNG. Not logged.
    ///
    /// # Errors
    /// The job has no sandbox now, or its desktop cannot be started.
    pub async fn screenshot(&self, id: JobId) -> Result<Bytes, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let _in_use = live.used.begin();
        let desktop = desktop_spec(&live.spec);
        Ok(client.act_on_desktop(desktop, None, GuiAction::Screenshot).await.map_err(explain)?.1)
    }

    /// An image from the log of a job, by its digest.
    ///
    /// # Errors
    /// The log contains no PNG image with this digest.
    pub async fn picture(&self, id: JobId, digest: &str) -> Result<Bytes, OrchestratorError> {
        self.core.store.job(id).await?;
        let found = self.core.store.blob(id, digest.to_owned()).await?;
        match found.filter(|bytes| bytes.starts_with(PNG_SIGNATURE)) {
            Some(bytes) => Ok(bytes.into()),
            None => Err(OrchestratorError::NoScreenshot(digest.to_owned())),
        }
    }

    /// Whether the desktop of a job is running. Does not start it.
    ///
    /// # Errors
    /// The job has no sandbox now.
    pub async fn desktop_runs(&self, id: JobId) -> Result<bool, OrchestratorError> {
        let (_, client) = self.reach(id).await?;
        let services = client.services().await?;
        let runs = |service: &ServiceStatus| {
            service.name.as_str() == X_SERVER && service.state == ServiceState::Running
        };
        Ok(services.iter().any(runs))
    }

    /// Starts the desktop of a job. Returns once the window manager is running.
    ///
    /// # Errors
    /// The job has no sandbox now, or its desktop cannot be started.
    pub async fn start_desktop(&self, id: JobId) -> Result<(), OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let desktop = desktop_spec(&live.spec);
        client.start_desktop(desktop).await.map_err(explain)
    }

    /// Connects to the VNC server of the desktop of a job, and starts the desktop first if needed.
    ///
    /// # Errors
    /// The job has no sandbox now, or its desktop cannot be started.
    pub async fn open_desktop(&self, id: JobId) -> Result<PortStream, OrchestratorError> {
        let (live, client) = self.reach(id).await?;
        let desktop = desktop_spec(&live.spec);
        let stream = client.open_vnc(desktop).await.map_err(explain)?;
        Ok(PortStream::new(stream, client, &live))
    }
}

/// Passes the guest's refusal on to the caller: the image lacks a program, or a program does not start.
fn explain(error: ProtocolError) -> OrchestratorError {
    match error {
        ProtocolError::Gui(error) => OrchestratorError::NoDesktop(error.message),
        ProtocolError::Refused(message) => OrchestratorError::NoDesktop(message),
        other => other.into(),
    }
}

fn answer(call: String, end: CallEnd) -> GuiAnswer {
    GuiAnswer {
        call,
        status: end.status,
        result: end.result,
        duration_ms: end.duration_ms,
        code: end.code,
        reason: end.reason,
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
        assert!(parse(r#"{"script":"click 1","x":1}"#).unwrap_err().contains("unknown field `x`"));
        assert!(parse(r#"{"action":"click","colour":1}"#).unwrap_err().contains("unknown field `colour`"));
        assert!(parse(r#"{"action":"fly"}"#).unwrap_err().contains("unknown variant `fly`"));
        assert!(parse("{}").unwrap_err().contains("missing field `action`"));
        let half = parse(r#"{"action":"move","x":1,"y":1.5}"#).unwrap_err();
        assert!(half.contains("`y` must be a whole number, not 1.5"), "{half}");
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
        assert!(wrong.unwrap_err().to_string().contains("unknown field `z`"));
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

    #[test]
    fn too_small_screen_is_refused_by_field_name() {
        let asked = NewDesktop { width: Some(10), ..NewDesktop::default() };
        let error = asked.check(DesktopSettings::default()).unwrap_err();
        assert_eq!(error.to_string(), "desktop.width: 10 is not between 320 and 3840 pixels");
    }
}
