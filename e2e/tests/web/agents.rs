//! An agent and people: plan, steering, questions, takeover, and two viewers of the same job.

use e2e::{Browser, Job, Options, Server};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

use crate::page_helpers::{has, key, open, press, shows, write};

/// A server whose scripted model gives these answers, one per turn of each conversation.
struct ScriptedServerSetup {
    server: Server,
    model: ScriptedServer,
}

impl ScriptedServerSetup {
    fn start(answers: Vec<ScriptedAnswer>) -> Self {
        let script = Script { order: Order::Turns, ..Script::of(answers) };
        let model = ScriptedServer::start_on_thread(script).unwrap();
        let config = format!("[model]\nname = \"http://{}/v1\"\n", model.address());
        Self { server: Server::start_with(Options { config, ..Options::default() }), model }
    }

    fn schedule(&self, body: &Value) -> Job<'_> {
        self.server.schedule(body)
    }
}

fn call(name: &str, arguments: Value) -> ScriptedAnswer {
    ScriptedAnswer::calls(&[(name, arguments)])
}

fn shell(command: &str) -> ScriptedAnswer {
    call("shell", json!({ "command": command }))
}

fn finish() -> ScriptedAnswer {
    call("finish", json!({"summary": "All is blue."}))
}

#[test]
fn page_approves_steers_takes_over_and_hands_back_an_agent() {
    let played = ScriptedServerSetup::start(vec![
        ScriptedAnswer {
            reasoning: "A plan first.".into(),
            text: "I begin with a plan.".into(),
            ..call(
                "plan",
                json!({"items": [{"text": "paint it", "status": "in_progress"}, {"text": "look at it"}]}),
            )
        },
        shell("echo painting; until [ -e go ]; do sleep 0.05; done"),
        shell("cat made-by-hand"),
        ScriptedAnswer::calls(&[
            (
                "plan",
                json!({"items": [{"text": "paint it", "status": "done"}, {"text": "look at it", "status": "done"}]}),
            ),
            ("finish", json!({"summary": "All is blue."})),
        ]),
    ]);
    let job = played.schedule(&json!({"task": "colour it", "approve_plan": true, "budget": {"turns": 20}}));
    let browser = Browser::start();
    let mut page = open(&browser, &played.server, &format!("#/jobs/{}", job.id));
    page.wait_for("the plan waits", &shows("Accept this plan?"));
    page.wait_for(
        "what was thought and said is there",
        &format!("{} && {}", shows("A plan first."), shows("I begin with a plan.")),
    );
    press(&mut page, "Accept");
    page.wait_for(
        "it works below a point of the plan",
        "document.querySelector('.point')?.innerText.includes('paint it')",
    );
    page.wait_for("output comes live", &shows("painting"));
    page.wait_for("the budget is shown", &shows("of 20"));

    write(&mut page, "#steer", "make it blue");
    key(&mut page, "Enter", "\r", 0);
    page.wait_for(
        "the word is in the timeline",
        "[...document.querySelectorAll('.words.person')].some(w => w.innerText.includes('make it blue'))",
    );
    press(&mut page, "Take over");
    page.wait_for("it is taken over", &has("button.first"));
    let body = json!({"command": "echo by hand > made-by-hand; touch go"}).to_string();
    let exec = format!(
        "fetch('/v1/jobs/{}/exec', {{method: 'POST', headers: {{'content-type': 'application/json'}}, body: {}}}).then(answer => answer.status)",
        job.id,
        json!(body)
    );
    page.wait_for("this browser may use the sandbox", &format!("{exec}.then(status => status === 200)"));
    page.wait_for("the agent waits", &shows("taken over"));
    assert_eq!(job.exec("echo mine").expect(409).json()["code"], "taken_over", "others may watch");
    press(&mut page, "Hand back");
    page.wait_for("the agent goes on to the end", &shows("All is blue."));
    page.wait_for("the job is over", &shows("Complete"));
    page.wait_for("what was made by hand was seen", &shows("by hand"));
    let asked: Vec<String> = played.model.requests().iter().map(|request| request.body.to_string()).collect();
    assert!(asked.iter().any(|body| body.contains("make it blue")), "the agent has read the word");
    page.assert_no_exceptions();
}

#[test]
fn command_approval_is_shown_to_both_viewers() {
    let played = ScriptedServerSetup::start(vec![
        call("ask_user", json!({"question": "Which colour?", "options": ["red", "blue"]})),
        shell("git push --force origin main || echo pushed-nothing"),
        finish(),
    ]);
    let job = played.schedule(&json!({"task": "publish", "approval": "ask"}));
    let browser = Browser::start();
    let hash = format!("#/jobs/{}", job.id);
    let mut first = open(&browser, &played.server, &hash);
    let mut second = open(&browser, &played.server, &hash);
    for page in [&mut first, &mut second] {
        page.wait_for("the question is asked", &shows("Which colour?"));
    }
    press(&mut first, "blue");
    for page in [&mut first, &mut second] {
        page.wait_for("the command waits", &shows("Allow this command?"));
        page.wait_for(
            "it is shown",
            "document.querySelector('section pre')?.innerText.includes('git push --force')",
        );
    }
    press(&mut second, "Allow");
    for page in [&mut first, &mut second] {
        page.wait_for("it was run", &shows("pushed-nothing"));
        page.wait_for("the job is over", &shows("Complete"));
        page.wait_for(
            "nothing waits any more",
            &format!("!({})", has("section[aria-label='Needs your answer']")),
        );
        page.assert_no_exceptions();
    }
    let asked: Vec<String> = played.model.requests().iter().map(|request| request.body.to_string()).collect();
    assert!(asked[1].contains("the user answers: blue"), "{}", asked[1]);
}
