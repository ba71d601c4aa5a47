//! The desktop: steps that use mouse and keyboard, screenshots, good and bad viewers, the desktop page in a real
//! browser.

use e2e::images::{add_small, default_images};
use e2e::{Browser, Event, Options, Said, Sandbox, Server, Socket, shell, wait_until};
use reqwest::Method;
use serde_json::{Value, json};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// A JavaScript expression: the desktop page shows the screen.
const CONNECTED: &str = "document.getElementById('state')?.dataset.state === 'connected'";

fn server() -> Server {
    Server::start_with(Options { images: Some(default_images()), ..Options::default() })
}

fn sandbox(server: &Server) -> Sandbox<'_> {
    server.create_sandbox(&json!({"image": "default"}))
}

fn gui(action: Value) -> Value {
    let mut step = action;
    step["tool"] = json!("gui");
    step
}

#[track_caller]
fn input(sandbox: &Sandbox<'_>, action: &Value) -> Value {
    let done = sandbox.post("input", action).expect(200).json();
    assert_eq!(done["status"], "succeeded", "{action}: {done:#}");
    done["result"].clone()
}

/// A window with a field and a button at known positions; the button writes the field's text to a file.
const PROGRAM: &str = r#"
import tkinter
root = tkinter.Tk(className="Form")
root.title("Form")
root.geometry("400x200+200+150")
field = tkinter.Entry(root)
field.place(x=20, y=20, width=300, height=30)
def save():
    open("/workspace/answer.txt", "w").write(field.get())
button = tkinter.Button(root, text="Save", command=save)
button.place(x=20, y=80, width=100, height=40)
# The window is there before what is in it.
button.wait_visibility()
open("/workspace/ready", "w").close()
root.mainloop()
"#;

#[test]
fn gui_program_is_driven_by_mouse_and_keyboard() {
    let server = server();
    let text = "Grüße, 日本語 and ñ";
    let steps = [
        json!({"tool": "write_file", "path": "form.py", "content": PROGRAM}),
        gui(json!({"action": "launch", "command": "python3 form.py"})),
        gui(json!({"action": "wait", "window": "Form", "seconds": 60})),
        shell("until [ -e ready ]; do sleep 0.05; done"),
        gui(json!({"action": "click", "x": 300, "y": 215})),
        gui(json!({"action": "type", "text": text})),
        gui(json!({"action": "screenshot"})),
        gui(json!({"action": "click", "x": 270, "y": 275})),
        shell("until [ -s answer.txt ]; do sleep 0.05; done; cat answer.txt"),
        gui(json!({"action": "double_click", "x": 300, "y": 215})),
        gui(json!({"action": "key", "keys": "ctrl+a"})),
        gui(json!({"action": "close", "window": "Form"})),
        gui(json!({"script": "mousemove 10 10 click 1"})),
        gui(json!({"action": "windows"})),
    ];
    let body = json!({"image": "default", "steps": steps, "desktop": {"width": 1024, "height": 700}});
    let job = server.schedule(&body);
    job.wait_for("complete");
    assert_eq!(job.output().text("answer.txt"), text);
    let mut events = job.follow();
    let has_picture = |event: &Event| !event.data()["result"]["screenshot"].is_null();
    let taken = events.until("a picture is taken", has_picture);
    let picture = &taken.data()["result"]["screenshot"];
    assert_eq!((&picture["width"], &picture["height"]), (&json!(1024), &json!(700)), "{picture}");
    let path = format!("/v1/jobs/{}/pictures/{}", job.id, picture["digest"].as_str().unwrap());
    let answer = server.get(&path).expect(200);
    assert!(answer.body.starts_with(PNG));
    assert_eq!(answer.header("content-type"), "image/png");
    assert_eq!(answer.header("content-security-policy"), "sandbox; default-src 'none'");
    // The screen has changed since, so there is a last screenshot.
    let last = events.until("the last screen", |event| event.is("screen_captured"));
    let last = &last.data()["screenshot"];
    assert_eq!((&last["width"], &last["media_type"]), (&json!(1024), &json!("image/png")), "{last}");
    assert_ne!(last["digest"], picture["digest"]);
    let path = format!("/v1/jobs/{}/pictures/{}", job.id, last["digest"].as_str().unwrap());
    assert!(server.get(&path).expect(200).body.starts_with(PNG));
    events.until("the result, which follows", |event| event.is("artifact_stored"));
    let missing = format!("/v1/jobs/{}/pictures/{}", job.id, "0".repeat(64));
    assert_eq!(server.get(&missing).expect(404).json()["code"], "screenshot_not_found");
    server.get(&format!("/v1/jobs/{}/pictures/x", job.id)).expect(400);
}

