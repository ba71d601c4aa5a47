//! Helpers for tests of the page: finding, pressing and typing.

use std::path::Path;

use e2e::{Browser, Page, Server, wait_until};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::json;

/// A model that gives these answers, one per turn, and the configuration that selects it.
pub(crate) fn model_of(answers: Vec<ScriptedAnswer>) -> (ScriptedServer, String) {
    let script = Script { order: Order::Turns, ..Script::of(answers) };
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let config = format!("[model]\nname = \"http://{}/v1\"\n", model.address());
    (model, config)
}

/// An answer that prints `began` and waits until the job has a file `go`.
pub(crate) fn waiting_answer() -> ScriptedAnswer {
    let command = "echo began; until [ -e go ]; do sleep 0.05; done";
    ScriptedAnswer::calls(&[("shell", json!({"command": command, "wait_s": 300}))])
}

/// Opens a view of the page by its hash.
pub(crate) fn open(browser: &Browser, server: &Server, hash: &str) -> Page {
    browser.open(&format!("http://localhost:{}/{hash}", server.port))
}

/// A JavaScript expression: the button or link whose text starts with this.
fn named(text: &str) -> String {
    format!(
        "[...document.querySelectorAll('button, a')].find(b => b.textContent.trim().startsWith({}))",
        json!(text)
    )
}

/// Presses the button or link with this text.
#[track_caller]
pub(crate) fn press(page: &mut Page, text: &str) {
    let button = named(text);
    let is_ready = format!("!{button}.disabled && {button}.getAttribute('aria-disabled') !== 'true'");
    let is_there = format!("{button} !== undefined && {is_ready}");
    // A button that has been replaced or disabled since the last look is not pressed: the click would be lost.
    let press = format!("{is_there} && ({button}.click(), true)");
    loop {
        page.wait_for(&format!("there is {text}"), &is_there);
        if page.act(&press) == true {
            return;
        }
    }
}

/// A JavaScript expression: the page shows this text.
pub(crate) fn shows(text: &str) -> String {
    format!("document.body.innerText.includes({})", json!(text))
}

/// A JavaScript expression: there is such an element.
pub(crate) fn has(selector: &str) -> String {
    format!("document.querySelector({}) !== null", json!(selector))
}

/// Fills a field as a person does.
#[track_caller]
pub(crate) fn write(page: &mut Page, selector: &str, text: &str) {
    page.wait_for(&format!("there is {selector}"), &has(selector));
    page.evaluate(&format!("document.querySelector({}).focus()", json!(selector)));
    page.type_text(text);
}

/// Types characters key by key and presses Enter.
pub(crate) fn type_keys(page: &mut Page, text: &str) {
    for letter in text.chars() {
        key(page, &letter.to_string(), &letter.to_string(), 0);
    }
    key(page, "Enter", "\r", 0);
}

/// Presses and releases one key.
pub(crate) fn key(page: &mut Page, name: &str, text: &str, modifiers: u32) {
    let code = match name {
        "Enter" => 13,
        "Escape" => 27,
        "F6" => 117,
        // The key codes of symbols differ by keyboard layout; the character alone is enough.
        _ => name
            .chars()
            .next()
            .filter(char::is_ascii_alphanumeric)
            .map_or(0, |letter| letter.to_ascii_uppercase() as u32),
    };
    let mut event =
        json!({"type": "keyDown", "key": name, "windowsVirtualKeyCode": code, "modifiers": modifiers});
    if modifiers == 0 && !text.is_empty() {
        event["text"] = json!(text);
    }
    page.ask("Input.dispatchKeyEvent", &event);
    event["type"] = json!("keyUp");
    page.ask("Input.dispatchKeyEvent", &event);
}

/// Sets the page's color scheme and width.
pub(crate) fn set_look(page: &mut Page, colours: &str, width: u32) {
    let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
    page.ask("Emulation.setDeviceMetricsOverride", &size);
    let media = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
    page.ask("Emulation.setEmulatedMedia", &media);
}

/// Holds back responses to matching requests until [`release_responses`]; they wait in `globalThis.held`.
pub(crate) fn hold_back_responses(page: &mut Page, method: &str, part: &str) {
    page.evaluate(&format!(
        "globalThis.held = []; globalThis.isHeld = true; globalThis.own ??= globalThis.fetch; globalThis.fetch = async (path, rest) => {{ \
           const answer = await own(path, rest); \
           if (isHeld && String(path).includes({}) && (rest?.method ?? 'GET') === {}) await new Promise(done => held.push(done)); \
           return answer; }}; 0",
        json!(part),
        json!(method)
    ));
}

/// Releases the responses that were held back, and holds back no more.
pub(crate) fn release_responses(page: &mut Page) {
    page.evaluate("globalThis.isHeld = false; globalThis.fetch = own; held.forEach(go => go()); 0");
}

/// Chooses files as a person does in the browser's file dialog.
#[track_caller]
pub(crate) fn choose_files(page: &mut Page, selector: &str, files: &[&Path]) {
    let document = page.ask("DOM.getDocument", &json!({"depth": 0}));
    let found =
        page.ask("DOM.querySelector", &json!({"nodeId": document["root"]["nodeId"], "selector": selector}));
    assert_ne!(found["nodeId"], 0, "there is no {selector}");
    page.ask("DOM.setFileInputFiles", &json!({"nodeId": found["nodeId"], "files": files}));
}

/// Waits until a download is complete and returns its content.
pub(crate) fn wait_for_download(folder: &Path, name: &str) -> Vec<u8> {
    let file = folder.join(name);
    let is_partial = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|ending| ending == "crdownload"))
    };
    wait_until(&format!("{name} was downloaded"), || {
        file.exists() && !std::fs::read_dir(folder).is_ok_and(|mut inside| inside.any(is_partial))
    });
    std::fs::read(file).unwrap()
}
