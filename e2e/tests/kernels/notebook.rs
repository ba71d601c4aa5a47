//! JupyterLab in a real browser, on the agent's kernels.

use e2e::{Browser, Server, empty_notebook, free_port, run_cell};
use serde_json::{Value, json};

use crate::{server, server_with};

/// Creates a notebook with a Python kernel through Jupyter Server's API.
fn make_notebook(server: &Server, host: &str, name: &str) {
    let path = format!("/v1/sandboxes/{host}/files/{name}");
    let request = server.request(reqwest::Method::PUT, &path).body(empty_notebook().to_string());
    let written = server.send(request);
    assert!(written.status < 300, "{}", written.text());
}

#[test]
fn jupyterlab_shares_the_agents_kernel_variables() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    let set =
        sandbox.post("code", &json!({"code": "secret = 'from the agent ' + str(6 * 7)"})).expect(200).json();
    assert_eq!(set["status"], "succeeded", "{set:#}");
    make_notebook(&server, &sandbox.id, "mine.ipynb");
    let browser = Browser::start();
    let origin = format!("http://{}-jupyter.localhost:{}", sandbox.id, server.port);
    let mut page = browser.open(&format!("{origin}/lab/tree/mine.ipynb"));
    run_cell(&mut page, "print(secret)", "from the agent 42");
    // And in the other direction.
    run_cell(&mut page, "secret = secret.upper(); print('changed')", "changed");
    let seen: Value = sandbox.post("code", &json!({"code": "print(secret)"})).expect(200).json();
    assert_eq!(seen["stdout"], "FROM THE AGENT 42\n", "{seen:#}");
    // The agent's cells open as a notebook, too.
    let mut own = browser.open(&format!("{origin}/lab/workspaces/other/tree/.caisson/agent.ipynb"));
    own.wait_for(
        "the agent's notebook is shown",
        "[...document.querySelectorAll('.jp-Notebook .cm-content')].some(cell => cell.innerText.includes('6 * 7'))",
    );
}

#[test]
fn exposed_port_opens_the_newest_jobs_notebook() {
    let port = free_port();
    let server = server_with(&format!("[expose]\njupyter = {port}\n"));
    let client = e2e::http_client().build().unwrap();
    let get = || client.get(format!("http://127.0.0.1:{port}/api")).send();
    assert_eq!(get().unwrap().status().as_u16(), 503, "no job runs");
    let sandbox = server.create_sandbox(&json!({"image": "default"}));
    let has_version =
        |answer: reqwest::blocking::Response| answer.text().is_ok_and(|text| text.contains("\"version\""));
    let answers = || get().is_ok_and(has_version);
    e2e::wait_until("the notebook server answers", answers);
    let killed = sandbox.exec("pkill -KILL -f '[j]upyter-lab'");
    assert_eq!(killed["exit_code"], 0, "{killed}");
    e2e::wait_until("it is there again after it was killed", answers);
    let rebound =
        client.get(format!("http://127.0.0.1:{port}/api")).header("host", "evil.example").send().unwrap();
    assert_eq!(rebound.status().as_u16(), 421);
}
