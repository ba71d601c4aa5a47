//! Performs one desktop action.

use std::rc::Rc;
use std::time::{Duration, Instant};

use protocol::{
    CallKey, DesktopSpec, Exec, ExecEnd, GuiAction, GuiError, GuiErrorCode, GuiReply, ImageInfo, MAX_WAIT_S,
    Program, WindowChoice, WindowInfo,
};

use super::screenshot::PngImage;
use super::{Desktop, DesktopGuard, acquire, bad_input, environment, on_display, windows};
use crate::journal::{Phase, ProcessCall};
use crate::output::{Cursor, Next, Reach};
use crate::process;
use crate::random::random_hex;

/// How often to look for an awaited window, and for how long if the request sets no limit.
const WINDOW_POLL_INTERVAL: Duration = Duration::from_millis(25);
const WINDOW_TIMEOUT_S: f64 = 10.0;
/// How long the window manager may take to focus a window. One that accepts no input never gets the focus.
const FOCUS_TIMEOUT: Duration = Duration::from_secs(20);
/// How many output chunks the error message of a failed launch may include.
const LAUNCH_CHUNKS: u64 = 8;
/// A launch fails if the program exits with an error within this time.
const LAUNCH_WATCH: Duration = Duration::from_millis(300);

/// The result of an action: the reply, and the image that the reply announces, if any.
pub(super) type Done = Result<(GuiReply, Vec<u8>), GuiError>;

/// Performs an action. Starts the desktop if it is not running.
pub(super) async fn act(desktop: &Rc<Desktop>, spec: &DesktopSpec, action: GuiAction) -> Done {
    let _held: DesktopGuard = acquire(desktop, spec).await?;
    let nothing = |()| (GuiReply::default(), Vec::new());
    match action {
        GuiAction::Wait { seconds, window } => wait(desktop, seconds, window).await,
        GuiAction::Launch { command } => launch(desktop, spec, command).await,
        GuiAction::Screenshot => {
            let picture = on_display(desktop, |display| display.screenshot()).await?;
            Ok(image_reply(picture))
        }
        GuiAction::Windows => {
            let windows = on_display(desktop, |display| display.windows()).await?;
            Ok((GuiReply { windows: Some(windows), ..GuiReply::default() }, Vec::new()))
        }
        GuiAction::Focus { window } => focus(desktop, window).await,
        GuiAction::Close { window } => {
            on_display(desktop, move |display| display.close(&window)).await.map(window_reply)
        }
        other => on_display(desktop, move |display| display.input(other)).await.map(nothing),
    }
}

impl super::Display {
    /// Performs a mouse or keyboard action.
    fn input(&mut self, action: GuiAction) -> Result<(), GuiError> {
        match action {
            GuiAction::Move { x, y } => {
                let point = self.point(x, y)?;
                self.move_to(point)
            }
            GuiAction::Click { x, y, button, modifiers } => {
                let position = self.position(x, y)?;
                self.click(position, button, &modifiers, 1)
            }
            GuiAction::DoubleClick { x, y, button, modifiers } => {
                let position = self.position(x, y)?;
                self.click(position, button, &modifiers, 2)
            }
            GuiAction::Drag { from_x, from_y, to_x, to_y, button } => {
                let (from, to) = (self.point(from_x, from_y)?, self.point(to_x, to_y)?);
                self.drag(from, to, button)
            }
            GuiAction::Scroll { x, y, right, down } => {
                let position = self.position(x, y)?;
                self.scroll(position, down, right)
            }
            GuiAction::Type { text } => self.type_text(&text),
            GuiAction::Key { keys } => self.press_chord(&keys),
            other => Err(bad_input(format!("`{}` is not done by hand", other.name()))),
        }
    }
}

fn window_reply(window: WindowInfo) -> (GuiReply, Vec<u8>) {
    (GuiReply { window: Some(Box::new(window)), ..GuiReply::default() }, Vec::new())
}

fn image_reply(picture: PngImage) -> (GuiReply, Vec<u8>) {
    let PngImage { width, height, png } = picture;
    let image = ImageInfo { width, height, bytes: png.len() as u64 };
    (GuiReply { image: Some(image), ..GuiReply::default() }, png)
}

