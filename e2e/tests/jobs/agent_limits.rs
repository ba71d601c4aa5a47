//! What an agent may not do forever: spend, loop, or wait for a model that answers badly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;

use e2e::{Options, Server};
use model::scripted::{Fault, Order, Script, ScriptedAnswer, ScriptedCall, ScriptedServer, Times};
use serde_json::{Value, json};

use crate::scripted::{Scripted, call, finish, model_section, shell, wait_until_stuck};

/// A model that repeats these answers.
fn circle(answers: &[ScriptedAnswer]) -> ScriptedServer {
    let many = std::iter::repeat_n(answers, 40).flatten().cloned().collect();
    ScriptedServer::start_on_thread(Script::of(many)).unwrap()
}

#[test]
fn every_exhausted_budget_pauses_the_job_and_is_named() {
    let works =
        || -> Vec<ScriptedAnswer> { (0..30).map(|number| shell(&format!("echo {number}"))).collect() };
    let model =
        ScriptedServer::start_on_thread(Script { order: Order::Turns, ..Script::of(works()) }).unwrap();
    let name = format!("http://{}/v1#scripted", model.address());
    let config =
        format!("[model]\nname = \"{name}\"\n[model.prices.\"{name}\"]\ninput = 1000.0\noutput = 1000.0\n");
    let server = Server::start_with(Options { config, ..Options::default() });
    let table = [
        (json!({"turns": 2}), "2 of 2 turns"),
        (json!({"tool_calls": 1}), "tool calls"),
        (json!({"tokens": 1}), "tokens"),
        (json!({"money_usd": 0.0001}), "$"),
    ];
    let jobs: Vec<_> = table
        .iter()
        .map(|(budget, reason)| {
            (server.schedule(&json!({"task": "spend", "budget": budget})), budget, reason)
        })
        .collect();
    for (job, budget, reason) in jobs {
        let mut events = job.follow();
        events.until("paused", |event| event.is_state("paused"));
        let status = job.status();
        assert_eq!(status["code"], "budget", "{budget}: {status:#}");
        assert!(status["reason"].as_str().unwrap().contains(reason), "{budget}: {status:#}");
        job.cancel().expect(202);
        events.until_end();
    }
    let sleeps = (0..30).map(|number| shell(&format!("sleep 0.3; echo {number}"))).collect();
    let sleeper =
        ScriptedServer::start_on_thread(Script { order: Order::Turns, ..Script::of(sleeps) }).unwrap();
    let name = format!("http://{}/v1", sleeper.address());
    let slow = server.schedule(&json!({"task": "be slow", "model": name, "budget": {"wall_s": 1}}));
    let mut events = slow.follow();
    events.until("paused", |event| event.is_state("paused"));
    let status = slow.status();
    assert!(
        status["code"] == "budget" && status["reason"].as_str().unwrap().contains("of work"),
        "{status:#}"
    );
    slow.cancel().expect(202);
    events.until_end();
    server.assert_nothing_left();
}

#[test]
fn out_of_memory_is_attributed_to_the_call_that_caused_it() {
    let eat = "python3 -c 'x = b\"x\" * (600 << 20)'";
    let answers = vec![shell(&format!("{eat}; echo $?")), shell("exit 3"), shell(eat), finish()];
    let scripted = Scripted::turns(answers);
    scripted.schedule(&json!({"task": "eat", "limits": {"memory_mib": 128}})).wait_for("complete");
    let requests = scripted.model.requests();
    let results = requests.last().unwrap().body["messages"].as_array().unwrap().iter();
    let results: Vec<String> =
        results.filter(|m| m["role"] == "tool").map(|m| m["content"].to_string()).collect();
    let blamed: Vec<bool> = results.iter().map(|result| result.contains("memory was used up")).collect();
    assert!(results[0].contains("137"), "the memory was not used up: {results:#?}");
    assert_eq!(blamed, [false, false, true], "{results:#?}");
}

