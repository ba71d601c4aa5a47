//! The desktop: an X server with built-in VNC and a window manager, both run as services, and actions performed over
//! X11.
//!
//! All communication with the X server happens on one dedicated thread ([`display`]), and every wait has a time
//! limit: the listener on the display's socket belongs to the job and may be any program.

mod act;
mod apng;
mod display;
mod keyboard;
mod keys;
mod manager_probe;
mod mouse;
mod png_encoder;
mod pointer;
mod record;
mod screenshot;
mod serve;
mod wallpaper;
mod windows;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use protocol::{DISPLAY, DesktopSpec, Endpoint, GuiError, GuiErrorCode, Readiness, ServiceName, ServiceSpec};
use tokio::task::spawn_local;

pub(crate) use serve::serve;

use crate::resources::Resources;
use crate::services::{ServiceFailure, ServiceGuard, Services};
use display::Display;
use record::Recorder;

/// The folder of the VNC socket below the home directory, because jobs are more likely to clear `/tmp`. The path is
/// not reachable from outside the sandbox, and there is no TCP port.
const VNC_FOLDER: &str = ".cache/caisson";
const VNC_NAME: &str = "vnc";
/// The agent's home directory, unless `HOME` is set.
const HOME: &str = "/home/agent";
/// Names of services: the X server, and the browser that the host starts on it.
const X_SERVER: &str = "x-server";
const BROWSER: &str = "browser";
/// The socket of the X server.
const X_SOCKET: &str = "/tmp/.X11-unix/X1";
/// How long a running window manager may take to manage the display, and how often to check.
const WINDOW_MANAGER_TIMEOUT: Duration = Duration::from_secs(60);
const WINDOW_MANAGER_POLL_INTERVAL: Duration = Duration::from_millis(4);
/// The services stop this soon after the last user leaves. [`keep`] keeps the desktop alive beyond that.
const SERVICE_IDLE_MS: u64 = 500;
/// How often to check whether the desktop is still in use.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The desktop and its state across uses.
pub(crate) struct Desktop {
    resources: Rc<Resources>,
    services: Rc<Services>,
    is_kept: Cell<bool>,
    last_use: Cell<Option<Instant>>,
    recorder: RefCell<Option<Rc<Recorder>>>,
}

impl Desktop {
    pub(crate) fn new(resources: Rc<Resources>, services: Rc<Services>) -> Self {
        Self {
            resources,
            services,
            is_kept: Cell::new(false),
            last_use: Cell::new(None),
            recorder: RefCell::new(None),
        }
    }

    /// The recorder, if the desktop is being recorded.
    pub(crate) fn recorder(&self) -> Option<Rc<Recorder>> {
        self.recorder.borrow().clone()
    }
}

/// Keeps the desktop running until dropped.
pub(crate) struct DesktopGuard {
    _manager: ServiceGuard,
    _server: ServiceGuard,
}

fn no_desktop(failure: ServiceFailure) -> GuiError {
    GuiError { code: GuiErrorCode::NoDesktop, message: failure.0 }
}

fn bad_input(message: impl Into<String>) -> GuiError {
    GuiError { code: GuiErrorCode::BadInput, message: message.into() }
}

/// Starts the desktop if it is not running. A window manager is running when this returns.
pub(crate) async fn acquire(desktop: &Rc<Desktop>, spec: &DesktopSpec) -> Result<DesktopGuard, GuiError> {
    if desktop.resources.spawner.landlock_only.is_some() {
        // The X socket would be in the host's `/tmp`, where another user's may exist.
        let message =
            "a sandbox without namespaces has no desktop; ask for the isolation `namespaces`".to_owned();
        return Err(GuiError { code: GuiErrorCode::NoDesktop, message });
    }
    if !desktop.services.is_running(X_SERVER) {
        let folder = vnc_folder(spec);
        // If this fails, the X server reports it.
        let _ = desktop.resources.files.workers.short(move || std::fs::create_dir_all(folder)).await;
    }
    let server = desktop.services.acquire(&x_server(spec)).await.map_err(no_desktop)?;
    // A new connection paints the background before any window opens.
    on_display(desktop, Display::check).await?;
    let manager = desktop.services.acquire(&window_manager(spec)).await.map_err(no_desktop)?;
    let deadline = Instant::now() + WINDOW_MANAGER_TIMEOUT;
    while !on_display(desktop, Display::has_manager).await? {
        if let Some(failure) = manager.failure() {
            return Err(no_desktop(failure));
        }
        if Instant::now() >= deadline {
            let message = format!(
                "the window manager has not shown itself within {} s",
                WINDOW_MANAGER_TIMEOUT.as_secs()
            );
            return Err(GuiError { code: GuiErrorCode::NoDesktop, message });
        }
        tokio::time::sleep(WINDOW_MANAGER_POLL_INTERVAL).await;
    }
    desktop.last_use.set(Some(Instant::now()));
    if !desktop.is_kept.replace(true) {
        spawn_local(keep(Rc::clone(desktop), spec.clone()));
    }
    record::begin(desktop, spec);
    Ok(DesktopGuard { _manager: manager, _server: server })
}

