//! Single sign-on with a real OpenID provider in a real browser.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use e2e::{Browser, Options, Page, Server, free_port, source, wait_until};
use reqwest::Method;
use serde_json::json;

use crate::page_helpers::{has, press, shows, write};

/// A provider that accepts every user name; `ada` is in the group `admins`.
struct Provider(Child);

impl Provider {
    fn start(port: u16, callback: &str) -> Self {
        let script = source::root().join("web/test/provider.mjs");
        let package = source::root().join("web/node_modules/oidc-provider");
        assert!(package.exists(), "{} is missing: run ./build-web", package.display());
        let mut node = Command::new("/usr/bin/node");
        node.arg(script).arg(port.to_string()).arg(callback).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = node.spawn().expect("starting the provider; apt-get install nodejs");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let is_ready = lines.any(|line| line.is_ok_and(|line| line == "listening"));
        // The pipe must be drained, because the provider keeps printing.
        std::thread::spawn(move || lines.for_each(drop));
        assert!(is_ready, "the provider has ended at once");
        Self(child)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server(issuer: &str) -> Server {
    let server = Server::prepare(Options::default());
    let secret = server.folder().join("oidc.secret");
    std::fs::write(&secret, "a secret of the client\n").unwrap();
    let config = format!(
        "[oidc]\nname = \"Example\"\nissuer = \"{issuer}\"\nclient_id = \"caisson\"\nclient_secret_file = \"{}\"\n\
         scopes = [\"email\", \"groups\"]\n[oidc.roles]\nadmins = \"admin\"\n[oidc.limits.admin]\nmax_running = 1\n\
         max_queued = 1\n",
        secret.display()
    );
    std::fs::write(server.folder().join("caisson.toml"), config).unwrap();
    server.restart();
    server
}

/// Logs in through the provider's own pages.
fn log_in_as(page: &mut Page, name: &str) {
    page.wait_for("the key is asked for", &shows("Log in with Example"));
    press(page, "Log in with Example");
    page.wait_for("the provider asks who it is", &has("input[name=login]"));
    write(page, "input[name=login]", name);
    write(page, "input[name=password]", "any");
    page.evaluate("document.querySelector('form').submit()");
    page.wait_for(
        "it asks whether that is right",
        "document.querySelector('input[name=prompt][value=consent]') !== null",
    );
    page.evaluate("document.querySelector('form').submit()");
}

#[test]
fn oidc_login_takes_the_role_from_the_claim() {
    let port = free_port();
    let issuer = format!("http://localhost:{port}");
    let server = server(&issuer);
    server.get("/v1/jobs").expect_problem(401, "key_missing");
    let _provider = Provider::start(port, &format!("http://localhost:{}/v1/login/callback", server.port));
    let browser = Browser::start();
    let mut page = browser.open(&format!("http://localhost:{}/", server.port));
    log_in_as(&mut page, "ada");
    page.wait_for("the page says who this is", &shows("ada@example.org"));
    let session = page.evaluate("fetch('/v1/session').then(answer => answer.json())");
    assert_eq!(
        session,
        json!({"needs_key": true, "name": "ada@example.org", "role": "admin", "login_with": "Example"})
    );
    let job = page.evaluate(
        "fetch('/schedule', {method: 'POST', headers: {'content-type': 'application/json'}, \
         body: JSON.stringify({steps: [{tool: 'shell', command: 'true'}]})}).then(answer => answer.json())",
    );
    let id = job["job_id"].as_str().unwrap_or_else(|| panic!("{job}"));
    let owner = page
        .evaluate(&format!("fetch('/v1/jobs/{id}').then(answer => answer.json()).then(job => job.owner)"));
    assert_eq!(owner, "ada@example.org");
    // A share link ends with the login of its creator, whatever lifetime she asks for.
    let link = page.evaluate(&format!(
        "fetch('/v1/jobs/{id}/shares', {{method: 'POST', headers: {{'content-type': 'application/json'}}, \
         body: JSON.stringify({{view: 'files', for_s: 2592000}})}}).then(answer => answer.json())\
         .then(link => ({{url: link.url, hours: (new Date(link.expires_at) - new Date()) / 3600000}}))"
    ));
    let hours = link["hours"].as_f64().unwrap_or_else(|| panic!("{link}"));
    assert!(hours > 6.0 && hours < 12.1, "it holds for {hours} hours");
    // Limits of users are set by role: one job runs, one waits, a third is refused.
    page.wait_for(
        "the first job is over",
        &format!(
            "fetch('/v1/jobs/{id}').then(answer => answer.json()).then(job => job.status === 'complete')"
        ),
    );
    let hand_in = "fetch('/schedule', {method: 'POST', headers: {'content-type': 'application/json'}, \
         body: JSON.stringify({steps: [{tool: 'shell', command: 'sleep 3600'}]})})";
    let first = page.evaluate(&format!("{hand_in}.then(answer => answer.json())"));
    let first = first["job_id"].as_str().unwrap_or_else(|| panic!("{first}")).to_owned();
    page.wait_for(
        "it works",
        &format!(
            "fetch('/v1/jobs/{first}').then(answer => answer.json()).then(job => job.status === 'running')"
        ),
    );
    assert_eq!(page.evaluate(&format!("{hand_in}.then(answer => answer.status)")), json!(202));
    let refused = page.evaluate(&format!("{hand_in}.then(answer => answer.json())"));
    assert_eq!(
        (&refused["status"], &refused["code"]),
        (&json!(429), &json!("key_quota_exceeded")),
        "{refused}"
    );
    // Logging out ends the session on the server: a copy of its cookie becomes useless, and so does the link.
    let cookies = page.ask("Network.getCookies", &json!({}))["cookies"].clone();
    let session =
        cookies.as_array().unwrap().iter().find(|cookie| cookie["name"] == "caisson_session").unwrap();
    let copied = format!("caisson_session={}", session["value"].as_str().unwrap());
    let sealed = link["url"].as_str().unwrap().rsplit('/').next().unwrap();
    let files = format!("/v1/jobs/{id}/files?share={sealed}");
    let by_copy = || server.send(server.request(Method::GET, "/v1/jobs").header("Cookie", &copied));
    by_copy().expect(200);
    server.get(&files).expect(200);
    press(&mut page, "Log out");
    page.wait_for("the key is asked for again", &shows("This server requires an API key"));
    page.assert_no_exceptions();
    by_copy().expect_problem(401, "key_missing");
    server.get(&files).expect_problem(401, "key_missing");
    server.kill9();
    server.restart();
    by_copy().expect_problem(401, "key_missing");

    let elsewhere = Browser::start();
    let mut page = elsewhere.open(&format!("http://localhost:{}/", server.port));
    log_in_as(&mut page, "bob");
    page.wait_for("who has no role is told so", &shows("bob@example.org has no role on this server"));
    assert_eq!(page.evaluate("fetch('/v1/jobs').then(answer => answer.status)"), json!(401));
}

#[test]
fn oidc_login_started_in_another_browser_is_refused() {
    let port = free_port();
    let server = server(&format!("http://localhost:{port}"));
    server.get("/v1/login").expect_problem(502, "provider_failed");
    let _provider = Provider::start(port, &format!("http://localhost:{}/v1/login/callback", server.port));
    let client = e2e::http_client().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    // The server does not contact a failed provider again for a moment.
    let mut begun = client.get(server.url("/v1/login")).send().unwrap();
    wait_until("the provider is asked again", || {
        begun = client.get(server.url("/v1/login")).send().unwrap();
        begun.status().as_u16() == 303
    });
    let place = begun.headers()["location"].to_str().unwrap().to_owned();
    for part in ["code_challenge_method=S256", "response_type=code", "state=", "nonce=", "client_id=caisson"]
    {
        assert!(place.contains(part), "{place}");
    }
    let cookie = begun.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    let kept = cookie.split(';').next().unwrap();
    for (query, cookie) in
        [("code=x&state=y", kept), ("code=x&state=y", ""), ("error=access_denied", kept), ("", kept)]
    {
        let request = client.get(server.url(&format!("/v1/login/callback?{query}"))).header("cookie", cookie);
        let answer = request.send().unwrap();
        assert_eq!(answer.status().as_u16(), 303);
        assert_eq!(answer.headers()["location"], "/", "{query}");
        // Without the state of a login that this browser started, no text from the request is shown to anybody.
        let cookies: Vec<&str> =
            answer.headers().get_all("set-cookie").iter().map(|cookie| cookie.to_str().unwrap()).collect();
        let told = "caisson_login_problem=the%20login%20was%20started%20in%20another%20browser";
        assert!(cookies.len() == 1 && cookies[0].starts_with(told), "{query}: {cookies:?}");
    }
    // Each failed login is logged, without the values from its request.
    let file = server.data().join("access.jsonl");
    wait_until("the failed logins are told of", || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let failed = lines.filter(|line| line["path"] == "/v1/login/callback" && line["status"] == 303);
        failed.map(|line| line["count"].as_u64().unwrap()).sum::<u64>() == 4
    });
    assert!(!server.log().contains("access_denied"), "{}", server.log());
}
