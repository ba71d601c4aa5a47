//! Updates while a person watches: model output, waiting connections, a repository.

use std::time::Duration;

use e2e::{Browser, ExternalServer, Options, Server, git_files, respond};
use model::scripted::{Script, ScriptedAnswer, ScriptedServer};
use serde_json::json;

use crate::page_helpers::{has, open, press, shows};

const LOCAL: &str = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n";

fn server() -> Server {
    Server::start_with(Options { config: LOCAL.into(), ..Options::default() })
}

#[test]
fn waiting_connection_is_allowed_on_the_page_and_the_job_continues() {
    let outside = ExternalServer::http(|_, client| respond(client, b"hello from outside"));
    let server = server();
    let command = format!(
        "until curl -sS -m 20 -f --noproxy '' http://localhost:{}/ > got; do sleep 0.1; done; cat got",
        outside.port
    );
    let job = server.schedule(&json!({
        "egress": {"allow": ["example.org"]}, "steps": [{"tool": "shell", "command": command}],
    }));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/network", job.id));
    page.wait_for("the card is there", &shows("Allow this connection?"));
    page.wait_for("another tab shows that somebody is waited for", "document.title.startsWith('(1) ')");
    page.wait_for(
        "who cannot see hears it",
        "[...document.querySelectorAll('[role=status]')].some(part => part.textContent.startsWith('Needs your answer: '))",
    );
    page.wait_for(
        "it says where",
        &format!("document.querySelector(\"section[aria-label='Needs your answer'] pre\")?.innerText === 'localhost:{}'", outside.port),
    );
    page.wait_for(
        "the pane offers it too",
        "document.querySelector('.asks .line button.first')?.innerText === 'Allow'",
    );
    press(&mut page, "Allow for this job");
    page.wait_for("the job goes on to its end", &shows("Complete"));
    assert_eq!(job.output().text("got"), "hello from outside");
    page.wait_for(
        "nothing waits any more",
        &format!("!({})", has("section[aria-label='Needs your answer']")),
    );
    page.wait_for("the title says so", "!document.title.startsWith('(')");
    page.wait_for(
        "the pane has both, what was refused and what was allowed",
        "['refused', 'allowed'].every(word => [...document.querySelectorAll('.line .badge')].some(b => b.innerText.endsWith(word)))",
    );
    page.assert_no_exceptions();
}

#[test]
fn model_output_is_shown_live_and_only_once() {
    let text = "The first words are here. Then there is a long pause, and at last the very end.";
    // The model stops after the first four pieces of the text, which follow three other events.
    let slow = ScriptedAnswer {
        reasoning: "Slowly now.".into(),
        text: text.into(),
        letters: Some(8),
        hold_after_events: vec![7],
        ..ScriptedAnswer::calls(&[("finish", json!({"summary": "Said."}))])
    };
    let model = ScriptedServer::start_on_thread(Script::of(vec![slow])).unwrap();
    let config = format!("[model]\nname = \"http://{}/v1\"\n", model.address());
    let server = Server::start_with(Options { config, ..Options::default() });
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for("the page is there", &shows("No jobs yet"));
    let job = server.schedule(&json!({"task": "speak"}));
    page.evaluate(&format!("location.hash = '#/jobs/{}'", job.id));
    page.wait_for(
        "the beginning is shown while the rest is not said",
        &format!("{} && !({})", shows("The first words"), shows("the very end")),
    );
    let answered = job.get("events?format=json&limit=1000").expect(200).text().contains("model_answered");
    assert!(!answered, "the answer is not in the log yet");
    model.release();
    page.wait_for("the end comes too", &shows("at last the very end."));
    page.wait_for("the job is over", &shows("Complete"));
    let times = page.evaluate("document.body.innerText.split('The first words are here').length - 1");
    assert_eq!(times, 1, "what was said is shown once");
    page.assert_no_exceptions();
}

#[test]
fn repository_file_is_compared_with_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let git = ExternalServer::files(git_files(folder.path()));
    let server = server();
    let place = format!("localhost:{}", git.port);
    let job = server.schedule(&json!({
        "git": {"url": format!("http://{place}/project.git")}, "egress": {"allow": [place]},
        "environment": {"no_proxy": "", "NO_PROXY": ""},
        "steps": [
            {"tool": "edit_file", "path": "hello.txt", "old": "outside", "new": "inside"},
            {"tool": "shell", "command": "until [ -e go ]; do sleep 0.05; done"}
        ],
    }));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    press(&mut page, "hello.txt");
    page.wait_for(
        "the file is shown as it is now",
        "document.querySelector('.viewer .cm-content')?.innerText.includes('from the inside')",
    );
    press(&mut page, "Changes");
    for (class, line) in [("removed", "from the outside"), ("added", "from the inside")] {
        page.wait_for(
            &format!("the {class} line is shown"),
            &format!("document.querySelector('.viewer .{class}')?.innerText.includes('{line}')"),
        );
    }
    job.put_file("go", "").expect(200);
    assert!(page.becomes_true_within(Duration::from_secs(90), &shows("Complete")));
    page.assert_no_exceptions();
}
