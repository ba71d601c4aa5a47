//! Accessibility and hostile content: every view with axe in light and dark, the page's CSP, what jobs print.

use e2e::{Browser, Page, Server};
use reqwest::Method;
use serde_json::{Value, json};

use crate::page_helpers::{has, key, open, press, set_look, shows, write};

/// The axe checker, which `npm ci` installs; it is not part of the page.
pub(crate) fn axe() -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../web/node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}; run ./build-web"))
}

/// Panics on violations that block a person who cannot see, point or tell colors apart.
#[track_caller]
pub(crate) fn assert_accessible(page: &mut Page, what: &str) {
    let found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(result => JSON.stringify(result.violations\
         .filter(v => v.impact === 'serious' || v.impact === 'critical')\
         .map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)])))",
    );
    assert_eq!(found, "[]", "{what}");
}

/// Checks every view with axe in this color scheme and width; nothing may be wider than the window.
#[track_caller]
fn check_every_view(colours: &str, width: u32) {
    let server = Server::start();
    let print = "printf '\\033[31mred\\033[32mgreen\\033[33myellow\\033[34mblue\\033[35mmagenta\\033[36mcyan\\033[0m\\n'; echo bad >&2; exit 1";
    let done = server.schedule(&json!({"name": "done", "steps": [
        {"tool": "write_file", "path": "a.py", "content": "import os\n\n\ndef f():\n    return 'text', 3  # why\n"},
        {"tool": "edit_file", "path": "a.py", "old": "3", "new": "4"},
        {"tool": "shell", "command": print}
    ]}));
    done.wait_for("failed");
    let waits = json!({"tool": "shell", "command": "echo x > file.txt; until [ -e go ]; do sleep 0.1; done"});
    let running = server.schedule(&json!({"name": "running", "steps": [waits]}));
    running.follow().until("the command", |event| event.is("call_started"));
    let views = [
        ("#/".to_owned(), "#task"),
        ("#/steps".to_owned(), ".cm-content"),
        ("#/jobs".to_owned(), ".job"),
        ("#/admin".to_owned(), ".checks"),
        (format!("#/jobs/{}", done.id), ".call"),
        (format!("#/jobs/{}/files", done.id), ".entry"),
        (format!("#/jobs/{}/network,context", done.id), ".pane"),
        (format!("#/jobs/{}/terminal,resources", running.id), ".xterm-screen"),
        (format!("#/jobs/{}/files,preview", running.id), ".entry"),
    ];
    let browser = Browser::start();
    let mut page = open(&browser, &server, "");
    set_look(&mut page, colours, width);
    page.wait_for("the page is there", &has("#task"));
    page.evaluate(&format!("{}; 0", axe()));
    for (hash, sign) in &views {
        page.evaluate(&format!("location.hash = {}", json!(hash)));
        page.wait_for(hash, &has(sign));
        if hash.ends_with(&done.id) {
            page.evaluate(
                "document.querySelectorAll('.line[aria-expanded=false]').forEach(line => line.click())",
            );
            page.wait_for("the change is shown", &has(".added"));
        }
        if hash == "#/" {
            page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })");
        }
        assert_accessible(&mut page, &format!("{hash} in {colours}, {width} wide"));
        let fits = page.evaluate("document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(fits, true, "{hash} is too wide at {width}");
    }
    page.assert_no_exceptions();
    running.put_file("go", "").expect(200);
}

#[test]
fn views_are_accessible_in_light_mode() {
    check_every_view("light", 1300);
}

#[test]
fn views_are_accessible_in_dark_mode() {
    check_every_view("dark", 1300);
}

#[test]
fn views_are_accessible_on_a_phone() {
    check_every_view("light", 390);
}

#[test]
fn views_are_accessible_on_a_phone_in_dark_mode() {
    check_every_view("dark", 390);
}

