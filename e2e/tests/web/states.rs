//! States that are not a view of their own, with axe: cards, a menu, the list of keys, a replay, a patch, and a
//! component that cannot be loaded.

use e2e::{Browser, Options, Page, Server};
use model::scripted::ScriptedAnswer;
use serde_json::json;

use crate::everyone::{axe, is_accessible};
use crate::support::{dress, has, key, model_of, open, press, shows, waiting_call};

const PATCH: &str =
    "--- a/app.py\n+++ b/app.py\n@@ -1,2 +1,2 @@\n import os\n-print('red')\n+print('blue')\n";

/// Checks each state in this color scheme and width; nothing may be wider than the window.
#[track_caller]
fn look_at_every_state(colours: &str, width: u32) {
    let call = |name: &str, arguments| ScriptedAnswer::calls(&[(name, arguments)]);
    let (_model, config) = model_of(vec![
        call("plan", json!({"items": [{"text": "paint it"}, {"text": "look at it"}]})),
        call("write_file", json!({"path": "app.py", "content": "import os\nprint('red')\n"})),
        call("apply_patch", json!({"patch": PATCH})),
        waiting_call(),
        call("finish", json!({"summary": "All done."})),
    ]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "colour it", "approve_plan": true}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    dress(&mut page, colours, width);
    page.wait_for("the card is there", &shows("Is this plan good?"));
    page.evaluate(&format!("{}; 0", axe()));
    let look = |page: &mut Page, what: &str| {
        is_accessible(page, &format!("{what} in {colours}, {width} wide"));
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
    page.threw_nothing();
    server.restart();
}

#[test]
fn axe_finds_nothing_serious_in_what_lies_above_and_beside_the_views() {
    look_at_every_state("light", 1300);
}

#[test]
fn axe_finds_nothing_serious_in_what_lies_above_and_beside_the_views_on_a_phone_in_dark() {
    look_at_every_state("dark", 390);
}
