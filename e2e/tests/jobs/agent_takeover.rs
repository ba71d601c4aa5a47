//! Takeovers: the holder works in the sandbox, everybody else only watches.

use e2e::images::default_images;
use e2e::{Follower, Job, Options, Said, Server, Socket};
use model::scripted::{Order, Script, ScriptedServer};
use reqwest::Method;
use serde_json::{Value, json};

use crate::desktop::Viewer;
use crate::scripted::{Scripted, finish, model_section, shell};

/// Starts a job and takes it over; returns the job, its events and the token.
fn taken<'a>(scripted: &'a Scripted, body: &Value) -> (Job<'a>, Follower<'a>, String) {
    let job = scripted.schedule(body);
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    let answer = job.post("takeover", &json!({"by": "Ada"})).expect(202);
    let cookie = answer.header("set-cookie").to_owned();
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    assert!(cookie.starts_with(&format!("caisson-takeover={token}; Path=/v1/jobs/{}", job.id)), "{cookie}");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    job.put_file_as("go", "", &token).expect(200);
    events.until("paused", |event| event.is_state("paused") && event.data()["code"] == "takeover");
    (job, events, token)
}

fn waiting() -> Scripted {
    Scripted::turns(vec![
        shell("echo began; until [ -e go ]; do sleep 0.05; done"),
        shell("ls > seen"),
        finish(),
    ])
}

#[test]
fn during_a_takeover_only_the_holder_runs_and_writes() {
    let scripted = waiting();
    let (job, mut events, token) = taken(&scripted, &json!({"task": "share"}));
    let server = &scripted.server;
    let refused = |answer: e2e::Answer| {
        let problem = answer.expect(409).json();
        assert_eq!(problem["code"], "taken_over", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("Ada has taken over"), "{problem}");
    };
    refused(job.exec("echo no > no"));
    refused(job.put_file("no", "no"));
    refused(job.delete_file("go"));
    refused(job.post("files/go", &json!({"move_to": "gone"})));
    refused(job.post("input", &json!({"action": "windows"})));
    refused(job.post("code", &json!({"language": "python", "code": "1"})));
    refused(job.post("kernels/python3/interrupt", &json!({})));
    // Reading and sending messages stay possible.
    job.get_file("go").expect(200);
    job.get("ports").expect(200);
    job.post("message", &json!({"text": "take your time"})).expect(202);
    // Each of the three ways to pass the token.
    let path = format!("/v1/jobs/{}/exec", job.id);
    let body = json!({"command": "echo yes >> yes"});
    let exec = |path: &str| server.request(Method::POST, path).json(&body);
    server.send(exec(&path).header("X-Caisson-Takeover", &token)).expect(200);
    let by_cookie = exec(&path).header("Cookie", format!("a=b; caisson-takeover={token}"));
    server.send(by_cookie.header("Origin", server.url(""))).expect(200);
    server.send(exec(&format!("{path}?takeover={token}"))).expect(200);
    refused(server.send(exec(&path).header("X-Caisson-Takeover", "takeover-0")));
    // Percent-encoding the id makes no difference.
    let otherwise = path.replacen("/v1/jobs/0", "/v1/jobs/%30", 1);
    assert_ne!(otherwise, path);
    refused(server.send(exec(&otherwise)));
    // The takeover survives a crash of the server, and the log does not contain the token.
    assert!(!job.get("events?format=json&limit=1000").expect(200).text().contains(&token));
    server.kill9();
    server.restart();
    e2e::wait_until("the sandbox is reached", || {
        server.send(exec(&path).header("X-Caisson-Takeover", &token)).status == 200
    });
    refused(job.exec("echo no > no"));
    refused(job.post("handback", &json!({})));
    job.post("handback", &json!({"force": true})).expect(202);
    events.until_end();
    let mut zip = job.output();
    assert_eq!(zip.text("yes"), "yes\nyes\nyes\nyes\n");
    assert!(!zip.has("no") && zip.has("go"));
    let told = scripted.model.requests()[1].body.to_string();
    assert!(told.contains("echo yes >> yes") && told.contains("made yes"), "{told}");
}