/// Keeps the desktop running between uses and while a window is open.
async fn keep(desktop: Rc<Desktop>, spec: DesktopSpec) {
    let Some(idle) = spec.idle_ms.map(Duration::from_millis) else {
        let _held = hold(&desktop, &spec).await;
        return std::future::pending().await;
    };
    let held = hold(&desktop, &spec).await;
    loop {
        tokio::time::sleep(IDLE_CHECK_INTERVAL.min(idle)).await;
        let windows = on_display(&desktop, |display| display.windows()).await;
        if windows.as_ref().is_ok_and(|windows| !windows.is_empty()) {
            desktop.last_use.set(Some(Instant::now()));
        }
        let is_idle = desktop.last_use.get().is_none_or(|last| last.elapsed() >= idle);
        if is_idle || held.is_err() {
            desktop.is_kept.set(false);
            return;
        }
    }
}

async fn hold(desktop: &Desktop, spec: &DesktopSpec) -> Result<DesktopGuard, ServiceFailure> {
    let server = desktop.services.acquire(&x_server(spec)).await?;
    let manager = desktop.services.acquire(&window_manager(spec)).await?;
    Ok(DesktopGuard { _manager: manager, _server: server })
}

/// Runs an action or a VNC session. A browser on the desktop counts as in use meanwhile.
async fn keep_browser_active<T>(desktop: &Desktop, spec: &DesktopSpec, work: impl Future<Output = T>) -> T {
    let pause = spec
        .idle_ms
        .map_or(IDLE_CHECK_INTERVAL, |idle| IDLE_CHECK_INTERVAL.min(Duration::from_millis(idle / 2)));
    let mut work = std::pin::pin!(work);
    loop {
        desktop.services.touch(BROWSER);
        tokio::select! {
            biased;
            done = &mut work => {
                desktop.services.touch(BROWSER);
                return done;
            }
            () = tokio::time::sleep(pause.max(WINDOW_MANAGER_POLL_INTERVAL)) => {}
        }
    }
}

fn vnc_folder(spec: &DesktopSpec) -> PathBuf {
    Path::new(spec.environment.get("HOME").map_or(HOME, String::as_str)).join(VNC_FOLDER)
}

/// The path of the VNC socket.
fn vnc_socket(spec: &DesktopSpec) -> String {
    vnc_folder(spec).join(VNC_NAME).to_string_lossy().into_owned()
}

/// Runs `work` on the thread that owns the X connection.
pub(crate) async fn on_display<T: Send + 'static>(
    desktop: &Desktop,
    work: impl FnOnce(&mut Display) -> Result<T, GuiError> + Send + 'static,
) -> Result<T, GuiError> {
    let done = desktop.resources.files.workers.display(move || display::with_display(work)).await;
    done.map_err(|error| GuiError { code: GuiErrorCode::NoDesktop, message: error.message })?
}

/// The environment of all programs on the desktop.
fn environment(spec: &DesktopSpec) -> BTreeMap<String, String> {
    let mut environment = spec.environment.clone();
    environment.insert("DISPLAY".to_owned(), DISPLAY.to_owned());
    environment
}

fn service(name: &'static str, program: Vec<String>, spec: &DesktopSpec, ready: Readiness) -> ServiceSpec {
    ServiceSpec {
        name: ServiceName::fixed(name),
        program,
        environment: environment(spec),
        directory: Some("/tmp".to_owned()),
        ready,
        start_timeout_ms: 60_000,
        idle_ms: Some(SERVICE_IDLE_MS),
        requires: Vec::new(),
    }
}

/// TigerVNC's Xvnc: X server and VNC server in one process.
fn x_server(spec: &DesktopSpec) -> ServiceSpec {
    let geometry = format!("{}x{}", spec.width, spec.height);
    let socket = vnc_socket(spec);
    let words = [
        "Xvnc",
        DISPLAY,
        "-geometry",
        &geometry,
        "-depth",
        "24",
        // VNC on a Unix socket inside the sandbox, and on no TCP port.
        "-rfbunixpath",
        &socket,
        "-rfbunixmode",
        // All processes in the sandbox have the same user, and the guest lacks the capability to open other users'
        // sockets.
        "0666",
        "-rfbport",
        "-1",
        "-SecurityTypes",
        "None",
        // Several people may watch. None of them can change the screen size for the others.
        "-AlwaysShared",
        "-AcceptSetDesktopSize=0",
        "-desktop",
        "Caisson",
        // Any process that can reach the socket runs in this sandbox as the same user.
        "-ac",
        "-nolisten",
        "tcp",
        // Keep the background and the keyboard mapping when the last window closes.
        "-noreset",
    ];
    let ready = Readiness::Accepts(Endpoint::Unix(X_SOCKET.to_owned()));
    let program = words.iter().map(|&word| word.to_owned()).collect();
    service(X_SERVER, program, spec, ready)
}

fn window_manager(spec: &DesktopSpec) -> ServiceSpec {
    let program = vec!["icewm".to_owned()];
    let mut manager = service("window-manager", program, spec, Readiness::Started);
    manager.requires = vec![x_server(spec)];
    // Programs of its menu start in the same directory: the workspace.
    manager.directory = None;
    manager
}
