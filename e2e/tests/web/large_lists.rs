//! Large amounts and interruptions: long timelines, long lists, servers that go away.

use e2e::{Browser, Server};
use serde_json::{Value, json};

use crate::page_helpers::{has, open, shows};

const JOBS: usize = 5000;
/// The most DOM elements that a view may have, however long the job is.
const MAX_ELEMENTS: u64 = 1500;

#[test]
fn timeline_of_five_thousand_events_renders_only_visible_rows() {
    let server = Server::start();
    let steps: Vec<Value> = (0..2500)
        .map(|number| json!({"tool": "write_file", "path": "same.txt", "content": format!("n{number}")}))
        .collect();
    let job = server.schedule(&json!({ "steps": steps }));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the timeline is there", &has(".call"));
    page.wait_for("all of it was read", "Number(document.querySelector('#replay')?.max) > 5000");
    let elements = "document.querySelectorAll('*').length";
    assert!(page.evaluate(elements).as_u64().unwrap() < MAX_ELEMENTS, "{}", page.evaluate(elements));
    page.wait_for(
        "the list is as long as its calls",
        "document.querySelector('[data-scroller]').scrollHeight > 100000",
    );
    page.evaluate("document.querySelector('[data-scroller]').scrollTop = 1e9");
    let end =
        "[...document.querySelectorAll('.words.state')].some(line => line.innerText.includes('Complete'))";
    page.wait_for("the end is shown when one scrolls there", end);
    page.evaluate("document.querySelector('[data-scroller]').scrollTop = 60000");
    page.wait_for("the midst too", &format!("document.querySelectorAll('.call').length > 5 && !({end})"));
    assert!(page.evaluate(elements).as_u64().unwrap() < MAX_ELEMENTS, "{}", page.evaluate(elements));
    page.assert_no_exceptions();
}

#[test]
fn timeline_does_not_loop_when_drawing_moves_it() {
    let server = Server::start();
    let mut steps: Vec<Value> = (0..120)
        .map(|number| json!({"tool": "write_file", "path": "same.txt", "content": format!("n{number}")}))
        .collect();
    steps.push(json!({"tool": "shell", "command": "echo waiting; until [ -e go ]; do sleep 0.05; done"}));
    steps.push(json!({"tool": "shell", "command": "echo after"}));
    let job = server.schedule(&json!({ "steps": steps }));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the last call is in sight", &shows("waiting"));
    // Content above the list keeps changing its height: each measurement finds the list at another position.
    page.evaluate(
        "const real = Element.prototype.getBoundingClientRect;
         globalThis.looks = 0;
         Element.prototype.getBoundingClientRect = function () {
           const place = real.call(this);
           if (!this.classList.contains('virtual')) return place;
           looks += 1;
           return new DOMRect(place.x, place.y + (looks % 2 === 0 ? 3000 : 0), place.width, place.height);
         };
         0",
    );
    job.touch("go");
    job.wait_for("complete");
    page.wait_for("the page knows that it is over", "/^complete$/m.test(document.body.innerText)");
    page.wait_for("the list was looked for", "looks > 0");
    assert_eq!(page.evaluate(&shows("The timeline failed")), false);
    page.assert_no_exceptions();
}

#[test]
fn list_of_thousands_of_jobs_renders_only_visible_rows() {
    let server = Server::start();
    let draft = |number: usize| json!({"name": format!("number {number}"), "start": false, "steps": [{"tool": "shell", "command": "true"}]});
    // The first job is the oldest and the last one the newest; the order of the others does not matter.
    server.schedule(&draft(0));
    std::thread::scope(|scope| {
        for part in 0..8 {
            let (server, draft) = (&server, &draft);
            scope.spawn(move || {
                (1..JOBS - 1).skip(part).step_by(8).for_each(|number| drop(server.schedule(&draft(number))));
            });
        }
    });
    server.schedule(&draft(JOBS - 1));
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for("the newest is shown", &shows(&format!("number {}", JOBS - 1)));
    assert!(page.evaluate("document.querySelectorAll('.job').length").as_u64().unwrap() < 80);
    // Keeps scrolling, because the end of the page moves down while there are more jobs.
    page.evaluate(
        "globalThis.down = setInterval(() => scrollTo(0, document.documentElement.scrollHeight), 20); 0",
    );
    page.wait_for("one scrolls to the oldest", "/number 0$/m.test(document.body.innerText)");
    page.evaluate("clearInterval(globalThis.down)");
    assert!(page.evaluate("document.querySelectorAll('.job').length").as_u64().unwrap() < 80);
    page.assert_no_exceptions();
}

#[test]
fn page_recovers_after_the_server_was_killed() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "command": "for n in 1 2 3 4 5 6 7 8; do echo line-$n; sleep 1; done; until [ -e go ]; do sleep 0.05; done"},
        {"tool": "shell", "command": "echo the-very-end"}
    ]}));
    let id = job.id.clone();
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{id}"));
    page.wait_for("it runs", &shows("for n in 1 2"));
    server.kill9();
    page.wait_for("the page says that it is old", &shows("may be out of date"));
    server.restart();
    job.touch("go");
    page.wait_for("the page goes on by itself", &shows("the-very-end"));
    page.wait_for("to the end", &shows("Complete"));
    page.wait_for("it is not called old any more", &format!("!({})", shows("may be out of date")));
    page.act("[...document.querySelectorAll('.line')].find(l => l.innerText.includes('for n in')).click()");
    for line in 1..=8 {
        page.wait_for("no line is missing", &shows(&format!("line-{line}")));
    }
}