#[test]
fn failed_desktop_action_fails_the_step_with_a_reason() {
    let server = server();
    let bad = [
        (json!({"action": "click", "x": 5000, "y": 10}), "off the screen, which has 1280x800"),
        (json!({"action": "move", "x": -1, "y": 10}), "off the screen"),
        (json!({"action": "click", "x": 10}), "`x` and `y` go together"),
        (json!({"action": "key", "keys": "ctrl+flux"}), "no key `flux`"),
        (json!({"action": "focus", "window": "Nothing"}), "no window with `Nothing`"),
        (json!({"action": "launch", "command": "no-such-program"}), "no-such-program: command not found"),
        (json!({"action": "wait", "window": "Nothing", "seconds": 0.1}), "within 0.1 s"),
        (json!({"script": "mousemove 10 10 clik 1"}), "clik"),
    ];
    let steps: Vec<Value> = bad
        .iter()
        .map(|(action, _)| {
            let mut step = gui(action.clone());
            step["continue_on_error"] = json!(true);
            step
        })
        .collect();
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let status = job.wait();
    for (index, (action, wanted)) in bad.iter().enumerate() {
        let step = &status["steps"][index];
        assert_eq!(step["status"], "failed", "{action}: {step:#}");
        assert!(step["reason"].as_str().unwrap_or_default().contains(wanted), "{action}: {step:#}");
    }
    for (body, field) in [
        (json!({"action": "fly"}), "not `fly`"),
        (json!({"action": "click", "colour": 1}), "`steps[0]` has no field `colour`"),
        (json!({"script": ""}), "is empty"),
    ] {
        let refusal = server.post("/schedule", &json!({"steps": [gui(body)]}));
        assert!(String::from_utf8_lossy(&refusal.body).contains(field), "{refusal:?}");
    }
    for (body, field) in [
        (json!({"script": "type 'unterminated"}), "steps[0].script"),
        (json!({"action": "focus", "window": ""}), "steps[0].window"),
        (json!({"action": "wait", "window": " "}), "steps[0].window"),
    ] {
        let refusal = server.post("/schedule", &json!({"steps": [gui(body)]})).expect(422).json();
        assert_eq!(refusal["field"], field, "{refusal}");
    }
    let small = json!({"steps": [shell("true")], "desktop": {"width": 10}});
    assert_eq!(server.post("/schedule", &small).expect(422).json()["field"], "desktop.width");
}

