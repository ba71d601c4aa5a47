//! A server that is gone, hangs, refuses or is not ready: the page says so, and continues when it can.

use e2e::{Browser, Options, Server};
use model::scripted::ScriptedAnswer;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::page_helpers::{has, hold_back_responses, model_of, open, press, release_responses, shows, write};

#[test]
fn view_that_fails_to_load_is_reported_and_loaded_later() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "");
    page.wait_for("the page is there", &has("#task"));
    server.kill9();
    page.evaluate("location.hash = '#/jobs'");
    page.wait_for("it is said", &shows("This part of the page cannot be loaded"));
    page.wait_for("and what can be done", &shows("Reload the page"));
    server.restart();
    page.wait_for("the list comes by itself", &shows("No jobs yet"));
    page.assert_no_exceptions();
}

#[test]
fn hanging_server_is_shown_as_unresponsive() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for("the list is there", &shows("No jobs yet"));
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    page.wait_for("it is said", &has(".stale"));
    kill_process(pid, Signal::CONT).unwrap();
    page.wait_for("and not any more", &format!("!({})", has(".stale")));
    page.wait_for("the list goes on", &format!("!({})", shows("may be out of date")));
    page.assert_no_exceptions();
}

#[test]
fn unready_server_shows_its_reason_and_failed_queries_are_retried() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "");
    page.wait_for("the page is there", &has("#task"));
    page.evaluate(
        "globalThis.own = fetch; globalThis.failed = new Set(); globalThis.fetch = (path, rest) => { \
           if (path === '/readyz') return Promise.resolve(new Response(JSON.stringify({ready: false, problems: ['the disk is full'], running: 0, queued: 0}), {status: 503})); \
           if (['/v1/models', '/v1/images', '/v1/doctor', '/v1/defaults'].includes(path) && !failed.has(path)) { failed.add(path); return Promise.reject(new TypeError('gone')); } \
           return own(path, rest); }; location.hash = '#/admin'; 0",
    );
    page.wait_for("it says why", &format!("{} && {}", shows("not ready"), shows("the disk is full")));
    page.wait_for("all were asked", "failed.size === 4");
    page.wait_for(
        "all are answered at last",
        &format!(
            "{} && {} && {} && !({})",
            shows("Defaults for jobs"),
            shows("The default image is not built yet"),
            has(".checks li"),
            has("p.problem code")
        ),
    );
    page.assert_no_exceptions();
}

#[test]
fn malformed_job_id_is_refused_once_with_the_servers_message() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs/abc");
    page.wait_for("it is said", &shows("This job cannot be shown."));
    assert_eq!(page.evaluate(&shows("reconnecting")), json!(false));
    page.assert_no_exceptions();
}

#[test]
fn failed_logout_is_reported_and_a_failed_login_is_shown_once() {
    let server = Server::start();
    let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
    let browser = Browser::start();
    let mut page =
        browser.open(&format!("http://localhost:{}/?login_problem=Anybody%27s%20words#/jobs", server.port));
    page.wait_for("one may log in", &shows("This server requires an API key"));
    assert_eq!(page.evaluate(&shows("Anybody")), json!(false), "an address says nothing here");
    page.evaluate("document.cookie = 'caisson_login_problem=The%20door%20is%20shut; Path=/'");
    let mut page = browser.open(&format!("http://localhost:{}/#/jobs", server.port));
    page.wait_for("it is told", &shows("The door is shut"));
    assert_eq!(page.evaluate("document.cookie"), "");
    write(&mut page, "#key", made["secret"].as_str().unwrap());
    press(&mut page, "Log in");
    page.wait_for("one is in", &shows("No jobs yet"));
    page.evaluate("globalThis.own = fetch; globalThis.fetch = (path, rest) => rest?.method === 'DELETE' ? Promise.reject(new TypeError('gone')) : own(path, rest); 0");
    press(&mut page, "Log out");
    page.wait_for("it is told too", &shows("You are still logged in. The server does not answer."));
    page.assert_no_exceptions();
}

#[test]
fn page_works_without_browser_storage() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": "true"}]}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = browser.open("about:blank");
    let script = "for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, \
        {get: () => { throw new DOMException('denied', 'SecurityError'); }});";
    page.ask("Page.addScriptToEvaluateOnNewDocument", &json!({"source": script}));
    page.ask("Page.navigate", &json!({"url": format!("http://localhost:{}/#/jobs/{}", server.port, job.id)}));
    page.wait_for("the job is shown", &shows("Complete"));
    page.act("document.querySelector('[title^=\"Colors\"]').click()");
    page.wait_for("its colours can be chosen", "document.documentElement.dataset.theme === 'light'");
    page.assert_no_exceptions();
}

#[test]
fn late_context_response_is_not_shown_for_another_time() {
    let call = |command: &str| ScriptedAnswer::calls(&[("shell", json!({"command": command}))]);
    let finish = ScriptedAnswer::calls(&[("finish", json!({"summary": "Seen."}))]);
    let (_model, config) = model_of(vec![call("echo one"), call("echo two"), call("echo three"), finish]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "look"}));
    let mut events = job.follow();
    events.until_end();
    let middle = events.events.iter().find(|event| event.is("model_answered")).unwrap().sequence;
    let first = events.events.iter().find(|event| event.is("turn_started")).unwrap().sequence;
    let second = events.events.iter().filter(|event| event.is("turn_started")).nth(1).unwrap().sequence;
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/context", job.id));
    let segments = "document.querySelectorAll('.strip span').length";
    page.wait_for("the window is shown", &format!("{segments} > 1"));
    let now = page.evaluate(segments);
    hold_back_responses(&mut page, "GET", &format!("context?at={first}"));
    page.evaluate(&format!("location.hash = '#/jobs/{}/context?at={middle}'", job.id));
    page.wait_for("another time is asked for", "globalThis.held.length > 0");
    page.wait_for(
        "the gauge leads to the window of that time",
        &format!(
            "document.querySelector('dd a')?.getAttribute('href') === '#/jobs/{}/context?at={middle}'",
            job.id
        ),
    );
    press(&mut page, "Back to the end");
    page.wait_for("one is back", "!document.querySelector('.replay').innerText.includes('Back to the end')");
    release_responses(&mut page);
    // One more round trip: a late response would have been processed by now.
    page.evaluate("fetch('/healthz').then(() => new Promise(done => setTimeout(done)))");
    assert_eq!(page.evaluate(segments), now);
    // If the context of one point in time cannot be loaded, that of another one is not shown instead.
    page.evaluate(
        &format!("globalThis.fetch = (path, rest) => String(path).endsWith('context?at={second}') \
         ? Promise.resolve(new Response(JSON.stringify({{code: 'x', detail: 'not any more'}}), {{status: 404}})) : own(path, rest); 0"),
    );
    page.evaluate(&format!("location.hash = '#/jobs/{}/context?at={second}'", job.id));
    page.wait_for("there is none", &format!("{segments} === 0 && {}", shows("not any more")));
    page.assert_no_exceptions();
}

#[test]
fn deleting_a_job_on_its_page_leads_to_the_list() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": "true"}]}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it is there", &shows("Complete"));
    page.act("window.confirm = () => true; document.querySelector('[popovertarget]').click()");
    press(&mut page, "Delete");
    page.wait_for("it is gone", &shows("No jobs yet"));
    server.send(server.request(Method::GET, &format!("/v1/jobs/{}", job.id))).expect(404);
    page.assert_no_exceptions();
}