#[test]
fn every_kind_of_loop_pauses_the_job_as_stuck() {
    let malformed = ScriptedAnswer {
        calls: vec![ScriptedCall {
            name: "shell".into(),
            raw_arguments: Some("{\"command\": ".into()),
            ..ScriptedCall::default()
        }],
        ..ScriptedAnswer::default()
    };
    let numbered = |number: usize| call("read_file", json!({"path": "missing.txt", "from_line": number}));
    let circles: [(&str, Vec<ScriptedAnswer>); 7] = [
        ("the same call", vec![shell("echo same")]),
        ("the same error", (1..20).map(numbered).collect()),
        ("two calls in turn", vec![shell("echo one"), shell("echo two")]),
        ("talk", vec![ScriptedAnswer::text("I will begin soon.")]),
        ("nothing", vec![ScriptedAnswer::default()]),
        ("calls that are no JSON", vec![malformed]),
        ("a tool that does not exist", vec![call("fly", json!({}))]),
    ];
    let server = Server::start_with(Options { config: crate::scripted::no_model(), ..Options::default() });
    let started: Vec<_> = circles
        .iter()
        .map(|(what, answers)| {
            let model = circle(answers);
            let name = format!("http://{}/v1", model.address());
            (what, server.schedule(&json!({"task": "circle", "model": name})), model)
        })
        .collect();
    for (what, job, model) in started {
        let status = wait_until_stuck(&job);
        job.cancel().expect(202);
        job.wait_for("cancelled");
        let nudged = model.requests().iter().any(|request| request.body.to_string().contains("Take care:"));
        assert!(nudged, "{what}: first a nudge: {status:#}");
        assert!(model.requests().len() < 40, "{what}");
    }
    server.assert_nothing_left();
}

#[test]
fn silent_or_garbled_model_answers_are_retried() {
    let answers = vec![
        ScriptedAnswer::fault(Fault::Silence { milliseconds: 600_000 }),
        ScriptedAnswer::fault(Fault::MalformedEvent),
        ScriptedAnswer::fault(Fault::ErrorEvent),
        shell("echo once >> log"),
        finish(),
    ];
    // By turns: an answer that a busy machine delivers after the timeout below is given again.
    let model =
        ScriptedServer::start_on_thread(Script { order: Order::Turns, ..Script::of(answers) }).unwrap();
    let section = model_section(&format!("http://{}/v1", model.address()));
    let config = format!("{section}silence_timeout_s = 2\n");
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule(&json!({"task": "bear it"}));
    job.wait_for("complete");
    assert_eq!(job.output().text("log"), "once\n");
    assert!(model.requests().len() >= 5);
}

