//! Arranging panes: in the order of opening, moved, resized, by the keyboard; and what the resources pane shows.

use e2e::{Browser, Server, wait_until};
use serde_json::json;

use crate::page_helpers::{has, open, press, shows};

const WAITS: &str = "echo shown; until [ -e go ]; do sleep 0.05; done";

#[test]
fn panes_open_in_order_and_can_be_moved_and_resized() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": WAITS}]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the job is there", &shows("shown"));
    press(&mut page, "Network");
    page.wait_for("one pane is open", "document.querySelectorAll('.pane').length === 1");
    page.act("document.querySelector('[aria-label=\"Add Files\"]').click()");
    page.wait_for("two are", "document.querySelectorAll('.pane').length === 2");
    // Resources is the seventh pane; Shift adds it to the open ones.
    let digit =
        json!({"type": "keyDown", "key": "&", "code": "Digit7", "windowsVirtualKeyCode": 55, "modifiers": 8});
    page.ask("Input.dispatchKeyEvent", &digit);
    let order = |names: &[&str]| {
        format!(
            "[...document.querySelectorAll('.pane')].map(p => p.ariaLabel).join() === {}",
            json!(names.join(","))
        )
    };
    page.wait_for("they stand as they were chosen", &order(&["Network", "Files", "Resources"]));
    page.act("document.querySelector('[aria-label=\"Move Files up\"]').click()");
    page.wait_for("one was moved", &order(&["Files", "Network", "Resources"]));
    let height = "document.querySelector('.pane').offsetHeight";
    let before = page.evaluate(height).as_u64().unwrap();
    page.evaluate(
        "(() => { const line = document.querySelector('[aria-label=\"Height of Files\"]'); line.focus(); \
         for (let n = 0; n < 4; n += 1) line.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true})); })()",
    );
    page.wait_for("it is higher", &format!("{height} > {}", before + 10));
    page.reload();
    page.wait_for("all is kept in the address", &order(&["Files", "Network", "Resources"]));
    page.wait_for("and in the browser", &format!("{height} > {}", before + 10));

    let charts = "document.querySelector('[aria-label^=\"Processes: \"]')?.ariaLabel";
    page.wait_for(
        "resources tells how many processes there are",
        &format!("Number({charts}?.slice(11)) >= 1"),
    );
    page.wait_for(
        "and draws a line",
        "document.querySelector('.charts .line')?.getAttribute('d').includes('L')",
    );
    page.act("document.querySelector('[aria-label=\"Close Resources\"]').click()");
    page.wait_for("it was closed", &format!("!({})", has(".charts")));
    page.act("document.querySelector('[aria-label=\"Add Resources\"]').click()");
    page.wait_for(
        "what it knew is there at once",
        "document.querySelector('.charts .line')?.getAttribute('d').includes('L')",
    );
    wait_until("the server has recorded something", || {
        let history = job.get("stats/history").expect(200).json();
        history["samples"].as_array().is_some_and(|samples| !samples.is_empty())
    });
    job.touch("go");
    page.wait_for("the job is over", &shows("Complete"));
    page.reload();
    page.wait_for("resources are shown after the end", &format!("Number({charts}?.slice(11)) >= 1"));
    let limits = "document.querySelectorAll('.charts .limit').length";
    page.wait_for("with their limits", &format!("{limits} === 4"));
    page.assert_no_exceptions();
}
