//! What a finished job shows first: its result, the files it changed and its downloads. Also addresses that lead nowhere.

use e2e::{Browser, Options, Server};
use model::scripted::ScriptedAnswer;
use serde_json::json;

use crate::page_helpers::{has, model_of, open, press, shows, waiting_answer};

const SUMMARY: &str =
    "The page is **done**.\n\n- `index.html` is new\n\n<img src=x onerror=\"document.title='owned'\">";

#[test]
fn finished_job_opens_with_its_result_files_and_downloads() {
    let call = |name: &str, arguments| ScriptedAnswer::calls(&[(name, arguments)]);
    let (_model, config) = model_of(vec![
        call("write_file", json!({"path": "site/index.html", "content": "<h1>made</h1>\n"})),
        call("shell", json!({"command": "echo by-command > made.txt"})),
        waiting_answer(),
        call("finish", json!({ "summary": SUMMARY })),
    ]);
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "make a page"}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("it works", &shows("began"));
    page.wait_for(
        "the time that is left is shown",
        "/Time left/.test(document.querySelector('dl').innerText)",
    );
    job.touch("go");
    let result = "document.querySelector('[aria-label=Result]')";
    page.wait_for(
        "the result is Markdown",
        &format!("{result}?.querySelector('strong')?.innerText === 'done'"),
    );
    page.wait_for("and a list", &format!("{result}.querySelector('li code')?.innerText === 'index.html'"));
    page.wait_for("markup is text", &format!("{result}.innerText.includes('onerror')"));
    assert_eq!(page.evaluate(&format!("{result}.querySelector('img')")), json!(null));
    for file in ["site/index.html", "made.txt"] {
        page.wait_for(&format!("{file} is listed"), &format!("{result}.innerText.includes('{file}')"));
    }
    page.wait_for("it is above the timeline", &format!("{result}.getBoundingClientRect().top < document.querySelector('.call').getBoundingClientRect().top && document.querySelector('[data-scroller]').scrollTop === 0"));
    page.wait_for(
        "the download says how large it is",
        &format!("/Download files\\s*\\d+ files, \\d/.test({result}.querySelector('a[download]').innerText)"),
    );
    page.wait_for(
        "the files beside the zip are listed with their sizes",
        &format!("/memory\\.json\\s*[\\d.]+ (B|KiB)/.test({result}.querySelector('[aria-label=Downloads]')?.innerText)"),
    );
    assert_eq!(page.evaluate("/Time left/.test(document.querySelector('dl').innerText)"), json!(false));
    assert_eq!(page.evaluate(&has("[role=meter]")), json!(false), "nothing is left to be used up");
    press(&mut page, "site/index.html");
    page.wait_for(
        "a file opens in the files pane",
        "document.querySelector('.viewer .cm-content')?.innerText.includes('<h1>made</h1>')",
    );
    page.assert_no_exceptions();
}

#[test]
fn steps_show_their_names_and_calls_their_arguments() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        {"tool": "shell", "name": "say it", "command": "echo said"},
        {"tool": "move_file", "from": "a.txt", "to": "b.txt", "continue_on_error": true}
    ]}));
    job.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    let lines =
        "[...document.querySelectorAll('.call .line')].map(line => line.innerText.replace(/\\s+/g, ' '))";
    page.wait_for(
        "a step has its name",
        &format!("{lines}.some(line => line.includes('shell say it echo said'))"),
    );
    page.wait_for(
        "a call says what it acts on",
        &format!("{lines}.some(line => line.includes('a.txt → b.txt'))"),
    );
    page.evaluate(
        "globalThis.copied = ''; Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => { copied = text; }}}); 0",
    );
    press(&mut page, "Copy ID");
    page.wait_for("its id can be copied", &format!("copied === '{}'", job.id));
    page.assert_no_exceptions();
}

#[test]
fn unknown_address_shows_that_there_is_no_page() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/nonsense");
    page.wait_for("it is said", &shows("Page not found"));
    assert_eq!(page.evaluate(&has("#task")), json!(false));
    page.evaluate("location.hash = '#/'");
    page.wait_for("another address is shown", &has("#task"));
    page.assert_no_exceptions();
}

#[test]
fn job_without_a_model_shows_the_choices_and_nothing_useless() {
    let server =
        Server::start_with(Options { config: "[model]\nlocal = false\n".into(), ..Options::default() });
    let job = server.schedule(&json!({"task": "wait for a model"}));
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", job.id));
    page.wait_for("the choices are there", &shows("Other ways to set up a model"));
    press(&mut page, "Check again");
    page.wait_for("it was asked again", &shows("Still no model."));
    let offered = page.evaluate(
        "[...document.querySelectorAll('main nav a, main button, main textarea')].filter(part => part.checkVisibility()).map(part => part.innerText || part.id)",
    );
    let offered: Vec<&str> = offered.as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    for name in ["Desktop", "Terminal", "Files", "Resources", "Resume", "Take over", "steer"] {
        assert!(!offered.contains(&name), "{name} is offered: {offered:?}");
    }
    job.cancel().expect(202);
    page.wait_for("it can be cancelled", &shows("Cancelled"));
    page.assert_no_exceptions();
}
