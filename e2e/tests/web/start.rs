//! The start page: a task, files, a repository, options, invalid steps, and a server without a model.

use e2e::{Browser, ExternalServer, Options, Page, Server, git_files};
use model::scripted::{ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

use crate::page_helpers::{choose_files, has, key, model_of, open, press, shows, write};

const LOCAL: &str = "[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n";

/// The job that the page shows, from the server's API.
#[track_caller]
fn arrived(page: &mut Page, server: &Server) -> Value {
    page.wait_for("the job is there", "/^#\\/jobs\\/[0-9a-f-]{36}/.test(location.hash)");
    let id = page.evaluate("location.hash.slice(7, 43)");
    server.get(&format!("/v1/jobs/{}", id.as_str().unwrap())).expect(200).json()
}

fn model() -> (ScriptedServer, String) {
    let answers = vec![
        ScriptedAnswer::calls(&[("shell", json!({"command": "cat brought.txt"}))]),
        ScriptedAnswer::calls(&[("finish", json!({"summary": "Looked at it."}))]),
    ];
    model_of(answers)
}

#[test]
fn start_page_submits_a_task_with_files_and_options() {
    let (_model, config) = model();
    let server = Server::start_with(Options { config, ..Options::default() });
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("brought.txt");
    std::fs::write(&file, "it came along\n").unwrap();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "");
    write(&mut page, "#task", "Look at what I bring");
    // Of two files with the same name, the later one is uploaded.
    let other = here.path().join("other/brought.txt");
    std::fs::create_dir(here.path().join("other")).unwrap();
    std::fs::write(&other, "it stays\n").unwrap();
    choose_files(&mut page, ".foot input[type=file]", &[&other, &file]);
    page.wait_for(
        "the file is listed",
        "document.querySelector('.files')?.innerText.includes('brought.txt')",
    );
    page.evaluate("location.hash = '#/jobs'");
    page.wait_for("another view is there", &has("#search"));
    page.evaluate("location.hash = '#/'");
    page.wait_for(
        "what was begun is there again",
        "document.querySelector('#task')?.value === 'Look at what I bring' && document.querySelectorAll('.files li').length === 1",
    );
    let label = |name: &str| {
        format!(
            "[...document.querySelectorAll('.grid label')].find(l => l.innerText.startsWith({})).querySelector('input, select')",
            json!(name)
        )
    };
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })");
    for (name, value) in [("Name", "from the page"), ("Memory", "512"), ("Budget (turns)", "7")] {
        let field = label(name);
        page.evaluate(&format!(
            "{field}.value = {}; {field}.dispatchEvent(new Event('change', {{bubbles: true}}))",
            json!(value)
        ));
    }
    page.evaluate("document.querySelector('#task').focus()");
    key(&mut page, "Enter", "", 2);
    page.wait_for("the job is over", &shows("Complete"));
    page.act("document.querySelector('.call .line').click()");
    page.wait_for("the agent has seen the file", &shows("it came along"));
    let job = arrived(&mut page, &server);
    assert_eq!((&job["name"], &job["task"]), (&json!("from the page"), &json!("Look at what I bring")));
    assert_eq!(job["agent"]["budget"]["turns"], 7);
    // Agent options stay on the page but are not sent with steps, so the server does not reject them.
    page.act("document.querySelector('[popovertarget]').click()");
    press(&mut page, "Use as a template");
    page.wait_for(
        "the task is there again",
        "document.querySelector('#task')?.value === 'Look at what I bring'",
    );
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })");
    page.wait_for("with its budget", &format!("{}.value === '7'", label("Budget (turns)")));
    page.wait_for("and its memory", &format!("{}.value === '512'", label("Memory")));
    press(&mut page, "Explicit steps");
    page.wait_for("the editor is there", &has(".cm-content"));
    press(&mut page, "Start");
    let steps = arrived(&mut page, &server);
    assert_eq!((&steps["name"], &steps["task"]), (&json!("from the page"), &Value::Null), "{steps}");
    page.assert_no_exceptions();
}

