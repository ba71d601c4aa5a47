//! Refused connections as input requests: a user allows once, for the rest of the job, or never, and the running job
//! continues.

use e2e::{Event, ExternalServer, Follower, Options, Server, respond, shell};
use serde_json::{Value, json};

fn server(more: &str) -> Server {
    let config = format!("[egress]\nallow_ranges = [\"127.0.0.0/8\"]\n{more}\n");
    Server::start_with(Options { config, ..Options::default() })
}

fn hello() -> ExternalServer {
    ExternalServer::http(|_, client| respond(client, b"hello"))
}

fn fetch(port: u16) -> String {
    format!("curl -sS -m 100 --noproxy '' -o /dev/null -w '%{{http_code}}\\n' http://localhost:{port}/")
}

fn opened(event: &Event) -> bool {
    event.is("input_requested") && event.data()["kind"] == "egress"
}

fn requests(events: &Follower<'_>) -> usize {
    events.count(opened)
}

#[test]
fn connection_waits_for_approval_for_the_rest_of_the_job() {
    let (server, outside) = (server(""), hello());
    let command = format!("{0}; {0}", fetch(outside.port));
    let job = server.schedule(&json!({"steps": [shell(&command)], "egress": "off", "egress_wait_s": 100}));
    let mut events = job.follow();
    let asked = events.until("a request", opened);
    assert_eq!(asked.data()["egress"]["rule"], format!("localhost:{}", outside.port));
    assert_eq!(asked.data()["egress"]["code"], "egress_off");
    assert_eq!(asked.data()["call"], "step-1");
    let listed = job.get("requests").expect(200).json();
    assert_eq!(listed["requests"][0]["id"], "egress-1", "{listed}");
    job.post("requests/egress-1", &json!({"accept": true, "scope": "rest"})).expect(202);
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "200\n200\n", "{}", events.summary());
    assert_eq!(requests(&events), 1);
    assert_eq!(job.get("requests").expect(200).json()["requests"], json!([]));
    let network = job.get("network").expect(200).json();
    assert_eq!(network["approved"], json!([format!("localhost:{}", outside.port)]), "{network}");
}

#[test]
fn one_time_approval_is_used_once_even_after_a_restart() {
    let (server, outside) = (server(""), hello());
    let once = fetch(outside.port);
    let command = format!(
        "{once}; until [ -e go ]; do sleep 0.05; done; {once}; {once}; until [ -e more ]; do sleep 0.05; done; {once}"
    );
    let job = server.schedule_steps(&[shell(&command)]);
    let mut events = job.follow();
    events.until("a request", opened);
    job.post("requests/egress-1", &json!({"accept": true})).expect(202);
    server.kill9();
    server.restart();
    job.touch("go");
    // The first of two connections uses up the permission, and the second asks again.
    events.until("a second request", opened);
    job.post("requests/egress-2", &json!({"accept": false})).expect(202);
    job.touch("more");
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "403\n200\n403\n403\n", "{}", events.summary());
    // A denied connection does not ask again.
    assert_eq!(requests(&events), 2);
    assert_eq!(outside.heads().len(), 1);
}

#[test]
fn unanswered_connection_is_refused_and_answers_are_validated() {
    let (server, outside) = (server("wait_s = 1"), hello());
    let command = format!("{}; until [ -e go ]; do sleep 0.05; done", fetch(outside.port));
    let job = server.schedule_steps(&[shell(&command)]);
    let mut events = job.follow();
    events.until("the refusal", |event| event.is("call_output"));
    for (answer, field) in [
        (json!({}), "accept"),
        (json!({"accept": false, "scope": "rest"}), "scope"),
        (json!({"accept": true, "plan": {"items": []}}), "plan"),
    ] {
        let refusal = job.post("requests/egress-1", &answer).expect(422).json();
        assert_eq!(refusal["field"], field, "{refusal}");
    }
    job.post("requests/egress-1", &json!({"accept": true, "scope": "ever"})).expect(422);
    job.post("requests/egress-9", &json!({"accept": true})).expect(404);
    job.touch("go");
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "403\n");
    // A job that has ended has no open requests.
    assert_eq!(job.get("requests").expect(200).json()["requests"], json!([]));
}

#[test]
fn egress_cannot_exceed_the_operators_ceiling() {
    let outside = hello();
    let server = server("default = \"packages\"\nceiling = { allow = [\"packages\", \"allowed.invalid\"] }");
    let refusal =
        server.post("/schedule", &json!({"steps": [shell("true")], "egress": "open"})).expect(422).json();
    assert_eq!(refusal["field"], "egress", "{refusal}");
    assert!(refusal["detail"].as_str().unwrap().contains("ceiling"), "{refusal}");
    let place = format!("localhost:{}", outside.port);
    let job = server.schedule(&json!({"steps": [shell(&fetch(outside.port))], "egress": {"allow": [place]}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "403\n");
    let refused = |event: &Event| event.is("egress") && event.data()["code"] == "above_ceiling";
    assert_eq!((events.count(refused), requests(&events)), (1, 0), "{}", events.summary());
}

#[test]
fn refused_connections_of_background_programs_open_no_request() {
    let (server, outside) = (server(""), hello());
    let fetch = fetch(outside.port);
    let wait = |file: &str| format!("until [ -e {file} ]; do sleep 0.05; done");
    let background = format!("({}; {fetch}) >/dev/null 2>&1 & {}", wait("go"), wait("paused"));
    let job = server.schedule(&json!({"steps": [shell(&background), shell(&fetch)], "egress": "off"}));
    let mut events = job.follow();
    events.until("the call", |event| event.is("call_started"));
    job.post("pause", &json!({})).expect(202);
    job.touch("paused");
    events.until("the pause", |event| event.is_state("paused"));
    job.touch("go");
    let refused = events.until("the refusal", |event| event.is("egress"));
    assert_eq!(refused.data()["code"], "egress_off", "{refused:?}");
    assert_eq!(requests(&events), 0, "{}", events.summary());
    job.post("resume", &json!({})).expect(202);
    events.until_end();
    assert_eq!(events.output("step-2.1", "stdout"), "403\n", "{}", events.summary());
    assert_eq!(requests(&events), 1, "{}", events.summary());
}

#[test]
fn bare_sandbox_connections_can_be_approved() {
    let (server, outside) = (server(""), hello());
    let sandbox = server.create_sandbox(&json!({"egress": "off"}));
    let fetch = json!({"command": fetch(outside.port)});
    assert_eq!(sandbox.post("exec", &fetch).expect(200).json()["stdout"], "403\n");
    let listed: Value = server.get(&format!("/v1/jobs/{}/requests", sandbox.id)).expect(200).json();
    assert_eq!(listed["requests"][0]["kind"], "egress", "{listed}");
    let answer = json!({"accept": true, "scope": "rest"});
    server.post(&format!("/v1/jobs/{}/requests/egress-1", sandbox.id), &answer).expect(202);
    assert_eq!(sandbox.post("exec", &fetch).expect(200).json()["stdout"], "200\n");
}
