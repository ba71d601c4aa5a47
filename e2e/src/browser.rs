//! A real browser for tests of the web page: Debian's headless Chromium, driven over the DevTools protocol.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Message, WebSocket};

use crate::http::http_client;
use crate::server::wait_at_most;

const CHROMIUM: &str = "/usr/bin/chromium";
/// Throttles the CPU of every page by this factor; finds tests and pages that only pass on a fast machine.
const CPU_THROTTLE_VARIABLE: &str = "CAISSON_TEST_SLOW_PAGES";
/// Chromium's errors for an evaluation in a page that is navigating away or not loaded yet.
const PAGE_NAVIGATED_ERRORS: [&str; 2] =
    ["Inspected target navigated or closed", "Cannot find default execution context"];
/// Timeout for the browser to start and for content to appear on a page.
const TIMEOUT: Duration = Duration::from_secs(150);

/// A browser with its own profile. Dropping it ends the process.
pub struct Browser {
    process: Child,
    profile: TempDir,
    port: u16,
}

/// One page or frame of the browser.
pub struct Page {
    socket: WebSocket<TcpStream>,
    next_id: u64,
    /// Uncaught exceptions of the page's scripts.
    thrown: Vec<String>,
}

impl Browser {
    /// Starts headless Chromium; panics if it is not installed.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts headless Chromium with these further flags.
    #[must_use]
    pub fn start_with(flags: &[&str]) -> Self {
        assert!(std::path::Path::new(CHROMIUM).exists(), "{CHROMIUM} is missing: apt-get install chromium");
        let profile = tempfile::Builder::new().prefix("caisson-browser-").tempdir().expect("a profile");
        let process = Command::new(CHROMIUM)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args([
                "--no-first-run",
                "--no-proxy-server",
                "--remote-debugging-port=0",
                "--window-size=1400,900",
            ])
            // Chromium drops keys and clicks until the page has painted once; this option accepts them from the
            // start.
            .arg("--allow-pre-commit-input")
            // Background pages run as fast as the one in front.
            .args(["--disable-background-timer-throttling", "--disable-renderer-backgrounding"])
            .args(["--disable-backgrounding-occluded-windows", "--disable-background-networking"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(flags)
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting Chromium");
        let told = profile.path().join("DevToolsActivePort");
        // From here on, the process ends with the test, also if it never answers.
        let mut browser = Self { process, profile, port: 0 };
        wait_at_most(TIMEOUT, "Chromium answers", || {
            let text = std::fs::read_to_string(&told).unwrap_or_default();
            browser.port = text.lines().next().and_then(|line| line.parse().ok()).unwrap_or_default();
            browser.port != 0 && text.lines().count() > 1
        });
        browser
    }

    /// Opens a page at this URL.
    #[must_use]
    pub fn open(&self, url: &str) -> Page {
        let client = http_client().timeout(TIMEOUT).build().expect("a client");
        let address = format!("http://127.0.0.1:{}/json/new?about:blank", self.port);
        let made = client.put(address).send().expect("opening a page").text().expect("a page");
        let made: Value = serde_json::from_str(&made).expect("a description of a page");
        let mut page = self.connect_to(&made);
        page.ask("Page.navigate", &json!({"url": url}));
        page
    }

    /// Waits for a cross-site frame whose URL contains `address`.
    #[must_use]
    pub fn frame(&self, address: &str) -> Page {
        self.wait_for_target("iframe", address)
    }

    /// Waits for a page that another page opened and whose URL contains `address`.
    #[must_use]
    pub fn wait_for_page(&self, address: &str) -> Page {
        self.wait_for_target("page", address)
    }

    /// The URLs of all pages and frames.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.targets().iter().filter_map(|target| target["url"].as_str()).map(ToOwned::to_owned).collect()
    }

    fn targets(&self) -> Vec<Value> {
        let client = http_client().timeout(TIMEOUT).build().expect("a client");
        let list = format!("http://127.0.0.1:{}/json/list", self.port);
        let text = client.get(&list).send().and_then(reqwest::blocking::Response::text);
        serde_json::from_str(&text.unwrap_or_default()).unwrap_or_default()
    }

    fn wait_for_target(&self, kind: &str, address: &str) -> Page {
        let is_it = |target: &Value| {
            target["type"] == kind && target["url"].as_str().is_some_and(|url| url.contains(address))
        };
        let mut found = None;
        wait_at_most(TIMEOUT, &format!("there is a {kind} with {address}"), || {
            found = self.targets().into_iter().find(is_it);
            found.is_some()
        });
        self.connect_to(&found.unwrap_or_default())
    }

    fn connect_to(&self, target: &Value) -> Page {
        let address = target["webSocketDebuggerUrl"].as_str().expect("an address").to_owned();
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connecting to the page");
        stream.set_read_timeout(Some(TIMEOUT)).expect("setting a timeout");
        let request = address.into_client_request().expect("a request");
        let (socket, _) = tungstenite::client(request, stream).expect("speaking to the page");
        let mut page = Page { socket, next_id: 0, thrown: Vec::new() };
        page.ask("Page.enable", &json!({}));
        page.ask("Runtime.enable", &json!({}));
        if let Ok(rate) = std::env::var(CPU_THROTTLE_VARIABLE) {
            let rate: u32 =
                rate.parse().unwrap_or_else(|_| panic!("{CPU_THROTTLE_VARIABLE}={rate} is no whole number"));
            page.ask("Emulation.setCPUThrottlingRate", &json!({"rate": rate}));
        }
        page
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Chromium's child processes exit a little later and write to the profile until then.
        for _ in 0..50 {
            if std::fs::remove_dir_all(self.profile.path()).is_ok() {
                break;
            }
            crate::server::pause();
        }
    }
}

fn evaluation(expression: &str, is_user_gesture: bool) -> Value {
    json!({"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": is_user_gesture})
}

impl Page {
    /// Sends a DevTools command and waits for its response; panics on an error response.
    pub fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.try_command(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_command(&mut self, method: &str, parameters: &Value) -> Result<Value, Value> {
        self.next_id += 1;
        let message = json!({"id": self.next_id, "method": method, "params": parameters});
        self.socket.send(Message::text(message.to_string())).expect("speaking to the page");
        loop {
            let Message::Text(text) = self.socket.read().expect("an answer of the page") else { continue };
            let answer: Value = serde_json::from_str(&text).expect("an answer in JSON");
            if answer["id"] == self.next_id {
                let error = answer["error"].clone();
                return if error.is_null() { Ok(answer["result"].clone()) } else { Err(error) };
            }
            if answer["method"] == "Runtime.exceptionThrown" {
                let details = &answer["params"]["exceptionDetails"];
                self.thrown.push(format!("{} {}", details["text"], details["exception"]["description"]));
            }
        }
    }

    /// Evaluates an expression, awaiting promises; `null` if it throws.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        self.evaluate_as(expression, false)
    }