#[test]
fn image_without_a_desktop_names_the_missing_program() {
    let folder = tempfile::tempdir().unwrap();
    add_small(folder.path(), "small");
    let server = Server::start_with(Options { images: Some(folder.path().to_owned()), ..Options::default() });
    let sandbox = server.create_sandbox(&json!({"image": "small"}));
    let problem = sandbox.get("screenshot").expect(409).json();
    assert_eq!(problem["code"], "no_desktop", "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("no program `Xvnc`"), "{problem}");
    let done = sandbox.post("input", &json!({"action": "windows"})).expect(200).json();
    assert_eq!((&done["status"], &done["code"]), (&json!("failed"), &json!("no_desktop")), "{done}");
}

/// A VNC client on a WebSocket.
pub(crate) struct Viewer {
    socket: Socket,
    received: Vec<u8>,
}

impl Viewer {
    fn open(server: &Server, sandbox: &Sandbox<'_>) -> Self {
        Self::open_at(server, &sandbox.path("desktop/socket"))
    }

    pub(crate) fn open_at(server: &Server, path: &str) -> Self {
        Self::open_with(server, path, &[])
    }

    fn open_with(server: &Server, path: &str, headers: &[(&'static str, &str)]) -> Self {
        let mut viewer = Self::greet_at(server, path, headers);
        viewer.socket.send_bytes(b"RFB 003.008\n");
        assert_eq!(viewer.take(2), [1, 1], "one way in: without a password");
        viewer.socket.send_bytes(&[1]);
        assert_eq!(viewer.take(4), [0; 4]);
        viewer.socket.send_bytes(&[1]);
        let screen = viewer.take(24);
        assert_eq!(&screen[..4], [5, 0, 3, 32], "1280x800");
        let name = u32::from_be_bytes([screen[20], screen[21], screen[22], screen[23]]) as usize;
        viewer.take(name);
        viewer
    }

    fn greet(server: &Server, sandbox: &Sandbox<'_>) -> Self {
        Self::greet_at(server, &sandbox.path("desktop/socket"), &[])
    }

    fn greet_at(server: &Server, path: &str, headers: &[(&'static str, &str)]) -> Self {
        let socket = Socket::try_open(server, path, headers);
        let socket = socket.unwrap_or_else(|(status, body)| panic!("{path}: {status} {body}"));
        let mut viewer = Self { socket, received: Vec::new() };
        assert_eq!(viewer.take(12), b"RFB 003.008\n");
        viewer
    }

    /// Tries to type with an older protocol version whose handshake is one byte shorter: key events stand where the
    /// filter of a later version would expect a list of encodings. The server must close such a connection.
    fn type_with_older_protocol(mut self, version: &[u8; 12]) {
        let format = [0, 2, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0];
        let mut said = [&version[..], &[1], &format].concat();
        for key in [[0, b'o'], [0, b'l'], [0, b'd'], [0xff, 0x0d]] {
            for is_down in [1, 0] {
                said.extend([4, is_down, 0, 0, 0, 0, key[0], key[1]]);
            }
        }
        // Pads the encodings that the list claims to have.
        said.extend([3, 0, 0, 0, 0, 0, 5, 0, 3, 32].repeat(5));
        self.socket.send_bytes(&said);
        while matches!(self.socket.hear(), Said::Bytes(_)) {}
    }

    /// Types characters and waits until the server has processed them, by requesting the screen after them.
    pub(crate) fn type_text(&mut self, letters: &str) {
        for letter in letters.bytes() {
            let key = if letter == b'\n' { [0xff, 0x0d] } else { [0, letter] };
            for is_down in [1, 0] {
                self.socket.send_bytes(&[4, is_down, 0, 0, 0, 0, key[0], key[1]]);
            }
        }
        self.ask();
        assert_eq!(self.take(1), [0], "the screen comes");
    }

    #[track_caller]
    fn take(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            match self.socket.hear() {
                Said::Bytes(bytes) => self.received.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
        self.received.drain(..count).collect()
    }

    /// Requests the whole screen.
    fn ask(&mut self) {
        self.socket.send_bytes(&[3, 0, 0, 0, 0, 0, 5, 0, 3, 32]);
    }
}

#[test]
fn stalled_and_garbage_viewers_do_not_affect_ten_others() {
    let server = server();
    let sandbox = sandbox(&server);
    let mut slow = Viewer::open(&server, &sandbox);
    for _ in 0..50 {
        slow.ask();
    }
    let mut garbage = Viewer::greet(&server, &sandbox);
    garbage.socket.send_bytes(&[0xff; 4096]);
    while matches!(garbage.socket.hear(), Said::Bytes(_)) {}
    let mut viewers: Vec<Viewer> = (0..9).map(|_| Viewer::open(&server, &sandbox)).collect();
    for viewer in &mut viewers {
        viewer.ask();
    }
    for viewer in &mut viewers {
        assert_eq!(viewer.take(1), [0], "an update of the screen");
        viewer.take(200_000);
    }
    assert_eq!(sandbox.exec("echo alive")["stdout"], "alive\n");
    assert!(sandbox.get("screenshot").expect(200).body.starts_with(PNG));
    drop(slow);
}

#[test]
fn view_only_users_cannot_start_or_control_a_desktop() {
    let server = server();
    let key = |name: &str, role: &str, by: Option<&str>| {
        let request = server.request(Method::POST, "/v1/keys").json(&json!({"name": name, "role": role}));
        let request = by.into_iter().fold(request, |request, key| request.bearer_auth(key));
        server.send(request).expect(201).json()["secret"].as_str().unwrap().to_owned()
    };
    let admin = key("root", "admin", None);
    let eve = key("eve", "viewer", Some(&admin));
    let post = |path: &str, body: &Value| {
        server.send(server.request(Method::POST, path).bearer_auth(&admin).json(body))
    };
    let made = post("/v1/sandboxes", &json!({"image": "default"})).expect(201).json();
    let below = format!("/v1/sandboxes/{}", made["sandbox_id"].as_str().unwrap());
    let otherwise = below.replacen("/v1/sandboxes/0", "/v1/sandboxes/%30", 1);
    assert_ne!(below, otherwise);
    let share = post(&format!("{below}/shares"), &json!({"view": "desktop"})).expect(201).json();
    let link = share["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let bearer = format!("Bearer {eve}");
    let as_eve = [("authorization", bearer.as_str())];

    for path in ["screenshot", "desktop/state"] {
        let request = server.request(Method::GET, &format!("{below}/{path}"));
        server.send(request.bearer_auth(&eve)).expect_problem(409, "no_desktop");
        server.get(&format!("{below}/{path}?share={link}")).expect_problem(409, "no_desktop");
    }
    let socket = format!("{below}/desktop/socket");
    let refused = Socket::try_open(&server, &socket, &as_eve).err().unwrap();
    assert!(refused.0 == 409 && refused.1.contains("no_desktop"), "{refused:?}");

    let window = "xterm -T Typed -e sh -c 'read line; echo $line > typed'";
    for action in [
        json!({"action": "launch", "command": window}),
        json!({"action": "wait", "window": "Typed", "seconds": 60}),
        json!({"action": "focus", "window": "Typed"}),
    ] {
        post(&format!("{below}/input"), &action).expect(200);
    }
    Viewer::open_with(&server, &socket, &as_eve).type_text("eve\n");
    Viewer::open_with(&server, &format!("{otherwise}/desktop/socket"), &as_eve).type_text("eve\n");
    Viewer::open_at(&server, &format!("{socket}?share={link}")).type_text("guest\n");
    Viewer::open_at(&server, &format!("{otherwise}/desktop/socket?share={link}")).type_text("guest\n");
    for version in [b"RFB 003.003\n", b"RFB 003.005\n", b"RFB 3.3    \n"] {
        Viewer::greet_at(&server, &socket, &as_eve).type_with_older_protocol(version);
    }
    let as_admin = format!("Bearer {admin}");
    Viewer::open_with(&server, &socket, &[("authorization", &as_admin)]).type_text("ada\n");
    let typed = json!({"command": "until [ -s typed ]; do sleep 0.05; done; cat typed"});
    let answer = post(&format!("{below}/exec"), &typed).expect(200).json();
    assert_eq!(answer["stdout"], "ada\n", "{answer}");
}

#[test]
fn page_of_another_site_cannot_open_the_desktop_socket() {
    let server = server();
    let sandbox = sandbox(&server);
    let headers = [("origin", "http://evil.example")];
    let refused = Socket::try_open(&server, &sandbox.path("desktop/socket"), &headers).err().unwrap();
    assert_eq!(refused.0, 403);
    let page = sandbox.get("desktop").expect(200);
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let request = server.request(Method::GET, "/v1/sandboxes/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f/desktop");
    server.send(request).expect(404);
}

#[test]
fn desktop_recovers_from_a_killed_window_manager_or_x_server() {
    let server = server();
    let sandbox = sandbox(&server);
    sandbox.get("screenshot").expect(200);
    let killed = sandbox.exec("old=$(pidof icewm); kill -9 $old; echo $old");
    wait_until("there is another window manager", || {
        let now = sandbox.exec("pidof icewm");
        now["exit_code"] == 0 && now["stdout"] != killed["stdout"]
    });
    wait_until("it answers", || sandbox.get("screenshot").status == 200);
    let killed = sandbox.exec("kill -9 $(pidof Xvnc)");
    assert_eq!(killed["exit_code"], 0, "{killed}");
    wait_until("there is a desktop again", || sandbox.get("screenshot").status == 200);
    input(&sandbox, &json!({"action": "launch", "command": "xterm"}));
    input(&sandbox, &json!({"action": "wait", "window": "agent", "seconds": 30}));
}

#[test]
fn desktop_works_after_the_job_has_cleared_its_folders() {
    let server = server();
    let sandbox = sandbox(&server);
    drop(Viewer::open(&server, &sandbox));
    // Programs that have just started may still create files there; the X server does not recreate its own.
    let cleared =
        sandbox.exec("rm -rf /tmp/* /tmp/.[!.]* 2>/dev/null; ls -d /tmp/.X11-unix /tmp/.X1-lock 2>/dev/null");
    assert_eq!(cleared["stdout"], "", "{cleared}");
    drop(Viewer::open(&server, &sandbox));
    // No window is open, so a new X server loses nothing.
    // Programs that have just started may still create files there, even while `rm` runs; only the desktop creates
    // the folder `caisson`.
    let cleared = sandbox.exec("until rm -rf ~/.cache; do sleep 0.1; done; ls -d ~/.cache/caisson 2>&1");
    assert!(cleared["stdout"].as_str().unwrap().contains("No such file"), "{cleared}");
    drop(Viewer::open(&server, &sandbox));
    input(&sandbox, &json!({"action": "launch", "command": "xterm -T Mine -e cat"}));
    input(&sandbox, &json!({"action": "wait", "window": "Mine", "seconds": 60}));
    let cleared = sandbox.exec("rm -rf ~/.cache/caisson");
    assert_eq!(cleared["exit_code"], 0, "{cleared}");
    let refused = Socket::try_open(&server, &sandbox.path("desktop/socket"), &[]);
    let (_, body) = refused.err().expect("there is no way to the screen");
    assert!(body.contains("the job has removed the desktop's socket"), "{body}");
    input(&sandbox, &json!({"action": "close", "window": "Mine"}));
    wait_until("the desktop is seen again", || {
        Socket::try_open(&server, &sandbox.path("desktop/socket"), &[]).is_ok()
    });
}

#[test]
fn typing_on_the_desktop_page_reaches_a_terminal() {
    let server = server();
    let sandbox = sandbox(&server);
    // Terminal and file manager of the desktop's menu open in the workspace.
    for (down, process) in [(0, "bash -P $(pgrep -nx xterm)"), (1, "pcmanfm")] {
        // Not twice at the same place: two quick clicks there are a double click, which opens no menu.
        input(&sandbox, &json!({"action": "click", "x": 1000, "y": 300 + 200 * down, "button": "right"}));
        // Until the menu is open, keys go to the window that has the focus.
        wait_until("the menu is open", || {
            let menu = sandbox.exec("DISPLAY=:1 xwininfo -name IceMenu");
            menu["stdout"].as_str().unwrap().contains("Map State: IsViewable")
        });
        // The pointer may already have selected an entry.
        for key in ["Home"].into_iter().chain(std::iter::repeat_n("Down", down)).chain(["Return"]) {
            input(&sandbox, &json!({"action": "key", "keys": key}));
        }
        // The title of the terminal has the folder too, so only the whole title tells the file manager apart.
        let title = if process == "pcmanfm" { "workspace" } else { "agent@caisson: /workspace" };
        wait_until(&format!("there is a window {title}"), || {
            let windows = input(&sandbox, &json!({"action": "windows"}));
            windows["windows"].as_array().unwrap().iter().any(|window| window["title"] == title)
        });
        wait_until(&format!("{process} runs in the workspace"), || {
            sandbox.exec(&format!("readlink /proc/$(pgrep -nx {process})/cwd"))["stdout"] == "/workspace\n"
        });
    }
    input(&sandbox, &json!({"action": "launch", "command": "xterm -T Shell -geometry 100x40+0+0 -e sh"}));
    input(&sandbox, &json!({"action": "wait", "window": "Shell", "seconds": 30}));
    let browser = Browser::start();
    let mut page = browser.open(&server.url(&sandbox.path("desktop")));
    page.wait_for("it is connected", CONNECTED);
    page.wait_for("the screen is there", "document.querySelector('#screen canvas')?.width === 1280");
    page.click("#screen canvas");
    input(&sandbox, &json!({"action": "focus", "window": "Shell"}));
    page.type_keys("echo through the page > typed.txt\n");
    wait_until("the file is written", || sandbox.get("files/typed.txt").status == 200);
    assert_eq!(sandbox.get("files/typed.txt").expect(200).body, b"through the page\n");
    // View-only mode sends no input.
    page.act("document.getElementById('view-only').click()");
    page.wait_for("it only watches", "document.getElementById('state').textContent === 'watching'");
    page.type_keys("echo no > seen.txt\n");
    page.act("document.getElementById('view-only').click()");
    page.type_keys("touch last.txt\n");
    wait_until("what was typed later is done", || sandbox.get("files/last.txt").status == 200);
    sandbox.get("files/seen.txt").expect(404);
    assert!(page.screenshot().starts_with(PNG));
    let small = json!({"width": 700, "height": 500, "deviceScaleFactor": 1, "mobile": false});
    page.ask("Emulation.setDeviceMetricsOverride", &small);
    let scale = "(canvas => canvas.getBoundingClientRect().width / canvas.width)\
                 (document.querySelector('#screen canvas'))";
    page.wait_for("all of it fits a small window", &format!("innerWidth === 700 && {scale} < 0.6"));
    page.evaluate("document.getElementById('fit').click()");
    page.wait_for("it has its own size, and is cut", &format!("Math.abs({scale} - 1) < 0.01"));
    page.evaluate("document.getElementById('fit').click()");
    page.wait_for("it fits again", &format!("{scale} < 0.6"));
    // As after the computer slept: the old socket may only appear to be open.
    page.evaluate("globalThis.lost = document.querySelector('#screen canvas'); window.dispatchEvent(new Event('online'))");
    page.wait_for("another connection is made", &format!("!lost.isConnected && {CONNECTED}"));
    page.act("document.getElementById('full-screen').click()");
    page.wait_for("it fills the screen", "document.body.classList.contains('full')");
    page.act("document.getElementById('full-screen').click()");
    page.wait_for("it is in its window again", "!document.body.classList.contains('full')");
}

#[test]
fn desktop_page_syncs_the_clipboard_in_both_directions() {
    let server = server();
    let sandbox = sandbox(&server);
    sandbox.get("screenshot").expect(200);
    let browser = Browser::start();
    let mut page = browser.open(&server.url(&sandbox.path("desktop")));
    page.wait_for("it is connected", CONNECTED);
    let copy = "import tkinter; root = tkinter.Tk(); root.clipboard_clear(); \
                root.clipboard_append('grüße from the desktop'); root.mainloop()";
    input(&sandbox, &json!({"action": "launch", "command": format!("python3 -c \"{copy}\"")}));
    page.wait_for(
        "what was copied is in the page",
        "document.getElementById('clipboard-text').value === 'grüße from the desktop'",
    );
    page.evaluate(
        "document.getElementById('clipboard').click(); \
         document.getElementById('clipboard-text').value = 'grüße from the page'; \
         document.getElementById('send-text').click()",
    );
    let paste = "DISPLAY=:1 python3 -c \"import tkinter; print(tkinter.Tk().clipboard_get())\"";
    wait_until("the desktop has it", || sandbox.exec(paste)["stdout"] == "grüße from the page\n");
}
