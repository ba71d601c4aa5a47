//! The page of a server with API keys: log in, see one's name, create keys, share a view, log out.

use e2e::{Browser, Server, shell, wait_until};
use reqwest::Method;
use serde_json::json;

use crate::page_helpers::{has, open, press, shows, write};

fn secret_of(server: &Server, key: Option<&str>, name: &str, role: &str) -> String {
    let mut request = server.request(Method::POST, "/v1/keys").json(&json!({"name": name, "role": role}));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    server.send(request).expect(201).json()["secret"].as_str().unwrap().to_owned()
}

#[test]
fn page_logs_in_with_a_key_creates_another_and_logs_out() {
    let server = Server::start();
    let admin = secret_of(&server, None, "root", "admin");
    let browser = Browser::start();
    let mut page = open(&browser, &server, "#/admin");
    page.wait_for("the key is asked for", &shows("This server requires an API key"));
    write(&mut page, "#key", "caisson_wrong");
    press(&mut page, "Log in");
    page.wait_for("a wrong one is refused", &shows("unknown or revoked API key"));
    write(&mut page, "#key", &admin);
    press(&mut page, "Log in");
    page.wait_for("the page says who this is", &shows("root"));
    page.wait_for("the keys are listed", &has(".keys table"));
    assert_eq!(page.evaluate("document.cookie"), json!(""), "no script can read the session");

    write(&mut page, "#key-name", "robot");
    press(&mut page, "Create key");
    page.wait_for("the secret is shown once", &has(".secret code"));
    let secret = page.evaluate("document.querySelector('.secret code').textContent");
    let secret = secret.as_str().unwrap().to_owned();
    server.send(server.request(Method::GET, "/v1/jobs").bearer_auth(&secret)).expect(200);
    press(&mut page, "Done");
    page.wait_for("and not again", &format!("!document.body.innerHTML.includes({secret:?})"));
    page.evaluate("window.confirm = () => true");
    page.act("document.querySelector('[aria-label=\"Revoke robot\"]').click()");
    wait_until("the key has ended", || {
        server.send(server.request(Method::GET, "/v1/jobs").bearer_auth(&secret)).status == 401
    });

    press(&mut page, "Log out");
    page.wait_for("the key is asked for again", &shows("This server requires an API key"));
    assert_eq!(page.evaluate("fetch('/v1/jobs').then(answer => answer.status)"), json!(401));
    page.assert_no_exceptions();
}

#[test]
fn page_creates_lists_and_revokes_share_links() {
    let server = Server::start();
    let admin = secret_of(&server, None, "root", "admin");
    let request = server.request(Method::POST, "/schedule").bearer_auth(&admin);
    let job = server.send(request.json(&json!({"steps": [shell("echo text > a.txt")]}))).expect(202).json();
    let id = job["job_id"].as_str().unwrap().to_owned();
    wait_until("the job is over", || {
        let answer = server.send(server.request(Method::GET, &format!("/v1/jobs/{id}")).bearer_auth(&admin));
        answer.json()["status"] == "complete"
    });
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{id}/files"));
    write(&mut page, "#key", &admin);
    press(&mut page, "Log in");
    page.wait_for("the file is listed", &has(".entry"));
    page.act("document.querySelector('[aria-label=\"Share files\"]').click()");
    press(&mut page, "Create link");
    page.wait_for("the link is shown", &has("input.link"));
    page.wait_for("and listed", &has("#share-files li"));
    let told = page.evaluate("document.querySelector('#share-files li').innerText");
    let told = told.as_str().unwrap();
    assert!(told.contains("files, view only") && told.contains("created by root on"), "{told}");
    let link = page.evaluate("document.querySelector('input.link').value");
    let sealed = link.as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let files = format!("/v1/jobs/{id}/files?share={sealed}");
    server.get(&files).expect(200);
    press(&mut page, "Revoke");
    page.wait_for("the link is gone", &format!("!({}) && !({})", has("#share-files li"), has("input.link")));
    server.get(&files).expect_problem(401, "key_missing");
    page.assert_no_exceptions();
}

#[test]
fn page_of_another_site_cannot_use_the_login() {
    let server = Server::start();
    let admin = secret_of(&server, None, "root", "admin");
    let login = server.post("/v1/session", &json!({"key": admin})).expect(200);
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let own = format!("http://127.0.0.1:{}", server.port);
    for (origin, status) in
        [("https://evil.example", 403), ("http://a.localhost:1", 403), ("null", 403), (own.as_str(), 202)]
    {
        let request = server.request(Method::POST, "/schedule").json(&json!({"steps": [shell("true")]}));
        let answer = server.send(request.header("Cookie", &cookie).header("Origin", origin));
        assert_eq!(answer.status, status, "{origin}: {}", answer.text());
    }
    for site in ["cross-site", "same-site"] {
        let request = server.request(Method::DELETE, "/v1/keys/root").header("Cookie", &cookie);
        let answer = server.send(request.header("Sec-Fetch-Site", site));
        answer.expect_problem(403, "origin_not_allowed");
    }
}

#[test]
fn shared_terminal_opens_without_a_key_and_nothing_else_does() {
    let server = Server::start();
    let admin = secret_of(&server, None, "root", "admin");
    let request = server.request(Method::POST, "/schedule").bearer_auth(&admin);
    let job = server
        .send(request.json(&json!({"steps": [shell("until [ -e go ]; do sleep 0.05; done")]})))
        .expect(202)
        .json();
    let id = job["job_id"].as_str().unwrap().to_owned();
    let status = || {
        let answer = server.send(server.request(Method::GET, &format!("/v1/jobs/{id}")).bearer_auth(&admin));
        answer.json()["status"].as_str().unwrap_or_default().to_owned()
    };
    wait_until("the job runs", || status() == "running");
    let request = server.request(Method::POST, &format!("/v1/jobs/{id}/shares")).bearer_auth(&admin);
    let made = server.send(request.json(&json!({"view": "terminal", "rights": "use"}))).expect(201).json();
    let browser = Browser::start();
    let mut page = browser.open(made["url"].as_str().unwrap());
    page.wait_for("the terminal is there", &has(".xterm-screen"));
    page.wait_for("the shell is there", "document.querySelector('.xterm-rows')?.innerText.trim().length > 0");
    page.evaluate("document.querySelector('.xterm-helper-textarea').focus()");
    crate::page_helpers::type_keys(&mut page, "touch go");
    wait_until("what was typed has happened", || status() == "complete");
    assert_eq!(page.evaluate(&format!("fetch('/v1/jobs/{id}').then(answer => answer.status)")), json!(401));
    page.assert_no_exceptions();
}