/// Asks the window manager to focus a window and waits until it has: keys that are sent next must not reach another
/// window.
async fn focus(desktop: &Desktop, choice: WindowChoice) -> Done {
    let wanted = on_display(desktop, move |display| display.focus(&choice)).await?;
    let deadline = Instant::now() + FOCUS_TIMEOUT;
    loop {
        let open = on_display(desktop, |display| display.windows()).await?;
        match open.into_iter().find(|window| window.number == wanted.number) {
            None => return Err(bad_input(format!("the window `{}` has closed", wanted.title))),
            Some(window) if window.is_active => return Ok(window_reply(window)),
            Some(_) => {}
        }
        if Instant::now() >= deadline {
            let message = format!("the window `{}` did not get the focus", wanted.title);
            return Err(GuiError { code: GuiErrorCode::Timeout, message });
        }
        tokio::time::sleep(WINDOW_POLL_INTERVAL).await;
    }
}

async fn wait(desktop: &Desktop, seconds: Option<f64>, title: Option<String>) -> Done {
    let seconds = match (seconds, &title) {
        (Some(seconds), _) => seconds,
        (None, Some(_)) => WINDOW_TIMEOUT_S,
        (None, None) => return Err(bad_input("give `seconds`, or `window` with a part of a title")),
    };
    if !(0.0..=MAX_WAIT_S).contains(&seconds) {
        return Err(bad_input(format!("`seconds` is {seconds}, it must be from 0 to {MAX_WAIT_S}")));
    }
    let limit = Duration::from_secs_f64(seconds);
    let Some(title) = title else {
        tokio::time::sleep(limit).await;
        return Ok((GuiReply::default(), Vec::new()));
    };
    let deadline = Instant::now() + limit;
    let choice = WindowChoice::Title(title.clone());
    loop {
        let open = on_display(desktop, |display| display.windows()).await?;
        if let Some(window) = windows::find(&open, &choice) {
            return Ok(window_reply(window.clone()));
        }
        if Instant::now() >= deadline {
            let titles: Vec<String> = open.iter().map(|window| format!("`{}`", window.title)).collect();
            let there = if titles.is_empty() { "none is open".to_owned() } else { titles.join(", ") };
            let message = format!("no window with `{title}` in its title came within {seconds} s: {there}");
            return Err(GuiError { code: GuiErrorCode::Timeout, message });
        }
        tokio::time::sleep(WINDOW_POLL_INTERVAL).await;
    }
}

/// Starts a program as a separate call, so that its output is bounded and its end is noticed.
async fn launch(desktop: &Desktop, spec: &DesktopSpec, command: String) -> Done {
    if command.trim().is_empty() || command.contains('\0') {
        return Err(bad_input("`command` is empty or has a NUL character"));
    }
    let random = random_hex().map_err(|error| GuiError {
        code: GuiErrorCode::NoDesktop,
        message: format!("reading random bytes: {error}"),
    })?;
    let call = process::start(
        &desktop.resources,
        Exec {
            key: CallKey::new(format!("launch-{random}"), 1),
            program: Program::Shell(command.clone()),
            environment: environment(spec),
            directory: None,
            stdin: None,
            keep_stdin_open: false,
            terminal: None,
            timeout_ms: None,
            kill_grace_ms: 2_000,
        },
    );
    let mut phases = call.phase.subscribe();
    let ended = phases.wait_for(|phase| phase.outcome().is_some());
    if let Ok(Ok(phase)) = tokio::time::timeout(LAUNCH_WATCH, ended).await
        && let Some(outcome) = phase.outcome()
        && outcome.end != ExecEnd::Code(0)
    {
        let why = match &outcome.end {
            ExecEnd::NotStarted(why) => why.message.clone(),
            ExecEnd::Code(code) => format!("it ended at once with exit code {code}"),
            other => format!("it ended at once: {other:?}"),
        };
        return Err(bad_input(format!("launching `{}`: {why}{}", shorten(&command), last_output(&call))));
    }
    let pid = match &*call.phase.borrow() {
        Phase::Running { pid } => u32::try_from(*pid).ok(),
        _ => None,
    };
    Ok((GuiReply { pid, ..GuiReply::default() }, Vec::new()))
}

fn shorten(command: &str) -> String {
    command.chars().take(120).collect()
}

/// The last lines of output of a failed program.
fn last_output(call: &ProcessCall) -> String {
    let store = call.store.borrow();
    let mut cursor = Cursor::at(store.next_sequence().saturating_sub(LAUNCH_CHUNKS));
    let mut printed = Vec::new();
    while let Next::Chunk(chunk) = store.next(&mut cursor, Reach::All) {
        printed.extend_from_slice(&chunk.bytes);
    }
    let text = String::from_utf8_lossy(printed.get(printed.len().saturating_sub(600)..).unwrap_or_default());
    let text = text.trim();
    if text.is_empty() { String::new() } else { format!("; it printed:\n{text}") }
}