/// Checks the views of a server with API keys with axe: login, keys, a share link, and the shared view.
#[track_caller]
fn check_views_with_keys(colours: &str, width: u32) {
    let server = Server::start();
    let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
    let admin = made["secret"].as_str().unwrap();
    let request = server.request(Method::POST, "/schedule").bearer_auth(admin);
    let steps = json!({"steps": [{"tool": "shell", "command": "echo x > file.txt; until [ -e go ]; do sleep 0.1; done"}]});
    let job = server.send(request.json(&steps)).expect(202).json();
    let id = job["job_id"].as_str().unwrap().to_owned();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/admin");
    set_look(&mut page, colours, width);
    let look = |page: &mut Page, what: &str| {
        page.evaluate(&format!("{}; 0", axe()));
        assert_accessible(page, &format!("{what} in {colours}, {width} wide"));
        let fits = page.evaluate("document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(fits, true, "{what} is too wide at {width}");
    };
    page.wait_for("the key is asked for", &has("#key"));
    look(&mut page, "login");
    write(&mut page, "#key", admin);
    press(&mut page, "Log in");
    page.wait_for("the keys are listed", &has(".keys table"));
    page.wait_for("usage is told by key", "document.querySelector('.own')?.innerText.includes('root')");
    page.wait_for("the backend is named", &shows("Backend: Linux namespaces on this host"));
    look(&mut page, "the server with keys");
    page.evaluate(&format!("location.hash = '#/jobs/{id}/files'"));
    page.wait_for("the file is listed", &shows("file.txt"));
    press(&mut page, "Share");
    page.wait_for("the link can be made", "document.querySelector('[popover]:popover-open') !== null");
    press(&mut page, "Create link");
    page.wait_for("it is there", &has("input.link"));
    look(&mut page, "a link to share");
    let link = page.evaluate("document.querySelector('input.link').value");
    let guest = Browser::start();
    let mut shared = guest.open(link.as_str().unwrap());
    set_look(&mut shared, colours, width);
    shared.wait_for("the guest sees the files", &shows("file.txt"));
    look(&mut shared, "a shared view");
    page.assert_no_exceptions();
    shared.assert_no_exceptions();
}

#[test]
fn views_with_api_keys_are_accessible() {
    check_views_with_keys("light", 1300);
}

#[test]
fn views_with_api_keys_are_accessible_on_a_phone_in_dark_mode() {
    check_views_with_keys("dark", 390);
}

#[test]
fn keyboard_shortcuts_reach_every_view_and_are_listed() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": "true"}]}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for("the list is there", &has(".job"));
    key(&mut page, "?", "?", 0);
    page.wait_for("the keys are listed", "document.querySelector('dialog').open");
    key(&mut page, "Escape", "", 0);
    page.wait_for("and closed", "!document.querySelector('dialog').open");
    key(&mut page, "/", "/", 0);
    page.wait_for("the search has the focus", "document.activeElement.id === 'search'");
    page.evaluate(&format!("document.activeElement.blur(); location.hash = '#/jobs/{}'", job.id));
    page.wait_for("the job is there", &has(".call"));
    key(&mut page, "1", "1", 0);
    page.wait_for("the first pane is open", "location.hash.endsWith('/files')");
    // Does not wait for the pane itself: a key pressed right after the navigation must already find it open.
    key(&mut page, "Escape", "", 0);
    page.wait_for("all panes are closed", "!location.hash.endsWith('/files')");
    key(&mut page, "n", "n", 0);
    page.wait_for("a new job", &has("#task"));
    page.assert_no_exceptions();
}

#[test]
fn output_of_a_hostile_job_is_shown_as_text() {
    let server = Server::start();
    let hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    let command =
        format!("echo '{}'; head -c 1000000 /dev/zero | tr '\\0' x; exit 3", hostile.replace('\'', "'\\''"));
    let job = server.schedule(&json!({"name": hostile, "steps": [{"tool": "shell", "command": command}]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the end is shown", &shows("Failed"));
    page.wait_for("the name is text", &shows("onerror"));
    press(&mut page, "Show more");
    page.wait_for(
        "as much as is kept is there",
        "document.querySelector('.call pre[aria-label=Output]').innerText.length > 200000",
    );
    assert_eq!(page.evaluate("document.querySelectorAll('main img, main script').length"), 0);
    page.evaluate("location.hash = '#/jobs'");
    page.wait_for(
        "the list shows it as text",
        "document.querySelector('.job .title')?.innerText.includes('onerror')",
    );
    assert_eq!(page.evaluate("document.querySelectorAll('main img, main script').length"), 0);
    assert!(!page.evaluate("document.title").as_str().unwrap().contains("owned"));
    page.assert_no_exceptions();
}

#[test]
fn csp_blocks_foreign_and_inline_scripts() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for("the page is there", &shows("No jobs yet"));
    page.evaluate(
        "globalThis.refused = []; document.addEventListener('securitypolicyviolation', event => refused.push(event.violatedDirective));\
         const inline = document.createElement('script'); inline.textContent = 'globalThis.owned = 1'; document.body.append(inline);\
         const link = document.createElement('a'); link.href = 'javascript:globalThis.owned = 2'; document.body.append(link); link.click();\
         const picture = new Image(); picture.src = 'http://127.0.0.1:9/x.png';\
         fetch('http://127.0.0.1:9/').catch(() => 0); 0",
    );
    page.wait_for("all were refused", "new Set(refused.map(r => r.split('-')[0])).size >= 3");
    assert_eq!(page.evaluate("globalThis.owned === undefined"), true);
    let sources =
        page.evaluate("performance.getEntriesByType('resource').map(entry => new URL(entry.name).host)");
    let foreign = sources
        .as_array()
        .unwrap()
        .iter()
        .filter(|host| **host != json!(format!("localhost:{}", server.port)));
    // The two requests tried above are not among them: the browser never sent them.
    assert_eq!(foreign.filter(|host| **host != "127.0.0.1:9").collect::<Vec<&Value>>(), Vec::<&Value>::new());
}