    /// Evaluates an expression as a user gesture, such as a click. A browser opens a new tab, for example, only then.
    pub fn act(&mut self, expression: &str) -> Value {
        self.evaluate_as(expression, true)
    }

    fn evaluate_as(&mut self, expression: &str, is_user_gesture: bool) -> Value {
        self.ask("Runtime.evaluate", &evaluation(expression, is_user_gesture))["result"]["value"].clone()
    }

    /// Evaluates an expression in a page that may navigate away meanwhile; `None` if it does.
    pub(crate) fn evaluate_unless_leaving(&mut self, expression: &str) -> Option<Value> {
        match self.try_command("Runtime.evaluate", &evaluation(expression, false)) {
            Ok(answer) => Some(answer["result"]["value"].clone()),
            Err(error) if PAGE_NAVIGATED_ERRORS.iter().any(|words| error["message"] == *words) => None,
            Err(error) => panic!("Runtime.evaluate: {error}"),
        }
    }

    /// Whether an expression is true now. A page that navigates away during the evaluation counts as `false`.
    fn is_true(&mut self, expression: &str) -> bool {
        self.evaluate_unless_leaving(expression).is_some_and(|value| value == true)
    }

    /// Loads the page again, and waits until the new document has replaced the old one: until then, the old one answers.
    #[track_caller]
    pub fn reload(&mut self) {
        self.leave("location.reload()");
    }

