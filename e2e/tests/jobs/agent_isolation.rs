//! What an agent's job cannot do to others or to its budget: take tools away from other jobs, get broken answers for
//! free, be taken over by two users at once; and a model server that goes away.

use std::net::TcpStream;
use std::sync::Barrier;

use e2e::{Options, Server, wait_until};
use model::Dialect;
use model::scripted::{Fault, Order, Script, ScriptedAnswer, ScriptedServer, Times};
use serde_json::{Value, json};

use crate::scripted::{Scripted, finish, shell};

/// The names of the tools that a request offers.
fn tools(body: &Value) -> Vec<String> {
    let named = body["tools"].as_array().into_iter().flatten();
    named.filter_map(|tool| tool["function"]["name"].as_str()).map(ToOwned::to_owned).collect()
}

#[test]
fn job_environment_does_not_remove_tools_from_other_jobs() {
    let scripted = Scripted::sequence(vec![finish(), finish()]);
    let strange = json!({"task": "be strange", "environment": {"PATH": "/nowhere", "BASH_ENV": "/nowhere"}});
    scripted.schedule(&strange).wait_for("complete");
    scripted.task("be plain").wait_for("complete");
    for request in scripted.model.requests() {
        let tools = tools(&request.body);
        for tool in ["python", "http_request"] {
            assert!(tools.iter().any(|name| name == tool), "no {tool} among {tools:?}");
        }
    }
}

#[test]
fn truncated_answers_count_towards_the_budget() {
    let cut = ScriptedAnswer {
        text: "one two three four five six".into(),
        letters: Some(4),
        fault: Some(Fault::Cut { after_events: Some(4) }),
        times: Times(0),
        ..ScriptedAnswer::default()
    };
    let model = ScriptedServer::start_on_thread(Script::of(vec![cut])).unwrap();
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "sk-test").unwrap();
    // An API dialect that reports the input tokens at the start of the answer.
    let config = format!(
        "[model]\nname = \"anthropic/claude-sonnet-5\"\nbase_url = \"{}\"\nkey_file = \"{}\"\nretries = 1\n",
        model.base_url(Dialect::Anthropic),
        key.path().display()
    );
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "never", "budget": {"tokens": 5000}}));
    let mut events = job.follow();
    let lost = events.until("what was lost", |event| event.is("model_answer_lost"));
    assert!(lost.data()["usage"]["input"].as_u64().unwrap() > 0, "{}", lost.data());
    events.until("paused", |event| event.is_state("paused"));
    let status = job.status();
    assert_eq!(status["code"], "budget", "{status:#}");
    assert!(status["agent"]["spent"]["input_tokens"].as_u64().unwrap() > 0, "{status:#}");
    assert_eq!(model.requests().len(), 2, "nobody is asked beyond the budget");
    job.cancel().expect(202);
    events.until_end();
}

#[test]
fn concurrent_takeovers_have_a_single_holder() {
    let scripted = Scripted::turns(vec![
        shell("echo began; until [ -e go ]; do sleep 0.05; done"),
        shell("ls > seen"),
        finish(),
    ]);
    let job = scripted.task("share");
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    let start = Barrier::new(4);
    let answers: Vec<e2e::Answer> = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|number| {
                let (job, start) = (&job, &start);
                scope.spawn(move || {
                    start.wait();
                    job.post("takeover", &json!({"by": format!("person {number}")}))
                })
            })
            .collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).collect()
    });
    let taken: Vec<&e2e::Answer> = answers.iter().filter(|answer| answer.status == 202).collect();
    assert_eq!(taken.len(), 1, "{:?}", answers.iter().map(e2e::Answer::text).collect::<Vec<_>>());
    assert!(answers.iter().filter(|answer| answer.status == 409).count() == 3);
    let token = taken[0].json()["token"].as_str().unwrap().to_owned();
    // The holder creates many files in an ignored folder, and one in the workspace's root.
    let fill =
        "mkdir -p a/node_modules && cd a/node_modules && seq 1 11000 | xargs touch; cd ../..; echo x > zeta";
    let path = format!("/v1/jobs/{}/exec", job.id);
    let exec = scripted.server.request(reqwest::Method::POST, &path).json(&json!({"command": fill}));
    scripted.server.send(exec.header("X-Caisson-Takeover", &token)).expect(200);
    job.put_file_as("go", "", &token).expect(200);
    job.post("handback", &json!({"force": true})).expect(202);
    events.until_end();
    let told = scripted.model.requests()[1].body.to_string();
    assert!(told.contains("made zeta") && !told.contains("more than 10000"), "{told}");
}

#[test]
fn local_model_server_is_discovered_and_rediscovered() {
    let play = || {
        let script = Script { order: Order::Turns, ..Script::of(vec![finish()]) };
        ScriptedServer::start_on_thread(script).unwrap()
    };
    let (first, second) = (play(), play());
    let ports = [first.address().port(), second.address().port()];
    let config = format!("[model]\nlocal_ports = {ports:?}\nretries = 0\n");
    let server = Server::start_with(Options { config, ..Options::default() });
    server.schedule(&json!({"task": "first"})).wait_for("complete");
    assert_eq!((first.requests().len(), second.requests().len()), (1, 0));
    let gone = first.address();
    drop(first);
    wait_until("the first is gone", || TcpStream::connect(gone).is_err());
    server.schedule(&json!({"task": "second"})).wait_for("complete");
    assert_eq!(second.requests().len(), 1);
}