#[test]
fn during_a_takeover_only_the_holder_types_into_terminals() {
    let scripted = waiting();
    let job = scripted.task("share");
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    // Bob connects before Ada takes over.
    let path = format!("/v1/jobs/{}/terminal", job.id);
    let mut bob = Socket::open(&scripted.server, &path);
    let session = bob.session();
    bob.send_bytes(b"echo first-$((1+1))\n");
    bob.until_terminal_shows("first-2");
    let token = job.post("takeover", &json!({"by": "Ada"})).expect(202).json()["token"].clone();
    let token = token.as_str().unwrap();
    bob.send_bytes(b"echo second-$((1+2)) > bob\n");
    let problem = problem_of(&mut bob);
    assert_eq!(problem["code"], "taken_over", "{problem}");
    // Bob cannot open a new shell; Ada types into the existing one, and Bob sees it.
    let mut other = Socket::open(&scripted.server, &path);
    assert_eq!(problem_of(&mut other)["status"], 409);
    let mut ada = Socket::open(&scripted.server, &format!("{path}?session={session}&takeover={token}"));
    assert_eq!(ada.session(), session);
    ada.send_bytes(b"echo third-$((1+3))\n");
    bob.until_terminal_shows("third-4");
    job.put_file_as("go", "", token).expect(200);
    let handback = scripted.server.request(Method::POST, &format!("/v1/jobs/{}/handback", job.id));
    scripted.server.send(handback.header("X-Caisson-Takeover", token)).expect(202);
    events.until_end();
    assert!(!job.output().has("bob"));
}

fn problem_of(socket: &mut Socket) -> Value {
    loop {
        match socket.hear() {
            Said::Text(notice) if notice["type"] == "problem" => return notice,
            Said::Closed(code) => panic!("closed with {code:?}"),
            _ => {}
        }
    }
}

#[test]
fn during_a_takeover_only_the_holder_uses_the_desktop() {
    let answers = vec![shell("echo began; until [ -e go ]; do sleep 0.05; done"), finish()];
    let model =
        ScriptedServer::start_on_thread(Script { order: Order::Turns, ..Script::of(answers) }).unwrap();
    let config = model_section(&format!("http://{}/v1", model.address()));
    let server = Server::start_with(Options { config, images: Some(default_images()), ..Options::default() });
    let job = server.schedule(&json!({"task": "share", "image": "default"}));
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    let path = format!("/v1/jobs/{}/desktop/socket", job.id);
    let mut bob = Viewer::open_at(&server, &path);
    let token = job.post("takeover", &json!({"by": "Ada"})).expect(202).json()["token"].clone();
    let token = token.as_str().unwrap();
    let ada = |verb: &str, body: &Value| {
        let request = server.request(Method::POST, &format!("/v1/jobs/{}/{verb}", job.id));
        server.send(request.header("X-Caisson-Takeover", token).json(body))
    };
    let launch =
        json!({"action": "launch", "command": "xterm -T Typed -e sh -c 'read line; echo $line > typed'"});
    ada("input", &launch).expect(200);
    ada("input", &json!({"action": "wait", "window": "Typed", "seconds": 60})).expect(200);
    ada("input", &json!({"action": "focus", "window": "Typed"})).expect(200);
    // Bob sees the screen, but his input is dropped; a viewer with the token is Ada's.
    bob.type_text("bob\n");
    let mut own = Viewer::open_at(&server, &format!("{path}?takeover={token}"));
    own.type_text("ada\n");
    ada("exec", &json!({"command": "until [ -s typed ]; do sleep 0.05; done; touch go"})).expect(200);
    ada("handback", &json!({})).expect(202);
    events.until_end();
    assert_eq!(job.output().text("typed"), "ada\n");
}
