//! Dev servers of jobs in a real browser: WebSockets, hot reload, the second listener, and what their pages may not
//! do.

use e2e::{Browser, Sandbox, Server, free_port, wait_until};
use serde_json::json;

use crate::{server, server_with};

/// A plain Node server whose page shows WebSocket messages. It sends `message.txt` whenever the file changes.
const TINY_SERVER: &str = r#"
const http = require('http'), crypto = require('crypto'), fs = require('fs');
const page = `<title>tiny</title><p id=m>nothing</p><script>
  const socket = new WebSocket('ws://' + location.host + '/live');
  socket.onmessage = event => { document.getElementById('m').textContent = event.data; };
</script>`;
const server = http.createServer((request, response) => {
  response.setHeader('set-cookie', ['own=1', 'caisson_session=stolen']);
  if (request.url === '/headers') return response.end(JSON.stringify(request.headers));
  response.setHeader('content-type', 'text/html'); response.end(page);
});
server.on('upgrade', (request, socket) => {
  const accept = crypto.createHash('sha1').update(request.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ' + accept + '\r\n\r\n');
  const send = () => { const text = Buffer.from(fs.readFileSync('message.txt', 'utf8').trim()); socket.write(Buffer.concat([Buffer.from([0x81, text.length]), text])); };
  let last = ''; const look = () => { const now = fs.readFileSync('message.txt', 'utf8'); if (now !== last) { last = now; send(); } };
  look(); setInterval(look, 50); socket.on('error', () => {});
});
server.listen(5173, '127.0.0.1');
"#;

/// Notices when a WebSocket of the page has received its first message.
const WATCH_SOCKETS: &str = "globalThis.WebSocket = class extends WebSocket { constructor(...words) { \
    super(...words); this.addEventListener('message', () => { globalThis.isGreeted = true; }); } };";

fn start_tiny(sandbox: &Sandbox<'_>) {
    sandbox.put_file("message.txt", "first");
    sandbox.put_file("tiny.js", TINY_SERVER);
    let _ = sandbox.exec("setsid node tiny.js > tiny.log 2>&1 & echo started");
    wait_until("the server in the sandbox listens", || {
        sandbox.get("ports").json().to_string().contains("5173")
    });
}

fn origin(server: &Server, sandbox: &Sandbox<'_>, port: u16) -> String {
    format!("http://{}-{port}.localhost:{}", sandbox.id, server.port)
}

#[test]
fn dev_server_with_websocket_is_shown_and_cannot_call_the_api() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    let browser = Browser::start();
    let origin = origin(&server, &sandbox, 5173);
    // A page opened too early says so and retries by itself.
    let mut page = browser.open(&origin);
    page.wait_for("the page waits", "document.body.innerText.includes('Nothing listens on port 5173 yet')");
    start_tiny(&sandbox);
    let shows = |text: &str| {
        format!("document.title === 'tiny' && document.getElementById('m').textContent === '{text}'")
    };
    page.wait_for("the page is there", &shows("first"));
    sandbox.put_file("message.txt", "second");
    page.wait_for("the change arrives", &shows("second"));

    let api = format!("http://localhost:{}", server.port);
    let call = |method: &str| {
        format!(
            "fetch('{api}/v1/jobs', {{method: '{method}'}}).then(answer => 'status ' + answer.status, () => 'refused')"
        )
    };
    for method in ["GET", "POST", "DELETE"] {
        assert_eq!(page.evaluate(&call(method)), "refused", "{method}");
    }
    let simple = format!(
        "fetch('{api}/schedule', {{method: 'POST', mode: 'no-cors', headers: {{'content-type': 'text/plain'}}, \
         body: 'mine'}}).then(() => 'sent', () => 'refused')"
    );
    page.evaluate(&simple);
    let socket = format!(
        "new Promise(done => {{ const socket = new WebSocket('ws://localhost:{}/v1/sandboxes/{}/terminal'); \
         socket.onopen = () => done('open'); socket.onerror = () => done('refused'); }})",
        server.port, sandbox.id
    );
    assert_eq!(page.evaluate(&socket), "refused");
    let jobs = server.get("/v1/jobs").expect(200).json();
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(0), "{jobs:#}");
    // The API is not reachable on the job's origin either.
    let own = page.evaluate("fetch('/v1/jobs').then(answer => answer.text())");
    assert!(own.as_str().unwrap().contains("<title>tiny</title>"), "{own}");
}

