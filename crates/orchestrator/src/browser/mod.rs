//! The tool `browser`: Chromium on the desktop of a job, spoken to over the DevTools protocol.
//!
//! Chromium is a service of the guest and stays between steps; a step connects to its newest page, does one thing and
//! leaves. Everything that comes back is the job's and bounded here: messages, texts, lists, pictures.

mod actions;
mod devtools;
mod input;
mod page;

use std::time::Duration;

use bytes::Bytes;
use protocol::{
    ByteStream, Endpoint, GuestClient, ProtocolError, Readiness, ServiceName, ServiceSpec, ServiceState,
    ServiceStatus,
};
use serde_json::{Value, json};

use crate::desktop::desktop_spec;
use crate::request::JobSpec;
use devtools::DevTools;
pub use input::{BrowserInput, ElementChoice, ReadFormat};

/// The name of the guest's service that is Chromium. The guest knows it, too: what is done on the desktop keeps it.
const NAME: &str = "browser";
/// Where Chromium's DevTools listen, on the sandbox's loopback.
const PORT: u16 = 9222;
/// What a browser that was just started shows. A step can tell by it that nothing was opened since.
const START_PAGE: &str = "data:text/html,<!--started-->";
/// How long a page may be silent before it is looked whether a dialog holds it up, and how long after that.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const SECOND_PATIENCE: Duration = Duration::from_secs(20);
/// How long a new page may take: nothing runs in it yet, so it is the machine that is slow.
const NEW_PAGE_PATIENCE: Duration = Duration::from_secs(60);
/// Where downloads go: the workspace, so that they are part of the result.
pub(crate) const DOWNLOADS: &str = "/workspace/downloads";

/// Why a browser step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrowserError {
    /// The link to the sandbox failed.
    #[error(transparent)]
    Link(#[from] ProtocolError),
    /// The page or the browser did not do what was asked.
    #[error("{0}")]
    Refused(String),
    /// Something took too long.
    #[error("{0}")]
    Timeout(String),
    /// What was open is gone with the browser that showed it.
    #[error("the browser was started anew; the page that was open is gone; open it again")]
    Restarted,
}

impl BrowserError {
    /// A stable word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Link(_) => "no_browser",
            Self::Restarted => "browser_restarted",
            Self::Refused(_) => "browser_failed",
            Self::Timeout(_) => "timeout",
        }
    }

    /// For people.
    pub(crate) fn explain(&self) -> String {
        match self {
            Self::Link(ProtocolError::Refused(why)) => why.clone(),
            Self::Link(ProtocolError::Gui(error)) => error.message.clone(),
            other => other.to_string(),
        }
    }
}

/// What a step gave: facts for the log, and a picture where one was taken.
pub(crate) struct Shown {
    pub(crate) facts: Value,
    pub(crate) picture: Option<Bytes>,
}

/// Does one thing in the browser, which is started where needed.
pub(crate) async fn perform(
    client: &GuestClient,
    spec: &JobSpec,
    input: &BrowserInput,
) -> Result<Shown, BrowserError> {
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
    // It is told of dialogs from then on.
    if let Err(silent) = tools.call_within("Page.enable", json!({}), FIRST_PATIENCE).await {
        if !matches!(silent, BrowserError::Timeout(_)) {
            return Err(silent);
        }
        // While somebody is connected, the browser leaves a dialog where it is.
        drop(tools);
        let page = if is_opening {
            devtools::replace_page(connect().await?, &page).await?
        } else {
            devtools::hide_and_show(connect().await?, &page).await?;
            page
        };
        tools = DevTools::connect(connect().await?, &page).await?;
        let patience = if is_opening { NEW_PAGE_PATIENCE } else { SECOND_PATIENCE };
        tools.call_within("Page.enable", json!({}), patience).await?;
    }
    actions::act(&mut tools, input).await
}

/// Whether this is so of the browser, as the guest tells it now. Of one that was never started nothing is so.
async fn browser_is(
    client: &GuestClient,
    question: impl Fn(&ServiceStatus) -> bool,
) -> Result<bool, BrowserError> {
    let services = client.services().await?;
    Ok(services.iter().any(|service| service.name.as_str() == NAME && question(service)))
}

/// Chromium, visible on the desktop. What each flag is for stands beside it.
fn service(spec: &JobSpec) -> ServiceSpec {
    let desktop = desktop_spec(spec);
    let mut environment = desktop.environment;
    environment.insert("DISPLAY".to_owned(), protocol::DISPLAY.to_owned());
    let flags = [
        // How we speak to it. Only what runs in the sandbox reaches its loopback.
        format!("--remote-debugging-port={PORT}"),
        // A profile apart from that of a person who opens the browser by hand; the protocol is refused on the default one.
        "--user-data-dir=/home/agent/.config/caisson-browser".to_owned(),
        // Its own sandbox needs user namespaces, which the sandbox around it refuses.
        "--no-sandbox".to_owned(),
        // ... and no bar that warns of that.
        "--test-type".to_owned(),
        // There is no graphics card.
        "--disable-gpu".to_owned(),
        // Nobody is there to be greeted or asked.
        "--no-first-run".to_owned(),
        "--no-default-browser-check".to_owned(),
        "--hide-crash-restore-bubble".to_owned(),
        // There is no keyring.
        "--password-store=basic".to_owned(),
        // Nothing is looked up or updated behind the agent's back.
        "--disable-background-networking".to_owned(),
        "--disable-component-update".to_owned(),
        "--disable-sync".to_owned(),
        // A key or a click counts as soon as the page is there; until it has painted once they would be dropped.
        "--allow-pre-commit-input".to_owned(),
        // A page that is hidden behind another window goes on.
        "--disable-backgrounding-occluded-windows".to_owned(),
        "--disable-renderer-backgrounding".to_owned(),
        // It fills the screen above the task bar.
        "--window-position=0,0".to_owned(),
        format!("--window-size={},{}", desktop.width, desktop.height.saturating_sub(26)),
        START_PAGE.to_owned(),
    ];
    // Downloads are a preference, which must be there before the first start.
    let prepare = format!(
        "profile=/home/agent/.config/caisson-browser; mkdir -p \"$profile/Default\" {DOWNLOADS}; \
         rm -f \"$profile\"/Singleton*; \
         [ -e \"$profile/Default/Preferences\" ] || printf '%s' \
         '{{\"download\":{{\"default_directory\":\"{DOWNLOADS}\",\"prompt_for_download\":false}}}}' \
         > \"$profile/Default/Preferences\"; exec chromium \"$@\""
    );
    let mut program = vec!["sh".to_owned(), "-c".to_owned(), prepare, "chromium".to_owned()];
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
