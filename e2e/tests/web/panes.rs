//! Panes that show a job's sandbox: terminal, files, preview, desktop.

use e2e::{Browser, Options, Server, default_images, wait_until};
use serde_json::{Value, json};

use crate::page_helpers::{has, key, open, press, shows, type_keys, write};

/// Counts the WebSockets that the page opens from now on.
const COUNT_SOCKETS: &str = "globalThis.opened = 0; globalThis.WebSocket = class extends WebSocket {\
     constructor(...words) { super(...words); this.addEventListener('open', () => globalThis.opened += 1); } }; 0";
const WAITS: &str = "until [ -e go ]; do sleep 0.05; done";

#[test]
fn terminal_accepts_input_and_survives_closing_the_pane() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": WAITS}]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/terminal", job.id));
    let screen = "document.querySelector('.xterm-rows')?.innerText.replaceAll('\\u00a0', ' ')";
    page.wait_for("the shell greets", &format!("{screen}?.includes('$')"));
    page.evaluate("document.querySelector('.xterm-helper-textarea').focus()");
    type_keys(&mut page, "kept=here; echo it-$((40+2))");
    page.wait_for("it answers", &format!("{screen}?.includes('it-42')"));
    press(&mut page, "Network");
    page.wait_for("the pane is gone", &format!("!({})", has(".xterm")));
    press(&mut page, "Terminal");
    page.wait_for("the same shell is there", &format!("{screen}?.includes('it-42')"));
    // As after the computer slept: the old socket may only appear to be open.
    page.evaluate(COUNT_SOCKETS);
    page.evaluate("window.dispatchEvent(new Event('online'))");
    page.wait_for("a new connection is made", "globalThis.opened === 1");
    page.evaluate("document.querySelector('.xterm-helper-textarea').focus()");
    type_keys(&mut page, "echo $kept-again; touch go");
    page.wait_for(
        "it has kept its variables",
        &format!("{screen}?.includes('here-again') || {}", shows("Complete")),
    );
    page.wait_for("the job goes on", &shows("Complete"));
    page.assert_no_exceptions();
}

#[test]
fn file_edited_in_the_pane_is_seen_by_the_job() {
    let server = Server::start();
    let steps = json!([
        {"tool": "write_file", "path": "src/app.py", "content": "print('old')\n"},
        {"tool": "shell", "command": "until grep -q new src/app.py; do sleep 0.05; done; python3 src/app.py"}
    ]);
    let job = server.schedule(&json!({ "steps": steps }));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    press(&mut page, "▸ src/");
    press(&mut page, "app.py");
    page.wait_for(
        "the file is in the editor, in colours",
        "document.querySelector('.viewer .cm-content span') !== null",
    );
    page.evaluate("document.querySelector('.viewer .cm-content').focus()");
    write(&mut page, ".viewer .cm-content", "print('new')\n");
    page.wait_for("it counts as changed", &shows("changed"));
    key(&mut page, "s", "", 2);
    page.wait_for("it was saved", "!document.querySelector('.viewer').innerText.includes('changed')");
    page.wait_for("the job has seen it", &shows("Complete"));
    assert!(job.output().text("src/app.py").contains("print('new')"));
    page.assert_no_exceptions();
}

/// A page that tries everything to reach the API of the server that serves it.
const HOSTILE_PAGE: &str = "<!doctype html><title>x</title><p id=p>trying</p><script>(async () => {\
    const said = [];\
    const api = 'http://localhost:' + location.port;\
    const read = async (name, what) => { try { const answer = await what(); said.push(name + ' ' + answer); } catch { said.push(name + ' refused'); } };\
    await read('list', async () => (await fetch(api + '/v1/jobs')).status);\
    await read('make', async () => (await fetch(api + '/v1/jobs', {method: 'POST', headers: {'content-type': 'text/plain'}, body: 'mine'})).status);\
    await read('parent', async () => parent.document.title);\
    await read('top', async () => { top.location.href = 'about:blank'; await new Promise(done => setTimeout(done, 300)); return 'moved'; });\
    document.getElementById('p').textContent = said.join(', ');\
    fetch('/said?' + encodeURIComponent(said.join(', ')));\
})();</script>";

#[test]
fn a_hostile_page_in_a_preview_cannot_reach_the_api() {
    let server = Server::start();
    let serve = "import http.server, urllib.parse\n\
        class Handler(http.server.SimpleHTTPRequestHandler):\n    \
            def do_GET(self):\n        \
                if self.path.startswith('/said'):\n            \
                    open('said.txt', 'w').write(urllib.parse.unquote(self.path))\n        \
                super().do_GET()\n\
        http.server.HTTPServer(('127.0.0.1', 8123), Handler).serve_forever()\n";
    let steps = json!([
        {"tool": "write_file", "path": "index.html", "content": HOSTILE_PAGE},
        {"tool": "write_file", "path": "serve.py", "content": serve},
        {"tool": "shell", "command": "(python3 serve.py > server.log 2>&1 &); until [ -e said.txt ]; do sleep 0.05; done; cat said.txt"}
    ]);
    let job = server.schedule(&json!({"name": "hostile", "steps": steps}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/preview", job.id));
    page.wait_for("the page is framed", &has("iframe[src*='-8123.localhost']"));
    page.wait_for("it has tried", &shows("Complete"));
    let said = job.output().text("said.txt");
    for word in ["list refused", "make refused", "parent refused"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(
        page.evaluate("location.href").as_str().unwrap().contains(&job.id),
        "the page around it was not moved"
    );
    let jobs = server.get("/v1/jobs").expect(200).json();
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1), "no job was made: {jobs}");
}

#[test]
fn desktop_accepts_input_and_no_url_contains_a_secret() {
    let server = Server::start_with(Options { images: Some(default_images()), ..Options::default() });
    let steps = [
        json!({"tool": "gui", "action": "launch", "command": "xterm -geometry 80x24+0+0"}),
        json!({"tool": "shell", "command": WAITS}),
    ];
    let job = server.schedule(&json!({"image": "default", "steps": steps}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/desktop", job.id));
    page.wait_for("the screen is shown", "document.querySelector('.desktop-place')?.dataset.link === 'open'");
    wait_until("the window was launched", || job.status()["steps"][0]["status"] == "succeeded");
    let has_window = |is_wanted: fn(&Value) -> bool| {
        let done = job.post("input", &json!({"action": "windows"})).expect(200).json();
        done["result"]["windows"].as_array().is_some_and(|windows| windows.iter().any(is_wanted))
    };
    wait_until("the window is there", || has_window(|_| true));
    press(&mut page, "Control");
    // The window covers this point; the click gives it the keyboard focus.
    let place = page.evaluate(
        "(() => { const b = document.querySelector('.desktop-place canvas').getBoundingClientRect(); return [b.left + b.width * 0.1, b.top + b.height * 0.15]; })()",
    );
    for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
        let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "buttons": 1, "clickCount": 1});
        page.ask("Input.dispatchMouseEvent", &event);
    }
    wait_until("the window has the keyboard", || has_window(|window| window["is_active"] == true));
    type_keys(&mut page, "touch /workspace/go");
    page.wait_for("the job goes on", &shows("Complete"));
    let visited = page.evaluate(
        "[location.href, ...performance.getEntriesByType('resource').map(entry => entry.name)].filter(url => !url.includes('/app/') && /token|key=|secret|password|holder/i.test(url))",
    );
    assert_eq!(visited, Value::Array(Vec::new()));
    page.assert_no_exceptions();
}
