//! The `browser` tool: Chromium on a job's desktop, controlled over the DevTools protocol.
//!
//! Chromium is a service of the guest and keeps running between steps. A step connects to the newest page, performs
//! one action and disconnects. Everything that comes back is untrusted and bounded here: messages, texts, lists,
//! screenshots.

mod actions;
mod background_traffic;
mod devtools;
mod page;

use std::time::Duration;

use bytes::Bytes;
use job::{BrowserInput, JobSpec};
use protocol::{
    ByteStream, Endpoint, GuestClient, ProtocolError, Readiness, ServiceName, ServiceSpec, ServiceState,
    ServiceStatus,
};
use serde_json::{Value, json};

use crate::driver::desktop::desktop_spec;
use devtools::DevTools;

/// The name of the guest's Chromium service. The guest knows it, too: activity on the desktop keeps the service
/// running.
const NAME: &str = "browser";
/// Port of Chromium's DevTools, on the sandbox's loopback.
const PORT: u16 = 9222;
/// What a freshly started browser shows. It tells a step that nothing was opened since.
const START_PAGE: &str = "data:text/html,<!--started-->";
/// How long a page may be silent before we assume that a dialog blocks it, and how long after that.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
const SECOND_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout for a new page. Nothing runs in it yet, so any delay is due to a slow host.
const NEW_PAGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Download folder: inside the workspace, so that downloads are part of the artifact.
pub(crate) const DOWNLOADS: &str = "/workspace/downloads";

#[derive(Debug, thiserror::Error)]
pub(crate) enum BrowserError {
    #[error(transparent)]
    Link(#[from] ProtocolError),
    /// The page or the browser refused the action.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Timeout(String),
    /// The browser was restarted, so the page that was open is gone.
    #[error("the browser was restarted and the open page was lost; open it again")]
    Restarted,
}

impl BrowserError {
    /// Stable error code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Link(_) => "no_browser",
            Self::Restarted => "browser_restarted",
            Self::Refused(_) => "browser_failed",
            Self::Timeout(_) => "timeout",
        }
    }

    /// Error message for people.
    pub(crate) fn explain(&self) -> String {
        match self {
            Self::Link(ProtocolError::Refused(why)) => why.clone(),
            Self::Link(ProtocolError::Gui(error)) => error.message.clone(),
            other => other.to_string(),
        }
    }
}

/// Result of a step: facts for the log, and a screenshot if one was taken.
pub(crate) struct BrowserOutcome {
    pub(crate) facts: Value,
    pub(crate) picture: Option<Bytes>,
}

/// Performs one action in the browser; starts it if needed.
pub(crate) async fn perform(
    client: &GuestClient,
    spec: &JobSpec,
    input: &BrowserInput,
) -> Result<BrowserOutcome, BrowserError> {
    client.start_desktop(desktop_spec(spec)).await?;
    let service = service(spec);
    let is_opening = matches!(input, BrowserInput::Open { .. });
    let has_ended = |browser: &ServiceStatus| browser.starts > 0 && browser.state != ServiceState::Running;
    let is_lost = !is_opening && browser_is(client, has_ended).await?;
    client.start_service(service.clone()).await?;
    if is_lost {
        return Err(BrowserError::Restarted);
    }
    let connect = async || -> Result<Box<dyn ByteStream>, BrowserError> {
        let stream = client.open_service(service.clone(), Endpoint::Port(PORT)).await?;
        let stream: Box<dyn ByteStream> = Box::new(stream);
        Ok(stream)
    };
    let page = devtools::find_page(connect().await?).await?;
    let was_restarted = |browser: &ServiceStatus| browser.starts > 1;
    if !is_opening && page.url == START_PAGE && browser_is(client, was_restarted).await? {
        return Err(BrowserError::Restarted);
    }
    let mut tools = DevTools::connect(connect().await?, &page).await?;
    // From here on, this connection receives dialog events.
    if let Err(silent) = tools.call_within("Page.enable", json!({}), FIRST_TIMEOUT).await {
        if !matches!(silent, BrowserError::Timeout(_)) {
            return Err(silent);
        }
        // The browser does not dismiss a dialog while a client is connected.
        drop(tools);
        let page = if is_opening {
            devtools::replace_page(connect().await?, &page).await?
        } else {
            devtools::dismiss_dialog(connect().await?, &page).await?;
            page
        };
        tools = DevTools::connect(connect().await?, &page).await?;
        let patience = if is_opening { NEW_PAGE_TIMEOUT } else { SECOND_TIMEOUT };
        tools.call_within("Page.enable", json!({}), patience).await?;
    }
    actions::act(&mut tools, input).await
}

