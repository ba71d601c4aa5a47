//! The page without a mouse: leaving widgets that take every key, closing one thing at a time, disabling
//! single-letter shortcuts, and keeping the focus.

use e2e::{Browser, Server};
use serde_json::json;

use crate::page_helpers::{has, key, open, press, set_look, shows, type_keys};

const WAITS: &str = "until [ -e go ]; do sleep 0.05; done";

#[test]
fn f6_leaves_a_terminal_and_an_exited_shell_can_be_restarted() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": WAITS}]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/terminal", job.id));
    set_look(&mut page, "light", 1300);
    let screen = "document.querySelector('.xterm-rows')?.innerText.replaceAll('\\u00a0', ' ')";
    page.wait_for("the shell greets", &format!("{screen}?.includes('$')"));
    page.evaluate("document.querySelector('.xterm-helper-textarea').focus()");
    page.wait_for("the terminal has the keys", "document.activeElement.closest('.xterm') !== null");
    key(&mut page, "F6", "", 0);
    page.wait_for("the head of the pane has them", "document.activeElement.closest('.panehead') !== null");

    let is_dark = "[...document.querySelectorAll('.place *')].some(part => getComputedStyle(part).backgroundColor === 'rgb(12, 17, 19)')";
    assert_eq!(page.evaluate(is_dark), json!(false));
    set_look(&mut page, "dark", 1300);
    page.wait_for("other colours are taken over", is_dark);

    page.evaluate("document.querySelector('.xterm-helper-textarea').focus()");
    type_keys(&mut page, "exit");
    page.wait_for("the shell is over", &shows("The shell exited"));
    press(&mut page, "New shell");
    // The old screen, with what was typed, is shown for a moment longer.
    page.wait_for(
        "another one greets",
        &format!("{screen}?.includes('$') && !{screen}.includes('exit') && !({})", shows("The shell exited")),
    );
    page.evaluate("document.querySelector('.xterm-helper-textarea').focus()");
    type_keys(&mut page, "touch go");
    page.wait_for("it works", &shows("Complete"));
    page.assert_no_exceptions();
}

#[test]
fn escape_closes_the_topmost_layer_and_letter_shortcuts_can_be_disabled() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": "true"}]}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    page.wait_for("the pane is there", &has(".files"));
    page.wait_for("there is a menu", &has("[popovertarget]"));
    page.click("[popovertarget]");
    page.wait_for("the menu is open", &has(":popover-open"));
    key(&mut page, "Escape", "", 0);
    page.wait_for("the menu is closed", &format!("!({})", has(":popover-open")));
    assert_eq!(page.evaluate("location.hash.endsWith('/files')"), json!(true), "the pane is not");
    key(&mut page, "Escape", "", 0);
    page.wait_for("the next one closes the pane", "!location.hash.endsWith('/files')");

    key(&mut page, "?", "?", 0);
    page.wait_for("the keys are listed", "document.querySelector('dialog').open");
    assert_eq!(page.evaluate("document.querySelector('dialog').innerText.includes('F6')"), json!(true));
    page.click("dialog input[type=checkbox]");
    key(&mut page, "Escape", "", 0);
    page.wait_for("the list is closed", "!document.querySelector('dialog').open");
    for letter in ["n", "2", "?"] {
        key(&mut page, letter, letter, 0);
    }
    let is_still = format!("location.hash === '#/jobs/{}' && !document.querySelector('dialog').open", job.id);
    assert_eq!(page.evaluate(&is_still), json!(true), "letters do nothing");
    page.reload();
    page.wait_for("the page is there again", &shows("Complete"));
    key(&mut page, "n", "n", 0);
    assert_eq!(page.evaluate(&is_still), json!(true), "that is kept");
    page.assert_no_exceptions();
}

#[test]
fn reloading_a_preview_keeps_the_focus_and_opens_no_dialog() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "write_file", "path": "other.html", "content": "<title>other</title>"},
        {"tool": "shell", "command": "(python3 -m http.server -b 127.0.0.1 8123 > server.log 2>&1 &); until [ -e go ]; do sleep 0.05; done"}
    ]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/preview", job.id));
    page.wait_for("the page is framed", &has("iframe[src*='-8123.localhost']"));
    let sandbox = page.evaluate("document.querySelector('iframe').getAttribute('sandbox')");
    assert!(!sandbox.as_str().unwrap().contains("allow-modals"), "{sandbox}");
    page.evaluate("document.querySelector('[aria-label=Path]').focus()");
    page.type_text("/other.html");
    key(&mut page, "Enter", "\r", 0);
    page.wait_for("the other page is framed", &has("iframe[src$='/other.html']"));
    let focus = "document.activeElement.getAttribute('aria-label')";
    assert_eq!(page.evaluate(focus), "Path");
    page.evaluate("globalThis.framed = document.querySelector('iframe'); document.querySelector('[aria-label=\"Reload\"]').focus()");
    key(&mut page, "Enter", "\r", 0);
    page.wait_for("it is loaded again", "document.querySelector('iframe') !== globalThis.framed");
    assert_eq!(page.evaluate(focus), "Reload");
    job.touch("go");
    page.assert_no_exceptions();
}
