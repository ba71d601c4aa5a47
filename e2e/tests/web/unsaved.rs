//! Unsaved edits: they are not lost, and saving does not silently overwrite changes that others made meanwhile.

use e2e::{Browser, Server};
use serde_json::json;

use crate::page_helpers::{has, key, open, press, shows, write};

const WAITS: &str = "until [ -e go ]; do sleep 0.05; done";

/// Whether the browser would ask before leaving the page.
const WOULD_ASK: &str = "(() => { const event = new Event('beforeunload', {cancelable: true}); \
    dispatchEvent(event); return event.defaultPrevented; })()";

#[test]
fn unsaved_edits_survive_closing_the_pane_and_do_not_overwrite_others() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "write_file", "path": "notes.txt", "content": "the first\n"},
        {"tool": "shell", "command": WAITS}
    ]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    let editor = |text: &str| {
        format!("document.querySelector('.viewer .cm-content')?.innerText.includes({})", json!(text))
    };
    press(&mut page, "notes.txt");
    page.wait_for("the file is there", &editor("the first"));
    assert_eq!(page.evaluate(WOULD_ASK), json!(false));
    write(&mut page, ".viewer .cm-content", "mine ");
    page.wait_for("it counts as changed", &shows("changed"));
    press(&mut page, "Network");
    page.wait_for("the pane is gone", &format!("!({})", has(".files")));
    page.evaluate("location.hash = '#/jobs'");
    page.wait_for("another view is shown", &has(".job"));
    assert_eq!(page.evaluate(WOULD_ASK), json!(true), "the browser asks before the page goes");
    page.evaluate(&format!("location.hash = '#/jobs/{}/files'", job.id));
    page.wait_for("what was written is still there", &editor("mine the first"));
    page.wait_for("and still counts as changed", &has(".viewer .badge.wait"));

    job.put_file("notes.txt", "theirs\n").expect(200);
    page.evaluate("globalThis.asked = []; window.confirm = (text) => { asked.push(text); return false; }; 0");
    page.evaluate("document.querySelector('.viewer .cm-content').focus()");
    key(&mut page, "s", "", 2);
    page.wait_for("it is asked", "asked.length === 1 && asked[0].includes('since you opened it')");
    assert_eq!(job.get_file("notes.txt").expect(200).text(), "theirs\n");
    page.evaluate("window.confirm = (text) => { asked.push(text); return true; }; 0");
    key(&mut page, "s", "", 2);
    page.wait_for(
        "it was saved",
        "asked.length === 2 && document.querySelector('.viewer .badge.wait') === null",
    );
    assert_eq!(job.get_file("notes.txt").expect(200).text(), "mine the first\n");
    assert_eq!(page.evaluate(WOULD_ASK), json!(false));

    page.evaluate("document.querySelector('.viewer .cm-content').focus()");
    write(&mut page, ".viewer .cm-content", "more ");
    page.wait_for("it counts as changed again", &has(".viewer .badge.wait"));
    press(&mut page, "Discard");
    page.wait_for(
        "it is thrown away",
        &format!("document.querySelector('.viewer .badge.wait') === null && !({})", editor("more ")),
    );
    job.touch("go");
    page.assert_no_exceptions();
}
