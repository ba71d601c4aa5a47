//! Following a job: scrubbing while it runs, after a lost connection, in many tabs, and after its removal.

use e2e::{Browser, Options, Page, Server};
use model::scripted::{Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

use crate::page_helpers::{has, model_of, open, press, shows, waiting_answer};

const WAITS: &str = "until [ -e go ]; do sleep 0.05; done";

fn slide(page: &mut Page, to: u64) {
    page.evaluate(&format!(
        "(() => {{ const slider = document.querySelector('#replay'); slider.value = {to}; \
         slider.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    ));
}

#[test]
fn running_job_can_be_scrubbed_back_and_followed_again() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "command": "echo the-first"},
        {"tool": "shell", "command": "echo the-second; until [ -e go ]; do sleep 0.05; done"},
        {"tool": "shell", "command": "echo the-third"}
    ]}));
    let mut events = job.follow();
    let second =
        events.until("the second", |event| event.is("call_started") && event.call() == "step-2.1").sequence;
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it is followed", &format!("{} && {}", shows("echo the-second"), has("#replay")));
    let calls = |number: u32| format!("document.querySelectorAll('.call').length === {number}");
    slide(&mut page, second - 1);
    page.wait_for("the job as it was is shown", &calls(1));
    page.wait_for("the address says so", &format!("location.hash.endsWith('?at={}')", second - 1));
    // A pane opens at the same point in time of the job.
    press(&mut page, "Files");
    page.wait_for("the pane is there", &format!("{} && location.hash.includes('/files?at=')", has(".files")));
    page.evaluate(&format!("location.hash = '#/jobs/{}?at=2'", job.id));
    page.wait_for("another time is heeded", &calls(0));
    job.touch("go");
    job.wait_for("complete");
    page.wait_for(
        "what happens now does not move it",
        &format!("document.querySelector('.badge').innerText === 'complete' && {}", calls(0)),
    );
    press(&mut page, "Back to the end");
    page.wait_for("all of it is there", &calls(3));
    page.wait_for("the address is the job again", "!location.hash.includes('at=')");
    page.assert_no_exceptions();
}

#[test]
fn replay_bookmark_of_a_running_job_can_return_to_live() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "command": WAITS}, {"tool": "shell", "command": "echo and-then"}
    ]}));
    job.follow().until("the command", |event| event.is("call_started"));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}?at=1", job.id));
    page.wait_for(
        "the beginning is shown",
        &format!("{} && document.querySelectorAll('.call').length === 0", has("#replay")),
    );
    press(&mut page, "Back to now");
    page.wait_for("what happens is shown", "document.querySelectorAll('.call').length === 1");
    job.touch("go");
    page.wait_for("and goes on", &shows("Complete"));
    page.assert_no_exceptions();
}