#[test]
fn start_page_submits_steps_with_a_repository_and_egress_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let git = ExternalServer::files(git_files(folder.path()));
    let server = Server::start_with(Options { config: LOCAL.into(), ..Options::default() });
    let place = format!("localhost:{}", git.port);
    // Submitted over the API, because the page has no fields for some of this; as a template, the page sends it
    // again.
    let first = server.schedule(&json!({
        "name": "first", "git": {"url": format!("http://{place}/project.git")}, "egress": {"allow": [place]},
        "environment": {"no_proxy": "", "NO_PROXY": ""}, "labels": {"kept": "yes"},
        "steps": [{"tool": "shell", "command": "cat hello.txt"}],
    }));
    first.wait_for("complete");
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{}", first.id));
    page.wait_for("the job is there", &shows("Complete"));
    page.act("document.querySelector('[popovertarget]').click()");
    press(&mut page, "Use as a template");
    page.wait_for(
        "the repository is there",
        &format!("document.querySelector('#git')?.value.includes({})", json!(place)),
    );
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })");
    page.wait_for("so is what has no field", &shows("environment"));
    page.wait_for(
        "and the hosts",
        &format!("[...document.querySelectorAll('.grid input')].some(i => i.value === {})", json!(place)),
    );
    page.wait_for(
        "and the steps",
        "document.querySelector('.cm-content')?.innerText.includes('cat hello.txt')",
    );
    press(&mut page, "Start");
    let job = arrived(&mut page, &server);
    assert_ne!(job["job_id"], json!(first.id));
    page.wait_for("it is cloned and read", &shows("Complete"));
    let created =
        server.get(&format!("/v1/jobs/{}/events?format=json&limit=1", job["job_id"].as_str().unwrap()));
    let spec = created.expect(200).json()["events"][0]["data"]["spec"].clone();
    assert_eq!(spec["git"]["url"], json!(format!("http://{place}/project.git")));
    assert_eq!(
        (&spec["egress"], &spec["labels"]["kept"]),
        (&json!({"allow": [place]}), &json!("yes")),
        "{spec}"
    );
    assert_eq!(spec["environment"]["NO_PROXY"], "");
    page.assert_no_exceptions();
}

#[test]
fn failed_upload_on_the_start_page_leaves_no_draft() {
    let server = Server::start();
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("a.txt");
    std::fs::write(&file, "x").unwrap();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/steps");
    page.wait_for("the editor is there", &has(".cm-content"));
    choose_files(&mut page, ".foot input[type=file]", &[&file]);
    page.wait_for("the file is listed", &shows("a.txt"));
    page.evaluate(
        "globalThis.own = fetch; globalThis.fetch = (path, rest) => rest?.method === 'PUT' \
         ? Promise.resolve(new Response(JSON.stringify({code: 'x', detail: 'the disk is full'}), {status: 507})) : own(path, rest); 0",
    );
    press(&mut page, "Start");
    page.wait_for("it is said", &shows("a.txt: the disk is full The job was not started."));
    let jobs = server.get("/v1/jobs").expect(200).json();
    assert_eq!(jobs["jobs"], json!([]), "no draft is left");
    page.evaluate("globalThis.fetch = own; 0");
    press(&mut page, "Start");
    page.wait_for("the next try is the only job", &shows("Complete"));
    assert_eq!(server.get("/v1/jobs").expect(200).json()["jobs"].as_array().map(Vec::len), Some(1));
    page.assert_no_exceptions();
}

#[test]
fn start_page_names_missing_step_fields() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/steps");
    page.wait_for("the editor is there", &has(".cm-content"));
    page.evaluate("document.querySelector('.cm-content').focus()");
    key(&mut page, "a", "", 2);
    page.type_text("[{\"tool\":\"shell\"}]");
    page.wait_for("the fault is named", &shows("`command` is missing"));
    page.wait_for("and nothing can be started", "document.querySelector('button.first').disabled");
    page.assert_no_exceptions();
}

#[test]
fn start_page_reports_a_missing_model_and_shows_the_demo() {
    let server = Server::start();
    let browser = Browser::start();
    let mut page = open(&browser, &server, "");
    page.wait_for("it is said", &shows("No language model is set up"));
    press(&mut page, "Watch the demo");
    page.wait_for("the recorded agent speaks", &shows("I will build a small React app with Vite"));
    page.wait_for("it has a plan", &shows("Set up a Vite project with React"));
    let job = arrived(&mut page, &server);
    assert!(job["agent"]["recorded"] == true, "{job}");
    server.job(job["job_id"].as_str().unwrap()).cancel().expect(202);
    page.wait_for("it ends when it is told to", &shows("Cancelled"));
    page.assert_no_exceptions();
}

#[test]
fn admin_sets_up_a_model_in_the_page() {
    let (model, _) = model();
    let config = "[model]\nlocal = false\n".into();
    let server = Server::start_with(Options { config, ..Options::default() });
    let browser = Browser::start();
    let mut page = open(&browser, &server, "");
    page.wait_for("the form is there", &has("#setup-provider"));
    // The last choice is a server that is none of the providers.
    page.evaluate(
        "{ const field = document.querySelector('#setup-provider'); field.value = ''; field.dispatchEvent(new Event('change', {bubbles: true})); } 0",
    );
    write(&mut page, "#setup-address", &format!("http://{}/v1", model.address()));
    write(&mut page, "#setup-key", "sk-very-secret");
    press(&mut page, "Test");
    page.wait_for("the model answers", &shows(" answers."));
    press(&mut page, "Save");
    page.wait_for(
        "jobs can use it",
        "document.querySelector('#model')?.innerText.includes('scripted (default)')",
    );
    assert_eq!(page.evaluate(&has("#setup-key")), json!(false), "the card is gone");
    page.evaluate("location.hash = '#/admin'");
    page.wait_for("its origin is shown", &shows("Chosen by an admin."));
    page.assert_no_exceptions();
}