    /// Evaluates an expression that makes the page navigate, and waits until another document has replaced this one.
    #[track_caller]
    pub fn leave(&mut self, expression: &str) {
        self.evaluate(&format!("globalThis.isOldDocument = true; {expression}; 0"));
        self.wait_for("another document is there", "globalThis.isOldDocument === undefined");
    }

    /// Waits until an expression is true; the panic message shows the text of the page.
    #[track_caller]
    pub fn wait_for(&mut self, what: &str, expression: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.is_true(expression) {
            if Instant::now() > deadline {
                let text = self.evaluate("document.title + ': ' + document.body.innerText.slice(0, 1500)");
                panic!("waited in vain until {what}; thrown: {:?}; the page says: {text}", self.thrown);
            }
            crate::server::pause();
        }
    }

    /// Panics if a script of the page has thrown an uncaught exception.
    #[track_caller]
    pub fn assert_no_exceptions(&mut self) {
        self.evaluate("0");
        assert!(self.thrown.is_empty(), "the page threw: {:?}", self.thrown);
    }

    /// Whether an expression becomes true within this time.
    pub fn becomes_true_within(&mut self, patience: Duration, expression: &str) -> bool {
        let deadline = Instant::now() + patience;
        while !self.is_true(expression) {
            if Instant::now() > deadline {
                return false;
            }
            crate::server::pause();
        }
        true
    }

    /// Clicks the center of an element, once it rests: what is still being loaded may move it away from the click.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let place = self.evaluate(&format!(
            "(async () => {{ \
               const place = () => {{ const box = document.querySelector({selector:?}).getBoundingClientRect(); \
                 return {{x: box.x + box.width / 2, y: box.y + box.height / 2}}; }}; \
               for (let last = place(); ;) {{ \
                 await new Promise(done => setTimeout(done, 50)); \
                 const now = place(); \
                 if (now.x === last.x && now.y === last.y) return now; \
                 last = now; \
               }} }})()"
        ));
        assert!(place.is_object(), "there is no {selector} on the page");
        self.click_at(&place);
    }

    /// Clicks the left mouse button at `x` and `y`.
    pub fn click_at(&mut self, place: &Value) {
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event =
                json!({"type": kind, "x": place["x"], "y": place["y"], "button": button, "clickCount": 1});
            self.ask("Input.dispatchMouseEvent", &event);
        }
    }

    /// Types a text key by key, for pages that handle key events; a line feed is the Enter key.
    pub fn type_keys(&mut self, text: &str) {
        for letter in text.chars() {
            let (key, code) = match letter {
                '\n' => ("Enter".to_owned(), "Enter".to_owned()),
                letter if letter.is_ascii_alphabetic() => {
                    (letter.to_string(), format!("Key{}", letter.to_ascii_uppercase()))
                }
                letter => (letter.to_string(), String::new()),
            };
            for kind in ["rawKeyDown", "keyUp"] {
                self.ask("Input.dispatchKeyEvent", &json!({"type": kind, "key": key, "code": code}));
            }
        }
    }

    /// Inserts text at the focus, without key events.
    pub fn type_text(&mut self, text: &str) {
        self.ask("Input.insertText", &json!({"text": text}));
    }

    /// Presses Shift+Enter, which runs a notebook cell.
    pub fn press_shift_enter(&mut self) {
        for kind in ["rawKeyDown", "keyUp"] {
            let key = json!({
                "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8
            });
            self.ask("Input.dispatchKeyEvent", &key);
        }
    }

    /// A PNG screenshot of the viewport.
    #[must_use]
    pub fn screenshot(&mut self) -> Vec<u8> {
        let shot = self.ask("Page.captureScreenshot", &json!({"format": "png"}));
        STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("base64")
    }
}
