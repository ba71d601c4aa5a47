//! Logging out ends the session on the server, also across restarts: a copy of its cookie becomes useless. A cookie
//! alone, without an `Origin` header, changes nothing.

use e2e::{Answer, Options, Socket};
use reqwest::Method;
use reqwest::blocking::RequestBuilder;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start};
use crate::streams::{follow, until_closed, until_end};

/// Logs in and returns the cookie.
fn log_in(keyed: &Keyed) -> String {
    let login = keyed.server.post("/v1/session", &json!({"key": keyed.admin})).expect(200);
    login.header("set-cookie").split(';').next().unwrap().to_owned()
}

fn by(keyed: &Keyed, cookie: &str, method: Method, path: &str) -> RequestBuilder {
    keyed.server.request(method, path).header("Cookie", cookie).header("Origin", keyed.server.url(""))
}

fn jobs(keyed: &Keyed, cookie: &str) -> Answer {
    keyed.server.send(by(keyed, cookie, Method::GET, "/v1/jobs"))
}

#[test]
fn copied_session_cookie_is_useless_after_logout() {
    let keyed = start(Options::default());
    let (copied, other) = (log_in(&keyed), log_in(&keyed));
    let job = keyed.schedule(&keyed.admin, "sleep 3600");
    keyed.wait_for(&job, "running");
    let events = follow(by(&keyed, &copied, Method::GET, &format!("/v1/jobs/{job}/events")));
    let origin = keyed.server.url("");
    let with = [("cookie", copied.as_str()), ("origin", origin.as_str())];
    let terminal = Socket::try_open(&keyed.server, &format!("/v1/jobs/{job}/terminal"), &with).ok().unwrap();
    let enter = |view: &str| {
        let body = json!({"view": view, "this_login": true});
        keyed.server.send(by(&keyed, &copied, Method::POST, &format!("/v1/jobs/{job}/shares")).json(&body))
    };
    enter("terminal").expect_problem(422, "invalid_field");
    let pass = enter("8123").expect(201).json();
    let pass = pass["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let enter = || {
        let host = format!("{job}-8123.localhost:{}", keyed.server.port);
        let request = keyed.server.request(Method::GET, "/").header("Host", host);
        keyed.server.send(request.header("Cookie", format!("caisson_pass={pass}"))).status
    };
    assert_eq!(enter(), 502, "nothing listens there, and one is let in");
    let listed = keyed.get(&keyed.admin, &format!("/v1/jobs/{job}/shares")).expect(200).json();
    assert_eq!(listed["shares"], json!([]), "what the page makes for itself is no link for others");

    let out = keyed.server.send(by(&keyed, &copied, Method::DELETE, "/v1/session")).expect(204);
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    jobs(&keyed, &copied).expect_problem(401, "key_missing");
    until_closed(terminal);
    assert!(!until_end(events).contains("event: end"), "the job goes on");
    assert_eq!(enter(), 401, "what was entered with the login is shut, too");
    jobs(&keyed, &other).expect(200);
    keyed.server.kill9();
    keyed.server.restart();
    jobs(&keyed, &copied).expect_problem(401, "key_missing");
    jobs(&keyed, &other).expect(200);
    keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");
}

#[test]
fn cookie_requests_without_an_origin_cannot_change_anything() {
    let keyed = start(Options::default());
    let cookie = log_in(&keyed);
    let job = keyed.schedule(&keyed.admin, "sleep 3600");
    keyed.wait_for(&job, "running");
    let cancel = format!("/v1/jobs/{job}/cancel");
    let post = || keyed.server.request(Method::POST, &cancel);
    keyed.server.send(post().header("Cookie", &cookie)).expect_problem(403, "origin_missing");
    for path in ["terminal", "exec/stream", "ports/9"] {
        let path = format!("/v1/jobs/{job}/{path}");
        let refused = Socket::try_open(&keyed.server, &path, &[("cookie", &cookie)]).err();
        let (status, body) = refused.unwrap_or_else(|| panic!("{path} was opened"));
        assert!(status == 403 && body.contains("origin_missing"), "{path}: {status} {body}");
    }
    jobs(&keyed, &cookie).expect(200);
    // An API key needs no `Origin` header.
    let bearer = format!("Bearer {}", keyed.admin);
    let path = format!("/v1/jobs/{job}/terminal");
    assert!(Socket::try_open(&keyed.server, &path, &[("authorization", &bearer)]).is_ok());
    keyed.server.send(post().header("Cookie", &cookie).header("Sec-Fetch-Site", "same-origin")).expect(202);
    keyed.wait_for(&job, "cancelled");
}