/// The deltas in a stream of server-sent events that may still be open.
fn deltas(stream: &str) -> Vec<Value> {
    stream
        .split("\n\n")
        .filter_map(|message| message.strip_prefix("event: delta\ndata: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// The concatenated text of all deltas.
fn text_of(deltas: &[Value]) -> String {
    deltas.iter().filter_map(|delta| delta["text"].as_str()).collect()
}

#[test]
fn model_output_is_streamed_and_logged_once() {
    let words = "I look around first, then I write the file, and then I look whether it is right.";
    // The model stops after 20 and after 60 characters: one event precedes those of the text.
    let slow = ScriptedAnswer {
        text: words.into(),
        letters: Some(4),
        hold_after_events: vec![6, 16],
        ..shell("echo x > x")
    };
    let scripted = Scripted::sequence(vec![slow, finish()]);
    let job = scripted.task("speak");
    let path = format!("/v1/jobs/{}/events?deltas=true", job.id);
    let response = scripted.server.request(reqwest::Method::GET, &path).send().unwrap();
    assert_eq!(response.status(), 200);
    let mut reader = BufReader::new(response);
    let mut stream = String::new();
    for enough in [1, words.len() / 2 + 1] {
        while text_of(&deltas(&stream)).len() < enough {
            assert_ne!(reader.read_line(&mut stream).unwrap(), 0, "the stream ended early: {stream}");
        }
        scripted.model.release();
    }
    reader.read_to_string(&mut stream).unwrap();
    let heard = deltas(&stream);
    assert!(heard.len() > 1, "it comes in pieces: {heard:?}");
    assert!(heard.iter().all(|delta| delta["turn"] == 1), "{heard:?}");
    let said = text_of(&heard);
    assert!(words.starts_with(&said) && said.len() > words.len() / 2, "{said}");
    let place = |text: &str| stream.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("event: turn_started") < place("event: delta"));
    assert!(place("event: delta") < place("event: model_answered"));
    assert_eq!(stream.matches(words).count(), 1, "the log has the whole answer");
    assert!(!job.get("events?format=sse").expect(200).text().contains("event: delta"), "only who asks hears");
}

/// Serves the files of a folder over HTTP, as a plain web server does.
fn serve_files(folder: &Path) -> String {
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    probe.connect("192.0.2.1:9").expect("this machine has no address that a sandbox's proxy could reach");
    let address = probe.local_addr().unwrap().ip();
    let listener = TcpListener::bind((address, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let folder = folder.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let path =
                head.split_whitespace().nth(1).unwrap_or("/").split('?').next().unwrap_or("/").to_owned();
            let (status, body) = match std::fs::read(folder.join(path.trim_start_matches('/'))) {
                Ok(body) => ("200 OK", body),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let length = body.len();
            let _ =
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(&body);
        }
    });
    url
}

#[test]
fn job_clones_a_repository_revision_through_the_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "set -e; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q -b main work; cd work; echo one > file; git add .; git commit -qm one; git tag v1
        echo two > file; git commit -qam two; cd ..; git clone -q --bare work repo.git
        git -C repo.git update-server-info";
    assert!(Command::new("bash").args(["-c", script]).current_dir(&folder).status().unwrap().success());
    let url = serve_files(folder.path());
    let host = url.trim_start_matches("http://").split(':').next().unwrap().to_owned();
    let model = ScriptedServer::start_on_thread(Script {
        order: Order::Turns,
        ..Script::of(vec![shell("cat file > seen; git log --format=%s > log"), finish()])
    })
    .unwrap();
    let section = model_section(&format!("http://{}/v1", model.address()));
    let config = format!("{section}[egress]\nallow_ranges = [\"{host}/32\"]\n");
    let server = Server::start_with(Options { config, ..Options::default() });
    let body = json!({
        "task": "look", "egress": "open", "git": {"url": format!("{url}/repo.git"), "revision": "v1"}
    });
    let job = server.schedule(&body);
    job.wait_for("complete");
    let mut zip = job.output();
    assert_eq!((zip.text("seen"), zip.text("log")), ("one\n".to_owned(), "one\n".to_owned()));
    let mut events = job.follow();
    let way = events.until("the proxy was asked", |event| event.is("egress"));
    assert_eq!(way.data()["host"], host.as_str(), "{:?}", way.data());
}

#[test]
fn code_of_an_agent_runs_no_longer_than_the_operator_allows() {
    let sleep = call("python", json!({"code": "import time\ntime.sleep(300)", "timeout_s": 600}));
    let script = Script { order: Order::Turns, ..Script::of(vec![sleep, finish()]) };
    let scripted = Scripted::start(script, "[limits.max]\nstep_timeout_s = 1\n");
    let job = scripted.task("sleep");
    let mut events = job.follow();
    let ended = events.until("the end of the code", |event| event.is("call_ended"));
    let text = ended.data()["result"]["text"].as_str().unwrap();
    assert!(text.contains("1 s are the most that this server allows for one call"), "{text}");
    job.wait_for("complete");
}

#[test]
fn endlessly_repeating_answer_does_not_count_as_progress() {
    let forever = ScriptedAnswer { times: Times(0), ..ScriptedAnswer::text("Thinking about it.") };
    let scripted = Scripted::sequence(vec![forever]);
    let job = scripted.task("talk");
    wait_until_stuck(&job);
    job.cancel().expect(202);
    job.wait_for("cancelled");
    assert!(scripted.model.requests().len() < 10, "{}", scripted.model.requests().len());
}
