//! Every way to answer an input request's card, and what the list shows of an agent's job.

use e2e::{Browser, ExternalServer, Options, Page, Server, respond};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

use crate::page_helpers::{has, model_of, open, press, set_look, shows, write};

fn call(name: &str, arguments: Value) -> ScriptedAnswer {
    ScriptedAnswer::calls(&[(name, arguments)])
}

fn finish() -> ScriptedAnswer {
    call("finish", json!({"summary": "All done."}))
}

/// The request that the model received after this many answers.
fn told(model: &ScriptedServer, answers: usize) -> String {
    model.requests()[answers].body.to_string()
}

#[test]
fn plan_can_be_rejected_with_a_reason_and_accepted_with_edits() {
    let plan = |text: &str| call("plan", json!({"items": [{"text": text}]}));
    let done = json!({"items": [{"text": "paint it blue", "status": "done"}, {"text": "let it dry", "status": "done"}]});
    let end = ScriptedAnswer::calls(&[("plan", done), ("finish", json!({"summary": "All done."}))]);
    let (model, config) = model_of(vec![plan("paint it red"), plan("paint it blue"), end]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "colour it", "approve_plan": true}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the plan waits", "document.querySelector('section textarea')?.value === 'paint it red'");
    write(&mut page, "section [aria-label=Reason]", "red is loud");
    press(&mut page, "Reject");
    page.wait_for(
        "the next one waits",
        "document.querySelector('section textarea')?.value === 'paint it blue'",
    );
    assert!(told(&model, 1).contains("red is loud"), "{}", told(&model, 1));
    page.evaluate(
        "(() => { const field = document.querySelector('section textarea'); field.value = 'paint it blue\\nlet it dry'; \
         field.dispatchEvent(new Event('input', {bubbles: true})); })()",
    );
    press(&mut page, "Accept with changes");
    page.wait_for("the job is over", &shows("All done."));
    assert!(told(&model, 2).contains("let it dry"), "{}", told(&model, 2));
    page.assert_no_exceptions();
}

#[test]
fn command_can_be_denied_with_a_reason() {
    let push =
        call("shell", json!({"command": "git push --force origin main || echo pushed-nothing\u{202e}"}));
    let (model, config) = model_of(vec![push, finish()]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "publish", "approval": "ask"}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the command waits", &shows("Allow this command?"));
    page.wait_for("signs that cannot be seen are named", &shows("pushed-nothingU+202E"));
    set_look(&mut page, "light", 390);
    page.evaluate(&format!("location.hash = '#/jobs/{}/files'", job.id));
    page.wait_for(
        "on a phone a pane does not hide that somebody is waited for",
        "(() => { const link = document.querySelector('nav.panes .narrow'); return link.checkVisibility() && link.innerText.includes('1 needs you'); })()",
    );
    page.act("document.querySelector('nav.panes .narrow').click()");
    page.wait_for("it leads to the card", "document.querySelector('[data-ask]').checkVisibility()");
    write(&mut page, "section [aria-label=Reason]", "not on a Friday");
    press(&mut page, "Refuse");
    page.wait_for("the job is over", &shows("All done."));
    assert!(told(&model, 1).contains("not on a Friday"), "{}", told(&model, 1));
    assert!(!job.get("log").expect(200).text().contains("pushed-nothing\n"), "it was not run");
    page.assert_no_exceptions();
}

/// Waits for the card of a connection and presses one of its buttons.
#[track_caller]
fn answer(page: &mut Page, button: &str) {
    page.wait_for("the card is there", &shows("Allow this connection?"));
    press(page, button);
}

#[test]
fn connection_can_be_allowed_once_and_the_next_denied() {
    let outside = ExternalServer::http(|_, client| respond(client, b"hello"));
    let config = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n".into();
    let server = Server::start_with(Options { config, ..Options::default() });
    let fetch = format!("curl -sS -m 20 -f --noproxy '' http://localhost:{}/", outside.port);
    let job = server.schedule(&json!({
        "egress": {"allow": ["example.org"]}, "egress_wait_s": 600,
        "steps": [{"tool": "shell", "command": format!("{fetch} > first")}, {"tool": "shell", "command": format!("{fetch} > second || echo refused-at-last")}],
    }));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    answer(&mut page, "Allow once");
    page.wait_for("the first has gone through", "document.querySelectorAll('.call.succeeded').length === 1");
    answer(&mut page, "Refuse");
    page.wait_for("the job is over", &shows("Complete"));
    let mut output = job.output();
    assert_eq!((output.text("first").as_str(), output.text("second").as_str()), ("hello", ""));
    page.assert_no_exceptions();
}