#[test]
fn job_origins_are_isolated_from_each_other_and_from_cookies() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    start_tiny(&sandbox);
    let host = format!("{}-5173.localhost:{}", sandbox.id, server.port);
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let mut request = server.request(reqwest::Method::GET, path).header("host", &host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        server.send(request)
    };
    let seen = ask("/headers", &[("cookie", "caisson_session=secret; mine=1")]).expect(200);
    assert_eq!((&seen.json()["cookie"], &seen.json()["host"]), (&json!("mine=1"), &json!(host)));
    assert_eq!(seen.header("set-cookie"), "own=1");
    let own = format!("http://{host}");
    ask("/", &[("origin", &own)]).expect(200);
    ask("/", &[("origin", "http://evil.example")]).expect_problem(403, "origin_not_allowed");
    ask("/", &[("origin", &format!("http://localhost:{}", server.port))])
        .expect_problem(403, "origin_not_allowed");
    let nowhere = server.request(reqwest::Method::GET, "/v1/jobs").header("host", "x.localhost");
    server.send(nowhere).expect_problem(404, "origin_not_found");
    let closed = server.request(reqwest::Method::GET, "/").header("host", host.replace("-5173", "-5999"));
    server.send(closed).expect_problem(502, "port_unreachable");
    sandbox.end().expect(204);
    ask("/", &[]).expect_problem(410, "job_over");
}

#[test]
fn the_second_listener_shows_one_thing_at_a_time() {
    let port = free_port();
    let server = server_with(&format!("preview_listen = [\"127.0.0.1:{port}\"]\n"));
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    start_tiny(&sandbox);
    let browser = Browser::start();
    let mut page = browser.open(&format!("http://127.0.0.1:{port}/"));
    page.wait_for("it says what to do", "document.body.innerText.includes('No preview selected')");
    let mut page = browser.open(&format!("http://127.0.0.1:{port}/_caisson/open/{}-5173", sandbox.id));
    page.wait_for(
        "the page is there",
        "document.title === 'tiny' && document.body.innerText.includes('first')",
    );
    sandbox.put_file("message.txt", "again");
    page.wait_for("the change arrives", "document.getElementById('m').textContent === 'again'");
    let api = page.evaluate("fetch('/v1/jobs').then(answer => answer.text())");
    assert!(api.as_str().unwrap().contains("tiny"), "the API is not here: {api}");
}

#[test]
fn vite_project_hot_reloads_on_edit() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default", "egress": "packages"}));
    let made = sandbox
        .post("exec", &json!({"command": "npm create vite@latest site -- --template vanilla < /dev/null && cd site && npm install --no-audit --no-fund", "timeout_s": 300}))
        .expect(200)
        .json();
    assert_eq!(made["exit_code"], 0, "{made:#}");
    sandbox.put_file("site/src/main.js", "document.querySelector('#app').innerHTML = '<h1>one</h1>';\nwindow.kept = window.kept || 1;\nimport.meta.hot.accept();\n");
    let _ = sandbox
        .exec("cd site && (setsid npx vite --port 5173 --strictPort > vite.log 2>&1 &) ; echo started");
    let browser = Browser::start();
    let mut page = browser.open("about:blank");
    page.ask("Page.addScriptToEvaluateOnNewDocument", &json!({"source": WATCH_SOCKETS}));
    page.ask("Page.navigate", &json!({"url": origin(&server, &sandbox, 5173)}));
    page.wait_for("the site is there", "document.querySelector('#app h1')?.textContent === 'one'");
    // Vite sends edits only to pages that are connected, and greets them.
    page.wait_for("Vite has greeted the page", "globalThis.isGreeted === true");
    page.evaluate("window.kept = 'not reloaded'");
    sandbox.put_file("site/src/main.js", "document.querySelector('#app').innerHTML = '<h1>two</h1>';\nwindow.kept = window.kept || 1;\nimport.meta.hot.accept();\n");
    page.wait_for("the edit is there", "document.querySelector('#app h1')?.textContent === 'two'");
    assert_eq!(page.evaluate("window.kept"), "not reloaded", "the page was replaced, not updated");
}
