//! The desktop of a sandbox: its page, its VNC connection over a WebSocket, screenshots and input.

use axum::Json;
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use job::{GuiInput, JobId};
use orchestrator::{GuiAnswer, OrchestratorError};

use crate::access::Caller;
use crate::access::takeover_gate::TakeoverGate;
use crate::extract::{AppState, JobPath, JsonBody, OnBehalfOfCaller, ScreenshotPath};
use crate::openapi::{BodyProblems, JobProblems, SandboxProblems, StateProblems, WebSocketProblems};
use crate::problem::Problem;
use crate::routes::ports::{RelayMode, relay};
use crate::streams::{Description, Upgrade, set_content_headers};

/// The page may load its own files, show images that it creates itself, and connect to this server.
const DESKTOP_PAGE_CSP: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
);

/// Open the desktop (web page)
///
/// A web page with the screen, mouse, keyboard and clipboard of the sandbox, a view-only switch and full screen. The
/// desktop starts when the page connects.
#[utoipa::path(
    get, path = "/desktop", tag = "sandbox", operation_id = "job_desktop",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "A web page", body = String, content_type = "text/html"),
        JobProblems
    )
)]
pub(crate) async fn page(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, Problem> {
    let view = state.orchestrator.job(id).await?;
    let kind = if uri.path().starts_with("/v1/sandboxes/") { "sandbox" } else { "job" };
    let whose = view.name.unwrap_or_else(|| format!("{kind} {id}"));
    let html = include_str!("../assets/desktop.html").replace("{{WHOSE}}", &escape(&whose));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, DESKTOP_PAGE_CSP),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, html).into_response())
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Start the desktop
///
/// Starts the desktop if it does not run and the caller may do more than view it. The web page uses this to learn why a WebSocket failed.
#[utoipa::path(
    get, path = "/desktop/state", tag = "sandbox", operation_id = "job_desktop_state",
    params(("id" = JobId, Path, description = "The job")),
    responses((status = 204, description = "The desktop runs"), JobProblems, StateProblems, SandboxProblems)
)]
pub(crate) async fn state(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    caller: Caller,
) -> Result<StatusCode, Problem> {
    check_may_start_desktop(&state, &caller, id).await?;
    state.orchestrator.start_desktop(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Rejects a caller who may only watch, unless a desktop already runs.
async fn check_may_start_desktop(state: &AppState, caller: &Caller, id: JobId) -> Result<(), Problem> {
    if !caller.is_view_only() || state.orchestrator.desktop_runs(id).await? {
        return Ok(());
    }
    let why = "the desktop is not running, and this caller may only view it";
    Err(OrchestratorError::NoDesktop(why.into()).into())
}

/// Connect to the desktop (WebSocket)
///
/// Binary messages carry one VNC connection (RFB), as noVNC uses it. Several connections may be open. While another user
/// has taken over the sandbox, the server drops keyboard, pointer and clipboard input. A caller who may only view the
/// desktop cannot start it: 409 `no_desktop` if it does not run.
#[utoipa::path(
    get, path = "/desktop/socket", tag = "sandbox", operation_id = "job_desktop_socket",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 101, description = "A WebSocket"),
        JobProblems,
        StateProblems,
        SandboxProblems,
        WebSocketProblems
    )
)]
pub(crate) async fn socket(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    gate: TakeoverGate,
    caller: Caller,
    upgrade: Upgrade,
) -> Result<Response, Problem> {
    check_may_start_desktop(&state, &caller, id).await?;
    let stream = state.orchestrator.open_desktop(id).await?;
    Ok(upgrade.start(move |writer, reader| relay(stream, RelayMode::Desktop(gate), writer, reader)))
}

/// Take a screenshot of the desktop
///
/// The current screen as PNG. Starts the desktop if it does not run and the caller may do more than view it. The log does not record this image; use the action `screenshot` for that.
#[utoipa::path(
    get, path = "/screenshot", tag = "sandbox", operation_id = "job_screenshot",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The screenshot", body = Vec<u8>, content_type = "image/png"),
        JobProblems,
        StateProblems,
        SandboxProblems
    )
)]
pub(crate) async fn screenshot(
    State(state): State<AppState>,
    JobPath(id): JobPath,
    caller: Caller,
) -> Result<Response, Problem> {
    check_may_start_desktop(&state, &caller, id).await?;
    Ok(png_response(state.orchestrator.screenshot(id).await?))
}

/// Get a screenshot from the log
///
/// A screenshot that an event of the job refers to by its digest.
#[utoipa::path(
    get, path = "/pictures/{digest}", tag = "sandbox", operation_id = "job_picture",
    params(
        ("id" = JobId, Path, description = "The job"),
        ("digest" = String, Path, pattern = "^[0-9a-f]{64}$", description = "The digest in the event"),
    ),
    responses(
        (status = 200, description = "The screenshot", body = Vec<u8>, content_type = "image/png"),
        JobProblems
    )
)]
pub(crate) async fn picture(
    State(state): State<AppState>,
    ScreenshotPath { job, digest }: ScreenshotPath,
) -> Result<Response, Problem> {
    let mut response = png_response(state.orchestrator.picture(job, &digest).await?);
    // The URL contains a digest of the content, so the response never changes.
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    Ok(response)
}

/// Serves the bytes as an image, whatever they contain.
fn png_response(png: Bytes) -> Response {
    let mut response = png.into_response();
    let description = Description { media_type: "image/png", attachment_name: None, tag: None };
    set_content_headers(response.headers_mut(), &description);
    response
}

/// Run an action on the desktop
///
/// One action (`screenshot`, `move`, `click`, `double_click`, `drag`, `scroll`, `type`, `key`, `wait`, `windows`,
/// `focus`, `close`, `launch`), or `script` with commands for `xdotool`. Starts the desktop if it does not run. The job's
/// log records the call.
#[utoipa::path(
    post, path = "/input", tag = "sandbox", operation_id = "job_input",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = GuiInput, example = json!({"action": "click", "x": 640, "y": 400})),
    responses(
        (status = 200, description = "The action has ended; see `status`", body = GuiAnswer),
        JobProblems,
        BodyProblems,
        StateProblems,
        SandboxProblems
    )
)]
pub(crate) async fn input(
    OnBehalfOfCaller(orchestrator): OnBehalfOfCaller,
    JobPath(id): JobPath,
    JsonBody(input): JsonBody<GuiInput>,
) -> Result<Json<GuiAnswer>, Problem> {
    Ok(Json(orchestrator.input(id, input).await?))
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn name_is_escaped_in_the_page() {
        assert_eq!(escape("<img src=x onerror='y'>&"), "&lt;img src=x onerror=&#39;y&#39;&gt;&amp;");
    }
}
