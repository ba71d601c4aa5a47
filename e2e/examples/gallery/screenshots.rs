//! Screenshots of every view and pane in every look.

use std::path::Path;
use std::time::{Duration, Instant};

use e2e::{Browser, Page, Server, shell};
use reqwest::Method;
use serde_json::{Value, json};

/// Color scheme and window size.
struct Look {
    name: &'static str,
    colours: &'static str,
    width: u32,
    height: u32,
}

const LOOKS: [Look; 4] = [
    Look { name: "light", colours: "light", width: 1400, height: 900 },
    Look { name: "dark", colours: "dark", width: 1400, height: 900 },
    Look { name: "phone", colours: "light", width: 390, height: 844 },
    Look { name: "phone-dark", colours: "dark", width: 390, height: 844 },
];

/// The views: name, URL hash, and the selector that must be present before the screenshot.
fn views(jobs: &Value) -> Vec<(String, String, &'static str)> {
    let id = |name: &str| jobs[name].as_str().unwrap_or_default().to_owned();
    let mut views = vec![
        ("start".to_owned(), "#/".to_owned(), "h1"),
        ("steps".to_owned(), "#/steps".to_owned(), ".cm-content"),
        ("jobs".to_owned(), "#/jobs".to_owned(), ".list"),
        ("server".to_owned(), "#/admin".to_owned(), "section"),
    ];
    for name in ["done", "failed", "hostile", "notebook", "question", "plan", "command", "running"] {
        views.push((format!("job-{name}"), format!("#/jobs/{}", id(name)), ".timeline"));
    }
    views.push(("replay".to_owned(), format!("#/jobs/{}?at=20", id("done")), ".timeline"));
    for (pane, wait) in [
        ("desktop", "canvas"),
        ("terminal", ".xterm-rows"),
        ("files", ".entry"),
        ("notebook", "iframe"),
        ("preview", "iframe"),
        ("network", ".scroll"),
        ("resources", "svg"),
        ("context", ".right"),
    ] {
        views.push((format!("pane-{pane}"), format!("#/jobs/{}/{pane}", id("running")), wait));
    }
    views
}

/// Captures all views whose name starts with `only`.
pub(crate) fn take(folder: &Path, address: &str, jobs: &Value, only: &str) {
    let browser = Browser::start();
    for look in &LOOKS {
        let mut page = browser.open("about:blank");
        apply_look(&mut page, look);
        for (name, hash, wait) in views(jobs).iter().filter(|(name, ..)| name.starts_with(only)) {
            page.ask("Page.navigate", &json!({"url": "about:blank"}));
            page.ask("Page.navigate", &json!({"url": format!("{address}/{hash}")}));
            page.becomes_true_within(
                Duration::from_secs(20),
                &format!("document.querySelector('{wait}') !== null"),
            );
            if name.starts_with("pane-files") {
                page.becomes_true_within(Duration::from_secs(5), "document.querySelector('.entry') !== null");
                page.evaluate("[...document.querySelectorAll('.entry')].find(e => e.textContent.includes('index.html'))?.click()");
            }
            take_screenshot(&mut page, folder, name, look);
        }
    }
}

/// Captures what a server with API keys shows: login, keys, a share link, and the shared view.
pub(crate) fn take_with_keys(folder: &Path) {
    let server = Server::start();
    let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
    let admin = made["secret"].as_str().unwrap_or_default();
    let request = server.request(Method::POST, "/schedule").bearer_auth(admin);
    let steps = json!({"name": "shared", "steps": [shell("echo hello > hello.txt; until [ -e go ]; do sleep 0.1; done")]});
    let job = server.send(request.json(&steps)).expect(202).json();
    for look in &LOOKS {
        let browser = Browser::start();
        let mut page = browser.open(&format!("http://localhost:{}/#/admin", server.port));
        apply_look(&mut page, look);
        page.wait_for("the key is asked for", "document.querySelector('#key') !== null");
        take_screenshot(&mut page, folder, "login", look);
        page.evaluate("document.querySelector('#key').focus()");
        page.type_text(admin);
        page.click("form button");
        page.wait_for("the keys are listed", "document.querySelector('.keys table') !== null");
        take_screenshot(&mut page, folder, "keys", look);
        page.evaluate(&format!(
            "location.hash = '#/jobs/{}/files'",
            job["job_id"].as_str().unwrap_or_default()
        ));
        page.wait_for("the file is listed", "document.querySelector('.entry') !== null");
        page.evaluate("document.querySelector('[aria-label=\"Share files\"]').click()");
        page.evaluate(
            "[...document.querySelectorAll('button')].find(b => b.innerText === 'Create link').click()",
        );
        page.wait_for("the link is there", "document.querySelector('input.link') !== null");
        take_screenshot(&mut page, folder, "share", look);
        let link = page.evaluate("document.querySelector('input.link').value");
        page.ask("Page.navigate", &json!({"url": link}));
        page.wait_for("the view is there", "document.querySelector('.shared .entry') !== null");
        take_screenshot(&mut page, folder, "shared", look);
    }
}

fn take_screenshot(page: &mut Page, folder: &Path, name: &str, look: &Look) {
    settle(page);
    let picture = page.screenshot();
    let file = folder.join(format!("{name}-{}.png", look.name));
    std::fs::write(&file, picture).expect("writing a picture");
    let wide = page.evaluate("document.documentElement.scrollWidth - innerWidth");
    println!(
        "{} {}",
        file.display(),
        if wide.as_i64() > Some(0) { format!("TOO WIDE by {wide}") } else { String::new() }
    );
}

fn apply_look(page: &mut Page, look: &Look) {
    let size = json!({"width": look.width, "height": look.height, "deviceScaleFactor": 1, "mobile": look.width < 500});
    page.ask("Emulation.setDeviceMetricsOverride", &size);
    let media = json!({"features": [{"name": "prefers-color-scheme", "value": look.colours}]});
    page.ask("Emulation.setEmulatedMedia", &media);
}

/// Waits until the page has not changed for a moment, but only a few seconds: some pages never stop changing.
fn settle(page: &mut Page) {
    let deadline = Instant::now() + Duration::from_secs(6);
    let mut seen = (String::new(), Instant::now());
    while Instant::now() < deadline && seen.1.elapsed() < Duration::from_millis(900) {
        let now = page
            .evaluate(
                "document.body.innerText.length + ' ' + performance.getEntriesByType('resource').length",
            )
            .to_string();
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(60));
    }
}
