//! States that are not a view of their own, with axe: cards, a menu, the list of keys, a replay, a patch, and a
//! component that cannot be loaded.

use e2e::{Browser, Options, Page, Server};
use model::scripted::ScriptedAnswer;
use serde_json::json;

use crate::accessibility::{assert_accessible, axe};
use crate::page_helpers::{has, key, model_of, open, press, set_look, shows, waiting_answer};

const PATCH: &str =
    "--- a/app.py\n+++ b/app.py\n@@ -1,2 +1,2 @@\n import os\n-print('red')\n+print('blue')\n";

/// Checks each state in this color scheme and width; nothing may be wider than the window.
#[track_caller]
fn check_every_state(colours: &str, width: u32) {
    let call = |name: &str, arguments| ScriptedAnswer::calls(&[(name, arguments)]);
    let (_model, config) = model_of(vec![
        call("plan", json!({"items": [{"text": "paint it"}, {"text": "look at it"}]})),
        call("write_file", json!({"path": "app.py", "content": "import os\nprint('red')\n"})),
        call("apply_patch", json!({"patch": PATCH})),
        waiting_answer(),
        ScriptedAnswer::calls(&[
            (
                "plan",
                json!({"items": [{"text": "paint it", "status": "done"}, {"text": "look at it", "status": "done"}]}),
            ),
            ("finish", json!({"summary": "All done."})),
        ]),
    ]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "colour it", "approve_plan": true}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    set_look(&mut page, colours, width);
    page.wait_for("the card is there", &shows("Accept this plan?"));
    page.evaluate(&format!("{}; 0", axe()));
    let look = |page: &mut Page, what: &str| {
        assert_accessible(page, &format!("{what} in {colours}, {width} wide"));
        let fits = page.evaluate("document.documentElement.scrollWidth <= innerWidth");
        assert_eq!(fits, true, "{what} is too wide at {width}");
    };
    look(&mut page, "a card");
    page.click("[popovertarget]");
    page.wait_for("the menu is open", &has(":popover-open"));
    look(&mut page, "a menu");
    page.evaluate("document.querySelector(':popover-open').hidePopover()");
    key(&mut page, "?", "?", 0);
    page.wait_for("the keys are listed", "document.querySelector('dialog').open");
    look(&mut page, "the list of keys");
    key(&mut page, "Escape", "", 0);
    page.wait_for("and closed", "!document.querySelector('dialog').open");
    press(&mut page, "Accept");
    page.wait_for("it works", &shows("began"));
    page.act("[...document.querySelectorAll('.call .line')].find(line => line.innerText.includes('apply_patch')).click()");
    for (class, line) in [("removed", "print('red')"), ("added", "print('blue')")] {
        page.wait_for(
            &format!("the {class} line of the patch is shown"),
            &format!("document.querySelector('.call .file .{class}')?.innerText.includes({})", json!(line)),
        );
    }
    page.wait_for("in colours", &has(".call .file .added .tok-string"));
    look(&mut page, "a patch");
    let events = job.get("events?format=json&limit=1000").expect(200).json();
    let last = events["events"].as_array().unwrap().last().unwrap()["sequence"].as_u64().unwrap();
    page.evaluate(&format!("location.hash = '#/jobs/{}/files?at={}'", job.id, last - 1));
    press(&mut page, "app.py");
    page.wait_for("the file of then is shown", &has(".viewer pre"));
    look(&mut page, "a replay");
    job.touch("go");
    job.wait_for("complete");
    server.kill9();
    page.evaluate("location.hash = '#/admin'");
    page.wait_for("a part is missing", &shows("This part of the page cannot be loaded"));
    page.wait_for("so is the server", &has(".stale"));
    look(&mut page, "a part that cannot be loaded");
    page.assert_no_exceptions();
    server.restart();
}

#[test]
fn overlays_and_dialogs_are_accessible() {
    check_every_state("light", 1300);
}

#[test]
fn overlays_and_dialogs_are_accessible_on_a_phone_in_dark_mode() {
    check_every_state("dark", 390);
}