#[test]
fn replay_plays_and_shows_the_screenshots_of_each_time() {
    let server = Server::start_with(Options { images: Some(e2e::default_images()), ..Options::default() });
    let job = server.schedule(&json!({"image": "default", "steps": [
        {"tool": "shell", "command": "echo before"}, {"tool": "gui", "action": "screenshot"}, {"tool": "shell", "command": "echo after"}
    ]}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/desktop?at=3", job.id));
    page.wait_for("there was no picture then", &shows("No screenshot until then"));
    page.wait_for("it can be played", &has("[aria-label='Replay the job']"));
    page.act("document.querySelector('[aria-label=\"Replay the job\"]').click()");
    page.wait_for("it plays to the end", "document.querySelector('.replay .mono').innerText === 'end'");
    page.wait_for("the picture is shown", "document.querySelector('.past img')?.naturalWidth === 1280");
    page.assert_no_exceptions();
}

#[test]
fn deleted_job_is_reported_as_missing() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs/01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f");
    page.wait_for("it is said", &shows("Job not found."));
    assert_eq!(page.evaluate(&shows("reconnecting")), json!(false));
    page.act("[...document.querySelectorAll('a')].find(a => a.innerText === 'All jobs').click()");
    page.wait_for("the list is one step away", &shows("No jobs yet"));
    page.assert_no_exceptions();
}

#[test]
fn hidden_tabs_release_their_connections() {
    let server = Server::start();
    let job = server.schedule(&json!({"name": "watched", "steps": [{"tool": "shell", "command": WAITS}, {"tool": "shell", "command": "echo the-very-end"}]}));
    let browser = Browser::start();
    let hash = format!("#/jobs/{}", job.id);
    let see = "Object.defineProperty(document, 'visibilityState', {configurable: true, get: () => globalThis.sight}); \
               document.dispatchEvent(new Event('visibilitychange'))";
    // A browser opens at most six connections to a server, for all its tabs.
    let mut hidden: Vec<Page> = (0..6)
        .map(|_| {
            let mut page = open(&browser, &server, &hash);
            page.wait_for("the job is shown", &shows("until [ -e go ]"));
            page.evaluate(&format!("globalThis.sight = 'hidden'; {see}"));
            page
        })
        .collect();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for("one more is answered", &shows("watched"));
    job.touch("go");
    job.wait_for("complete");
    for page in &mut hidden {
        page.evaluate(&format!("globalThis.sight = 'visible'; {see}"));
        page.wait_for(
            "what was missed is there",
            &format!("{} && {}", shows("the-very-end"), shows("Complete")),
        );
        page.assert_no_exceptions();
    }
}

#[test]
fn lost_connection_is_shown_and_no_event_is_lost() {
    let server = Server::start();
    let command = "for n in 1 2 3 4; do echo line-$n; until [ -e go-$n ]; do sleep 0.05; done; done";
    let job = server.schedule(&json!({"steps": [{"tool": "shell", "command": command}]}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it runs", &shows("line-1"));
    page.ask("Network.enable", &json!({}));
    let conditions = |offline: bool| json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
    page.ask("Network.emulateNetworkConditions", &conditions(true));
    page.wait_for("the page says that it is old", &shows("may be out of date"));
    for step in 1..=3 {
        job.touch(&format!("go-{step}"));
    }
    let mut events = job.follow();
    events.until("the last line", |event| {
        event.is("call_output") && event.data()["text"].as_str().is_some_and(|text| text.contains("line-4"))
    });
    page.ask("Network.emulateNetworkConditions", &conditions(false));
    page.wait_for("the page goes on by itself", &shows("line-4"));
    let output = page.evaluate("document.querySelector('.call pre[aria-label=Output]').innerText");
    assert_eq!(output.as_str().map(str::trim), Some("line-1\nline-2\nline-3\nline-4"));
    page.wait_for("it is not called old any more", &format!("!({})", shows("may be out of date")));
    job.touch("go-4");
    page.wait_for("to the end", &shows("Complete"));
    page.assert_no_exceptions();
}

#[test]
fn browser_without_the_takeover_token_can_force_a_handback() {
    let answers =
        vec![waiting_answer(), ScriptedAnswer::calls(&[("finish", json!({"summary": "All done."}))])];
    let (_model, config) = model_of(answers);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "wait"}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it works", &shows("began"));
    press(&mut page, "Take over");
    page.wait_for("it is taken over", &shows("Hand back"));
    // The takeover ends elsewhere, and another browser takes the job over: this browser's token is invalid now.
    job.post("handback", &json!({"force": true})).expect(202);
    page.wait_for("it was handed back", &shows("Take over"));
    job.post("takeover", &json!({"by": "Ada"})).expect(202);
    page.wait_for("another one has it", &shows("Taken over by Ada"));
    page.evaluate("globalThis.asked = 0; window.confirm = () => { asked += 1; return true; }");
    press(&mut page, "Hand back");
    page.wait_for("it is asked and handed back", &format!("asked === 1 && {}", shows("Take over")));
    job.put_file("go", "").expect(200);
    page.wait_for("the agent goes on", &shows("All done."));
    page.assert_no_exceptions();
}

#[test]
fn context_gauge_is_shown_and_summaries_can_be_read() {
    use model::scripted::{Times, When};
    let agent = |answer: ScriptedAnswer| ScriptedAnswer {
        when: When { offers: Some("shell".into()), ..When::default() },
        ..answer
    };
    let summary = ScriptedAnswer {
        when: When {
            user_contains: Some("Its next prompt will hold your summary".into()),
            ..When::default()
        },
        times: Times(0),
        ..ScriptedAnswer::text("Did: looked at a part of it [{event}]")
    };
    let mut answers = vec![summary];
    answers.extend((1..15).map(|part| {
        let thought: String = (0..80)
            .map(|line| format!("I think about line {line} of part {part} and find {}. ", line * 7 + part))
            .collect();
        let command = format!(
            "for i in $(seq 1 250); do echo \"part {part} line $i value $((i * 7919 + {part}))\"; done"
        );
        agent(ScriptedAnswer {
            text: thought,
            ..ScriptedAnswer::calls(&[("shell", json!({"command": command}))])
        })
    }));
    answers.push(agent(ScriptedAnswer::calls(&[("finish", json!({"summary": "Seen."}))])));
    let script = Script { context_tokens: 32_000, ..Script::of(answers) };
    let model = ScriptedServer::start_on_thread(script).unwrap();
    let config = format!("[model]\nname = \"http://{}/v1\"\n", model.address());
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "Look at the parts"}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/context", job.id));
    page.wait_for("the job is over", &shows("Complete"));
    page.wait_for(
        "the head and the pane say the same of the last prompt",
        "(() => { const head = /^([\\d.]+k?)\\s+of\\s+([\\d.]+k?)$/.exec(document.querySelector('dd a')?.innerText.trim()); \
         return head !== null && document.querySelector('.pane .scroll').innerText.includes(`had ${head[1]} of ${head[2]} tokens`); })()",
    );
    assert_eq!(page.evaluate(&has("[role=meter]")), json!(false), "nothing is left to be used up");
    page.wait_for(
        "it says how much was summarized",
        "/\\d summarized/.test(document.querySelector('dl').innerText)",
    );
    page.wait_for(
        "the pane tells what is in the window",
        "document.querySelectorAll('.strip span').length > 3",
    );
    page.evaluate("document.querySelectorAll('.scroll details').forEach(part => { part.open = true; })");
    page.wait_for("a summary can be read", "[...document.querySelectorAll('.scroll pre')].some(part => part.innerText.includes('Did: looked at a part of it'))");
    let spent = job.status()["agent"]["spent"].clone();
    assert_ne!(spent["input_tokens"], Value::Null);
    page.assert_no_exceptions();
}
