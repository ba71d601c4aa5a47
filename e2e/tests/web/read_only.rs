//! Read-only viewers are offered only what they may use; a message to the agent is sent once.

use e2e::{Browser, Options, Server};
use model::scripted::ScriptedAnswer;
use reqwest::Method;
use serde_json::json;

use crate::page_helpers::{
    has, hold_back_responses, key, model_of, open, press, release_responses, shows, waiting_answer, write,
};

fn finish() -> ScriptedAnswer {
    ScriptedAnswer::calls(&[("finish", json!({"summary": "All done."}))])
}

#[test]
fn read_only_viewers_are_offered_only_permitted_actions() {
    let (_model, config) = model_of(vec![waiting_answer(), finish()]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let key_of = |admin: Option<&str>, name: &str, role: &str| {
        let mut request = server.request(Method::POST, "/v1/keys").json(&json!({"name": name, "role": role}));
        if let Some(admin) = admin {
            request = request.bearer_auth(admin);
        }
        server.send(request).expect(201).json()["secret"].as_str().unwrap().to_owned()
    };
    let admin = key_of(None, "root", "admin");
    let viewer = key_of(Some(&admin), "watcher", "viewer");
    let request = server.request(Method::POST, "/schedule").bearer_auth(&admin);
    let job = server.send(request.json(&json!({"task": "wait"}))).expect(202).json();
    let id = job["job_id"].as_str().unwrap().to_owned();
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{id}/files"));
    write(&mut page, "#key", &viewer);
    press(&mut page, "Log in");
    page.wait_for("the job is followed", &shows("began"));
    page.wait_for("files can be looked at", &shows("Your key is read-only."));
    page.act("document.querySelector('[popovertarget]').click()");
    let offered = page.evaluate(
        "[...document.querySelectorAll('main button, main a, main textarea')].map(part => part.textContent.trim() || part.id)",
    );
    let offered: Vec<&str> = offered.as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    for name in [
        "Pause",
        "Extend",
        "Take over",
        "Cancel",
        "steer",
        "Terminal",
        "Notebook",
        "Preview",
        "Use as a template",
    ] {
        assert!(!offered.contains(&name), "{name} is offered: {offered:?}");
    }
    for name in ["Desktop", "Files", "Network", "Open the log"] {
        assert!(offered.contains(&name), "{name} is not offered: {offered:?}");
    }
    page.evaluate(&format!("location.hash = '#/jobs/{id}/desktop'"));
    page.wait_for("the desktop can be watched", &shows("Open in a new tab"));
    for name in ["Control", "Paste"] {
        assert_eq!(page.evaluate(&shows(name)), json!(false), "{name} is offered");
    }
    page.assert_no_exceptions();
}

#[test]
fn message_to_the_agent_is_sent_once_and_later_typing_is_kept() {
    let (_model, config) = model_of(vec![waiting_answer(), finish()]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "wait"}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it works", &shows("began"));
    hold_back_responses(&mut page, "POST", "/message");
    write(&mut page, "#steer", "once");
    let composing = page.evaluate(
        "document.querySelector('#steer').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))",
    );
    assert_eq!(composing, json!(true), "the key that ends a composition is left alone");
    key(&mut page, "Enter", "\r", 0);
    key(&mut page, "Enter", "\r", 0);
    page.wait_for("it is being sent", "globalThis.held.length > 0");
    page.type_text(" and the next");
    release_responses(&mut page);
    page.wait_for("the rest stays", "document.querySelector('#steer').value === 'and the next'");
    page.wait_for("it is in the timeline", &has(".words.person"));
    job.touch("go");
    page.wait_for("the agent goes on", &shows("All done."));
    let log = job.get("events?format=json&limit=1000").expect(200).json();
    let words = log["events"].as_array().unwrap().iter();
    let sent = words.filter(|event| event["data"]["text"] == "once").count();
    assert_eq!(sent, 1, "{log}");
    page.assert_no_exceptions();
}
