//! Open streams end when the key or share link that opened them ends.

use std::io::{BufRead as _, BufReader, Read as _};

use e2e::{Options, Said, Socket};
use reqwest::blocking::Response;
use serde_json::{Value, json};

use crate::keyed_server::{Keyed, start};

fn terminal(keyed: &Keyed, path: &str, key: &str) -> Socket {
    let bearer = format!("Bearer {key}");
    let opened = Socket::try_open(&keyed.server, path, &[("authorization", &bearer)]);
    opened.unwrap_or_else(|(status, body)| panic!("{path}: {status} {body}"))
}

/// Reads until the server closes the socket, for at most 90 seconds.
pub(crate) fn until_closed(mut socket: Socket) {
    while !matches!(socket.hear(), Said::Closed(_)) {}
}

/// Opens an event stream and waits for its first line.
pub(crate) fn follow(request: reqwest::blocking::RequestBuilder) -> BufReader<Response> {
    let request = request.timeout(std::time::Duration::from_secs(90));
    let response = request.send().unwrap();
    assert_eq!(response.status(), 200);
    let mut events = BufReader::new(response);
    events.read_line(&mut String::new()).unwrap();
    events
}

/// Reads until the stream ends; panics if the request times out first.
pub(crate) fn until_end(mut events: BufReader<Response>) -> String {
    let mut rest = String::new();
    events.read_to_string(&mut rest).expect("the server has not ended the stream");
    rest
}

fn running(keyed: &Keyed, key: &str) -> String {
    let job = keyed.schedule(key, "sleep 3600");
    keyed.wait_for(&job, "running");
    job
}

#[test]
fn open_streams_end_when_their_key_is_revoked() {
    let keyed = start(Options::default());
    let (ada, bob) = (keyed.key("ada", "operator", &json!({})), keyed.key("bob", "operator", &json!({})));
    let job = running(&keyed, &keyed.admin);
    let path = format!("/v1/jobs/{job}/terminal");
    let (mut of_ada, mut of_bob) = (terminal(&keyed, &path, &ada), terminal(&keyed, &path, &bob));
    for socket in [&mut of_ada, &mut of_bob] {
        socket.session();
        socket.send_bytes(b"echo one-$((1+1))\n");
        socket.until_terminal_shows("one-2");
    }
    let events_path = format!("/v1/jobs/{job}/events");
    let events_of_ada = follow(keyed.request(&ada, reqwest::Method::GET, &events_path));
    let login = keyed.server.post("/v1/session", &json!({"key": ada})).expect(200);
    let session = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let by_session = keyed.server.request(reqwest::Method::GET, &events_path).header("cookie", &session);
    let events_of_session = follow(by_session);

    keyed.delete(&keyed.admin, "/v1/keys/ada").expect(204);
    until_closed(of_ada);
    assert!(!until_end(events_of_ada).contains("event: end"), "the job goes on");
    until_end(events_of_session);
    of_bob.send_bytes(b"echo two-$((1+2))\n");
    of_bob.until_terminal_shows("two-3");
    keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");
}

#[test]
fn open_streams_end_when_their_share_link_expires() {
    let keyed = start(Options::default());
    let job = running(&keyed, &keyed.admin);
    // Long enough to open the streams on a slow machine, short enough to wait for the end.
    let link = |view: &str| {
        let body = json!({"view": view, "rights": "use", "for_s": 20});
        let made = keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/shares"), &body).expect(201).json();
        made["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()
    };
    let path = format!("/v1/jobs/{job}/terminal?share={}", link("terminal"));
    let mut socket = Socket::open(&keyed.server, &path);
    let events = format!("/v1/jobs/{job}/events?share={}", link("events"));
    let events = follow(keyed.server.request(reqwest::Method::GET, &events));
    socket.send_bytes(b"echo one-$((1+1))\n");
    socket.until_terminal_shows("one-2");
    until_closed(socket);
    assert!(!until_end(events).contains("event: end"), "the job goes on");
    let refused = Socket::try_open(&keyed.server, &path, &[]).err().map(|(status, _)| status);
    assert_eq!(refused, Some(401), "the link is over");
    assert_eq!(keyed.status(&job), "running");
    keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");
}

#[test]
fn view_only_share_link_cannot_type_into_a_terminal() {
    let keyed = start(Options::default());
    let job = running(&keyed, &keyed.admin);
    let path = format!("/v1/jobs/{job}/terminal");
    let mut own = terminal(&keyed, &path, &keyed.admin);
    let session = own.session();
    let made = keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/shares"), &json!({"view": "terminal"}));
    let link = made.expect(201).json()["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let otherwise = path.replacen("/v1/jobs/0", "/v1/jobs/%30", 1);
    for path in [&path, &otherwise] {
        let problem_of = |socket: &mut Socket| loop {
            match socket.hear() {
                Said::Text(notice) if notice["type"] == "problem" => return notice["code"].clone(),
                Said::Closed(code) => panic!("closed with {code:?}"),
                _ => {}
            }
        };
        let mut shell = Socket::open(&keyed.server, &format!("{path}?share={link}"));
        assert_eq!(problem_of(&mut shell), "view_only", "a shell of one's own is more than watching");
        let mut guest = Socket::open(&keyed.server, &format!("{path}?session={session}&share={link}"));
        guest.send_bytes(b"touch guest\n");
        assert_eq!(problem_of(&mut guest), "view_only");
    }
    own.send_bytes(b"ls; echo done-$((1+1))\n");
    own.until_terminal_shows("done-2");
    keyed.get(&keyed.admin, &format!("/v1/jobs/{job}/files/guest")).expect(404);
    keyed.post(&keyed.admin, &format!("/v1/jobs/{job}/cancel"), &Value::Null).expect(202);
    keyed.wait_for(&job, "cancelled");
}
