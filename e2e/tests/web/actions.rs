//! Job actions by the buttons of the page.

use e2e::{Browser, ExternalServer, Options, Page, Server, respond};
use model::scripted::ScriptedAnswer;
use serde_json::json;

use crate::page_helpers::{has, model_of, open, press, shows, wait_for_download};

const WAITS: &str = "until [ -e go ]; do sleep 0.05; done";

/// Opens the menu of the view's only job and chooses an entry.
#[track_caller]
fn choose(page: &mut Page, text: &str) {
    page.wait_for("there is a menu", &has("[popovertarget]"));
    page.act("document.querySelector('[popovertarget]').click()");
    press(page, text);
}

#[test]
fn page_extends_cancels_and_retries_a_job() {
    let server = Server::start();
    let second = "until [ -e go-on ]; do sleep 0.05; done";
    let job = server.schedule(
        &json!({"name": "long", "steps": [{"tool": "shell", "command": WAITS}, {"tool": "shell", "command": second}]}),
    );
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it runs", &shows("until [ -e go ]"));
    page.wait_for("the countdown is there", &shows("of 60 min"));
    press(&mut page, "Extend");
    page.wait_for("the menu is open", &has(":popover-open"));
    press(&mut page, "Add 1 hour");
    page.wait_for("the countdown has the new limit", &shows("of 2 h"));
    page.wait_for("the menu is closed", &format!("!({})", has(":popover-open")));
    choose(&mut page, "Cancel");
    page.wait_for("it ends", &shows("Cancelled"));
    assert_eq!(job.wait()["status"], "cancelled");
    choose(&mut page, "Run again");
    page.wait_for(
        "another one is shown",
        &format!("!location.hash.includes({}) && {}", json!(job.id), shows("until [ -e go ]")),
    );
    let again = page.evaluate("location.hash.slice(7, 43)");
    let again = server.job(again.as_str().unwrap());
    page.evaluate(
        "globalThis.own = fetch; globalThis.fetch = async (path, rest) => { const answer = await own(path, rest); \
         if (String(path).endsWith('/pause')) globalThis.wasTold = answer.ok; return answer; }; 0",
    );
    press(&mut page, "Pause");
    page.wait_for("the server knows it", "globalThis.wasTold === true");
    // The job pauses between two steps.
    again.touch("go");
    page.wait_for("it waits", &has(".badge.wait"));
    press(&mut page, "Resume");
    page.wait_for("it goes on", &has(".badge.work"));
    again.touch("go-on");
    page.wait_for("to the end", &shows("Complete"));
    page.assert_no_exceptions();
}

#[test]
fn page_downloads_the_output_of_a_job() {
    let server = Server::start();
    let job = server
        .schedule(&json!({"steps": [{"tool": "write_file", "path": "made.txt", "content": "by the job"}]}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the zip is offered", &has("[aria-label=Result] a[download]"));
    let down = tempfile::tempdir().unwrap();
    page.ask("Browser.setDownloadBehavior", &json!({"behavior": "allow", "downloadPath": down.path()}));
    page.click("[aria-label=Result] a[download]");
    let zip = wait_for_download(down.path(), "output.zip");
    assert!(zip.starts_with(b"PK") && zip.windows(8).any(|part| part == b"made.txt"));
    page.assert_no_exceptions();
}

#[test]
fn page_continues_an_agent_with_a_doubled_budget() {
    let call = |name: &str, arguments| ScriptedAnswer::calls(&[(name, arguments)]);
    let answers = vec![
        call("shell", json!({"command": "echo one"})),
        call("shell", json!({"command": "echo two"})),
        call("finish", json!({"summary": "Enough now."})),
    ];
    let (_model, config) = model_of(answers);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job =
        server.schedule(&json!({"task": "spend", "budget": {"turns": 2, "tool_calls": 50, "wall_s": 3600}}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it has stopped", &shows("budget reached"));
    for gauge in ["Turns of the budget", "Calls of the budget", "Work of the budget"] {
        page.wait_for(gauge, &has(&format!("[role=meter][aria-label='{gauge}']")));
    }
    press(&mut page, "Double the budget (turns: 4) and resume");
    page.wait_for("it goes on to its end", &shows("Enough now."));
    page.wait_for("the new budget is shown", &shows("of 4"));
    page.wait_for("what was not used up is as it was", &shows("of 50"));
    assert_eq!(job.wait()["status"], "complete");
    page.assert_no_exceptions();
}

#[test]
fn waiting_connection_is_marked_in_the_list_and_allowed_in_the_network_pane() {
    let outside = ExternalServer::http(|_, client| respond(client, b"hello"));
    let config = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n".into();
    let server = Server::start_with(Options { config, ..Options::default() });
    let command = format!(
        "until curl -sS -m 20 -f --noproxy '' http://localhost:{}/ > got; do sleep 0.1; done",
        outside.port
    );
    let job = server.schedule(&json!({
        "name": "asks", "egress": {"allow": ["example.org"]}, "steps": [{"tool": "shell", "command": command}],
    }));
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for(
        "the list says that somebody is waited for",
        "document.querySelector('.job .badge.wait')?.innerText === 'needs you'",
    );
    page.evaluate(&format!("location.hash = '#/jobs/{}/network'", job.id));
    page.wait_for(
        "the pane offers it above what was",
        "document.querySelector('.asks .line button.first:not([aria-disabled=true])')?.innerText === 'Allow'",
    );
    page.wait_for(
        "it is said to wait",
        "document.querySelector('.asks .badge.wait')?.innerText === 'waiting'",
    );
    page.act("document.querySelector('.asks .line button.first').click()");
    page.wait_for("the job goes on to its end", &shows("Complete"));
    assert_eq!(job.output().text("got"), "hello");
    page.evaluate("location.hash = '#/jobs'");
    page.wait_for(
        "nobody is waited for any more",
        "document.querySelector('.job .badge')?.innerText === 'complete'",
    );
    page.assert_no_exceptions();
}