/// Asks the guest for the browser's status and applies `question` to it; `false` if it was never started.
async fn browser_is(
    client: &GuestClient,
    question: impl Fn(&ServiceStatus) -> bool,
) -> Result<bool, BrowserError> {
    let services = client.services().await?;
    Ok(services.iter().any(|service| service.name.as_str() == NAME && question(service)))
}

/// The Chromium service, visible on the desktop.
fn service(spec: &JobSpec) -> ServiceSpec {
    let desktop = desktop_spec(spec);
    let mut environment = desktop.environment;
    environment.insert("DISPLAY".to_owned(), protocol::DISPLAY.to_owned());
    let flags = [
        // Our connection. Only processes in the sandbox can reach its loopback.
        format!("--remote-debugging-port={PORT}"),
        // A profile apart from the default one, which a person may use by hand and for which Chromium refuses remote
        // debugging.
        "--user-data-dir=/home/agent/.config/caisson-browser".to_owned(),
        // Chromium's own sandbox needs user namespaces, which the surrounding sandbox denies.
        "--no-sandbox".to_owned(),
        // Hides the warning about that.
        "--test-type".to_owned(),
        // There is no GPU.
        "--disable-gpu".to_owned(),
        // Nobody is there to answer first-run prompts.
        "--no-first-run".to_owned(),
        "--no-default-browser-check".to_owned(),
        "--hide-crash-restore-bubble".to_owned(),
        "--password-store=basic".to_owned(),
        // Accept keys and clicks as soon as the page exists; by default they are dropped until the first paint.
        "--allow-pre-commit-input".to_owned(),
        // Keep pages running that are hidden behind another window.
        "--disable-backgrounding-occluded-windows".to_owned(),
        "--disable-renderer-backgrounding".to_owned(),
        // Fill the screen above the task bar.
        "--window-position=0,0".to_owned(),
        format!("--window-size={},{}", desktop.width, desktop.height.saturating_sub(26)),
        START_PAGE.to_owned(),
    ];
    // The download folder is a preference, which must be set before the first start.
    let prepare = format!(
        "profile=/home/agent/.config/caisson-browser; mkdir -p \"$profile/Default\" {DOWNLOADS}; \
         rm -f \"$profile\"/Singleton*; \
         [ -e \"$profile/Default/Preferences\" ] || printf '%s' \
         '{{\"download\":{{\"default_directory\":\"{DOWNLOADS}\",\"prompt_for_download\":false}}}}' \
         > \"$profile/Default/Preferences\"; exec chromium \"$@\""
    );
    let mut program = vec!["sh".to_owned(), "-c".to_owned(), prepare, "chromium".to_owned()];
    program.extend(background_traffic::FLAGS.map(str::to_owned));
    program.extend(flags);
    ServiceSpec {
        name: ServiceName::fixed(NAME),
        program,
        environment,
        directory: None,
        ready: Readiness::Accepts(Endpoint::Port(PORT)),
        start_timeout_ms: u64::try_from(Duration::from_secs(60).as_millis()).unwrap_or(60_000),
        idle_ms: desktop.idle_ms,
        requires: Vec::new(),
    }
}