#[test]
fn new_or_moved_cards_ignore_clicks_meant_for_another() {
    let outside = ExternalServer::http(|_, client| respond(client, b"hello"));
    let config = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n".into();
    let server = Server::start_with(Options { config, ..Options::default() });
    let fetch = |host: &str| format!("curl -sS -f --noproxy '' http://{host}:{}/", outside.port);
    let wait = "until [ -e next ]; do sleep 0.05; done";
    let command = format!(
        "{} > first & {wait}; {} > second || echo refused > second; wait",
        fetch("localhost"),
        fetch("elsewhere.example")
    );
    let job = server.schedule(&json!({
        "egress": {"allow": ["example.org"]}, "egress_wait_s": 600, "steps": [{"tool": "shell", "command": command}],
    }));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    // High enough for both cards.
    let size = json!({"width": 1300, "height": 1600, "deviceScaleFactor": 1, "mobile": false});
    page.ask("Emulation.setDeviceMetricsOverride", &size);
    let card = "section[aria-label=\"Needs your answer\"]";
    let button = format!("document.querySelector('{card} button.first')");
    page.wait_for(
        "the first card can be pressed",
        &format!("{button}?.getAttribute('aria-disabled') === 'false'"),
    );
    // Records the page at the very moment in which the number of cards changes.
    page.evaluate(&format!(
        "globalThis.moments = []; globalThis.cards = 1; \
         globalThis.place = () => [...document.querySelectorAll('{card}')].at(-1)?.querySelector('button.first').getBoundingClientRect().y; \
         globalThis.before = place(); \
         new MutationObserver(() => {{ const now = [...document.querySelectorAll('{card}')]; \
           if (now.length === cards) return; cards = now.length; \
           moments.push(now.flatMap(one => [...one.querySelectorAll('button')]).every(one => one.getAttribute('aria-disabled') === 'true')); \
           if (now.length === 2) now[0].querySelector('button.first').click(); \
         }}).observe(document.body, {{childList: true, subtree: true}}); 0"
    ));
    job.touch("next");
    page.wait_for("there are two cards", "cards === 2");
    assert_eq!(page.evaluate("moments"), json!([true]), "what has just come cannot be pressed");
    assert_eq!(page.evaluate("place() === before"), json!(true), "what was there has not moved");
    page.wait_for(
        "the newest is on top, and the press on it did nothing",
        &format!("document.querySelector('{card} pre')?.innerText === 'elsewhere.example:{}' && {button}.getAttribute('aria-disabled') === 'false'", outside.port),
    );
    // The older card is answered while it has the keyboard focus: the other card slides into its place.
    page.evaluate(&format!(
        "[...document.querySelectorAll('{card}')].at(-1).querySelector('button.first').focus()"
    ));
    page.act("document.activeElement.click()");
    page.wait_for("one is left", "cards === 1");
    assert_eq!(page.evaluate("moments"), json!([true, true]), "what has moved cannot be pressed");
    page.wait_for("the focus is on what is left", "document.activeElement.closest('[data-ask]') !== null");
    press(&mut page, "Refuse");
    page.wait_for("the job is over", &shows("Complete"));
    let mut output = job.output();
    assert_eq!((output.text("first").as_str(), output.text("second").as_str()), ("hello", "refused\n"));
    page.assert_no_exceptions();
}

#[test]
fn job_list_shows_owner_cost_and_plan_progress() {
    let plan = json!({"items": [{"text": "paint", "status": "done"}, {"text": "look", "status": "in_progress"}, {"text": "tell"}]});
    // The first is refused, because points of the plan are open.
    let because = call("finish", json!({"summary": "All done.", "reason": "The rest is for tomorrow."}));
    let answers = vec![call("plan", plan), finish(), because];
    let script = Script { order: Order::Turns, ..Script::of(answers) };
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let name = format!("http://{}/v1#scripted", model.address());
    let config =
        format!("[model]\nname = \"{name}\"\n[model.prices.\"{name}\"]\ninput = 1000.0\noutput = 1000.0\n");
    let server = Server::start_with(Options { config, ..Options::default() });
    let made = server.post("/v1/keys", &json!({"name": "ada", "role": "admin"})).expect(201).json();
    let secret = made["secret"].as_str().unwrap();
    let request = server.request(reqwest::Method::POST, "/schedule").bearer_auth(secret);
    server.send(request.json(&json!({"name": "coloured", "task": "colour it"}))).expect(202);
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    write(&mut page, "#key", secret);
    press(&mut page, "Log in");
    page.wait_for("the job is listed", &has(".job"));
    page.wait_for("and over", "document.querySelector('.job .badge')?.innerText === 'complete'");
    page.wait_for(
        "with its owner and its cost",
        "/ · ada · \\$\\d+\\.\\d\\d/.test(document.querySelector('.job .main').innerText)",
    );
    page.wait_for(
        "and how much of its plan is done, without a bar",
        "document.querySelector('.job .main').innerText.includes('1 of 3 plan items') && document.querySelector('.job progress') === null",
    );
    page.assert_no_exceptions();
}
