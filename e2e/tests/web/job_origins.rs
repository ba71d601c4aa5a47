//! On a server with API keys, what a job serves is shown without a secret in any URL.

use e2e::{Browser, Server, shell};
use reqwest::Method;
use serde_json::{Value, json};

use crate::page_helpers::{has, open, press, shows, write};

#[test]
fn preview_opens_without_a_secret_in_any_url() {
    let server = Server::start();
    let made = server.post("/v1/keys", &json!({"name": "root", "role": "admin"})).expect(201).json();
    let admin = made["secret"].as_str().unwrap();
    let serve = "echo '<p>served by the job</p>' > index.html; (python3 -m http.server 8123 --bind 127.0.0.1 > served.log 2>&1 &); until [ -e go ]; do sleep 0.05; done";
    let request = server.request(Method::POST, "/schedule").bearer_auth(admin);
    let job = server.send(request.json(&json!({"steps": [shell(serve)]}))).expect(202).json();
    let id = job["job_id"].as_str().unwrap().to_owned();
    let browser = Browser::start();
    let mut page = open(&browser, &server, &format!("#/jobs/{id}/preview"));
    write(&mut page, "#key", admin);
    press(&mut page, "Log in");
    page.wait_for("the page of the job is framed", &has("iframe[title='Preview of port 8123']"));
    let mut frame = browser.frame(&format!("{id}-8123.localhost"));
    frame.wait_for("it is shown", &shows("served by the job"));
    press(&mut page, "Open in a new tab");
    let place = format!("{id}-8123.localhost");
    browser.wait_for_page(&place).wait_for("it is shown in a tab", &shows("served by the job"));
    let mut addresses = browser.addresses();
    for page in [&mut page, &mut frame] {
        let seen = page.evaluate(
            "[location.href, document.referrer, ...performance.getEntries().map(entry => entry.name), ...[...document.querySelectorAll('iframe')].map(frame => frame.src)]",
        );
        addresses.extend(seen.as_array().unwrap().iter().filter_map(Value::as_str).map(ToOwned::to_owned));
    }
    let secret = |address: &&String| {
        ["pass=", "takeover=", "/share/", "token", "key="].iter().any(|word| address.contains(word))
    };
    assert_eq!(addresses.iter().filter(secret).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(addresses.iter().any(|address| address.contains(&place)), "{addresses:?}");
    // Without the token in the form the server rejects the request.
    let stranger = server.request(Method::GET, "/").header("host", format!("{place}:{}", server.port));
    assert_eq!(server.send(stranger).status, 401);
    let forged =
        server.request(Method::POST, "/_caisson/enter").header("host", format!("{place}:{}", server.port));
    let answer = server
        .send(forged.header("content-type", "application/x-www-form-urlencoded").body("pass=made.up.x&to=/"));
    assert!(answer.status >= 400, "{}", answer.status);
    page.assert_no_exceptions();
}
