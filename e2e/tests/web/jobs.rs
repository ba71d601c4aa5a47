//! Step jobs: start, follow, search, replay.

use e2e::{Browser, Server};
use serde_json::json;

use crate::page_helpers::{has, open, press, shows, write};

#[test]
fn page_starts_a_step_job_and_downloads_its_zip() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "");
    page.wait_for("the page is there", &has("#task"));
    press(&mut page, "Explicit steps");
    page.wait_for("the editor is there", &has(".cm-content"));
    press(&mut page, "Start");
    page.wait_for("the job is over", &shows("Complete"));
    page.wait_for("both steps are shown", &shows("python3 hello.py"));
    page.wait_for("the zip is offered", &has("a[download]"));
    let address = page.evaluate("document.querySelector('a[download]').getAttribute('href')");
    let answer = server.get(address.as_str().unwrap());
    assert_eq!(answer.status, 200);
    assert!(answer.body.starts_with(b"PK"));
    page.assert_no_exceptions();
}

#[test]
fn invalid_steps_are_marked_while_typing() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/steps");
    write(&mut page, ".cm-content", "nonsense");
    page.wait_for("the fault is shown", &has(".faults"));
    page.wait_for("and nothing can be started", "document.querySelector('button.first').disabled");
    page.assert_no_exceptions();
}

#[test]
fn uploaded_files_can_be_compared_with_their_final_version() {
    let server = Server::start();
    let draft = json!({"start": false, "steps": [
        {"tool": "edit_file", "path": "greeting.txt", "old": "world", "new": "caisson"},
        {"tool": "shell", "command": "until [ -e go ]; do sleep 0.05; done"}
    ]});
    let job = server.schedule(&draft);
    job.put_file("greeting.txt", "hello\nworld\n").expect(200);
    job.post("start", &json!({})).expect(202);
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files", job.id));
    press(&mut page, "greeting.txt");
    page.wait_for(
        "the file is shown",
        "document.querySelector('.viewer .cm-content')?.innerText.includes('caisson')",
    );
    press(&mut page, "Changes");
    page.wait_for(
        "the old line is shown",
        "document.querySelector('.viewer .removed')?.innerText.includes('world')",
    );
    page.wait_for(
        "and the new one",
        "document.querySelector('.viewer .added')?.innerText.includes('caisson')",
    );
    job.put_file("go", "").expect(200);
    page.wait_for("the job is over", &shows("Complete"));
    page.assert_no_exceptions();
}

#[test]
fn jobs_can_be_searched_filtered_deleted_and_used_as_a_template() {
    let server = Server::start();
    let good =
        server.schedule(&json!({"name": "bright", "steps": [{"tool": "shell", "command": "echo fine"}]}));
    let bad = server.schedule(&json!({"name": "gloomy", "steps": [{"tool": "shell", "command": "exit 4"}]}));
    good.wait_for("complete");
    bad.wait_for("failed");
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/jobs");
    page.wait_for("both are listed", &format!("{} && {}", shows("bright"), shows("gloomy")));
    press(&mut page, "Failed");
    page.wait_for("only one is", &format!("!({}) && {}", shows("bright"), shows("gloomy")));
    press(&mut page, "All");
    write(&mut page, "#search", "BRIGHT");
    page.wait_for("only the other is", &format!("{} && !({})", shows("bright"), shows("gloomy")));
    page.act("document.querySelector('[popovertarget]').click()");
    press(&mut page, "Use as a template");
    page.wait_for(
        "its steps are in the editor",
        "document.querySelector('.cm-content')?.innerText.includes('echo fine')",
    );
    page.evaluate("window.confirm = () => true; location.hash = '#/jobs'");
    page.wait_for("the list is there", &shows("gloomy"));
    write(&mut page, "#search", "gloomy");
    page.wait_for("the failed one is found", &format!("{} && !({})", shows("gloomy"), shows("bright")));
    page.act("document.querySelector('[popovertarget]').click()");
    press(&mut page, "Delete");
    page.wait_for("it is gone", &shows("No matching job"));
    server.get(&format!("/v1/jobs/{}", bad.id)).expect(404);
    page.assert_no_exceptions();
}

#[test]
fn replay_has_the_files_written_by_commands() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "command": "mkdir -p out node_modules/x; echo version one > out/log.txt; head -c 200000 /dev/zero > out/big.bin; echo x > node_modules/x/y"},
        {"tool": "shell", "command": "until [ -e go ]; do sleep 0.05; done; echo version two > out/log.txt; rm out/big.bin; echo the-second-is-over"}
    ]}));
    let mut events = job.follow();
    events.until("the first is looked at", |event| event.is("files_changed"));
    job.touch("go");
    events.until_end();
    let looks: Vec<_> = events.events.iter().filter(|event| event.is("files_changed")).collect();
    let told: String = looks.iter().map(|event| event.data().to_string()).collect();
    assert!(!told.contains("node_modules"), "{told}");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}/files?at={}", job.id, looks[0].sequence));
    press(&mut page, "▸ out/");
    press(&mut page, "log.txt");
    let file = |text: &str| format!("document.querySelector('.viewer')?.innerText.includes('{text}')");
    page.wait_for("the file is as it was then", &file("version one"));
    press(&mut page, "big.bin");
    page.wait_for("what is not kept is said so", &file("Too large or not text"));
    let later = looks.last().unwrap().sequence;
    page.evaluate(&format!(
        "(() => {{ const slider = document.querySelector('#replay'); slider.value = {later}; \
         slider.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    ));
    page.wait_for(
        "what is gone is gone",
        "![...document.querySelectorAll('.entry')].some(entry => entry.innerText.includes('big.bin'))",
    );
    page.wait_for("and it is said of what was looked at", &file("The file did not exist then."));
    press(&mut page, "log.txt");
    page.wait_for("the file is as it was later", &file("version two"));
    page.assert_no_exceptions();
}

#[test]
fn finished_job_can_be_replayed_with_its_files() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "write_file", "path": "notes/plan.txt", "content": "first thought\n"},
        {"tool": "shell", "command": "echo between"},
        {"tool": "edit_file", "path": "notes/plan.txt", "old": "first", "new": "second"}
    ]}));
    let mut events = job.follow();
    events.until_end();
    let edit = events
        .events
        .iter()
        .find(|event| event.is("call_started") && event.data()["tool"] == "edit_file")
        .unwrap();
    let browser = Browser::start();
    let hash = format!("#/jobs/{}/files?at={}", job.id, edit.sequence - 1);
    let mut page = open(&browser, &server, &hash);
    page.wait_for(
        "it is replayed until before the edit",
        &format!("{} && !({})", shows("between"), shows("edit_file")),
    );
    press(&mut page, "▸ notes/");
    press(&mut page, "plan.txt");
    page.wait_for(
        "the file is as it was",
        "document.querySelector('.viewer pre')?.innerText.includes('first thought')",
    );
    press(&mut page, "Back to the end");
    page.wait_for("all is there", &shows("edit_file"));
    page.wait_for(
        "the file is as it is now",
        "document.querySelector('.viewer .cm-content')?.innerText.includes('second thought')",
    );
    page.wait_for(
        "so is the folder",
        "[...document.querySelectorAll('.entry')].some(entry => entry.innerText.trim() === 'plan.txt')",
    );
    page.assert_no_exceptions();
}
