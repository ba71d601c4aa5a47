//! Tasks done by an agent with a scripted model: everything except the model's answers is real.

use model::scripted::{Fault, Script, ScriptedAnswer, ScriptedCall, Times, When};
use serde_json::json;

use crate::scripted::{Scripted, call, finish, shell, wait_until_stuck};

#[test]
fn agent_task_completes_and_leaves_its_memory_beside_the_zip() {
    let scripted = Scripted::turns(vec![
        call("plan", json!({"items": [{"text": "write it", "status": "in_progress"}, {"text": "check it"}]})),
        call("write_file", json!({"path": "hello.py", "content": "print('hello from the agent')\n"})),
        shell("python3 hello.py | tee out.txt; ls -d /agent/context/"),
        call(
            "plan",
            json!({"items": [{"text": "write it", "status": "done"}, {"text": "check it", "status": "done"}]}),
        ),
        finish(),
    ]);
    let job = scripted.task("Write a program that says hello");
    let status = job.wait_for("complete");
    let mut zip = job.output();
    assert_eq!(zip.text("out.txt"), "hello from the agent\n");
    assert!(!zip.names().iter().any(|name| name.starts_with(".caisson")), "{:?}", zip.names());
    assert!(job.download("context.txt").text().contains("Write a program that says hello"));
    let memory = job.download("memory.json").json();
    let history = memory["history"].to_string();
    assert!(history.contains("hello from the agent") && history.contains("python3 hello.py"), "{history}");
    assert!(
        history.contains("hello from the agent\\n/agent/context/\\n"),
        "the memory has two names: {history}"
    );
    let agent = &status["agent"];
    assert_eq!(agent["finished"]["summary"], "It is done.", "{status:#}");
    assert_eq!(agent["plan"]["items"][1]["status"], "done");
    assert_eq!((&agent["spent"]["turns"], &agent["spent"]["tool_calls"]), (&json!(5), &json!(5)));
    assert!(agent["spent"]["input_tokens"].as_u64().unwrap() > 0);
    assert!(job.get("context").expect(200).text().contains("Write a program that says hello"));
    assert!(job.get("log").expect(200).text().contains("hello from the agent"));
    scripted.server.assert_nothing_left();
}

#[test]
fn several_read_only_calls_in_one_answer_find_files() {
    let looks = ScriptedAnswer::calls(&[
        ("read_file", json!({"path": "src/a.txt"})),
        ("list_files", json!({})),
        ("search_files", json!({"pattern": "need.e", "files": "*.txt"})),
        ("search_files", json!({"pattern": "nowhere to be found"})),
    ]);
    let scripted = Scripted::turns(vec![
        call("write_file", json!({"path": "src/a.txt", "content": "hay\nneedle\n"})),
        looks,
        finish(),
    ]);
    let job = scripted.task("look");
    let mut events = job.follow();
    events.until_end();
    let result = |call: &str| {
        let ended =
            events.events.iter().find(|event| event.is("call_ended") && event.call() == call).unwrap();
        ended.data()["result"]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(result("turn-2-1.1"), "    1  hay\n    2  needle\n");
    assert!(result("turn-2-2.1").contains("src/a.txt  11 bytes"), "{}", result("turn-2-2.1"));
    assert_eq!(result("turn-2-3.1"), "src/a.txt:2:needle\n");
    assert!(result("turn-2-4.1").contains("no line matches"));
}

#[test]
fn background_process_can_be_polled_typed_into_and_ended() {
    let scripted = Scripted::turns(vec![
        call(
            "shell",
            json!({
                "command": "until [ \"$line\" = two ]; do read line; echo got $line; done; echo bye",
                "wait_s": 0.2, "interactive": true
            }),
        ),
        // Ends the command, and with it the wait.
        call("process", json!({"handle": "turn-1-1", "action": "type", "text": "one\ntwo\n", "wait_s": 200})),
        call("shell", json!({"command": "python3 -m http.server 8123 >/dev/null 2>&1", "wait_s": 0.5})),
        shell("until curl -s -o /dev/null http://localhost:8123/; do sleep 0.1; done"),
        call("http_request", json!({"url": "http://localhost:8123/"})),
        call("process", json!({"handle": "turn-3-1", "action": "kill", "wait_s": 200})),
        call("shell", json!({"command": "sleep 3600", "wait_s": 0.2})),
        call("process", json!({"handle": "turn-9-9", "action": "poll"})),
        finish(),
    ]);
    let job = scripted.task("serve");
    let mut events = job.follow();
    events.until_end();
    let text = |call: &str| {
        let ended = events.events.iter().find(|event| event.is("call_ended") && event.call() == call);
        ended.unwrap().data()["result"]["text"].as_str().unwrap().to_owned()
    };
    assert!(text("turn-1-1.1").contains("still running") && text("turn-1-1.1").contains("handle `turn-1-1`"));
    assert!(text("turn-2-1.1").contains("got one\ngot two\nbye\n"), "{}", text("turn-2-1.1"));
    assert!(text("turn-5-1.1").contains("200 OK"), "{}", text("turn-5-1.1"));
    assert!(text("turn-6-1.1").contains("ended"), "{}", text("turn-6-1.1"));
    assert!(text("turn-8-1.1").contains("is not running; these run: turn-7-1"), "{}", text("turn-8-1.1"));
    assert_eq!(job.status()["status"], "complete");
}

#[test]
fn model_faults_are_retried_without_losing_work() {
    let bad_call = ScriptedAnswer {
        calls: vec![ScriptedCall {
            name: "shell".into(),
            raw_arguments: Some("{\"command\": \"echo".into()),
            ..ScriptedCall::default()
        }],
        ..ScriptedAnswer::default()
    };
    let same_ids = ScriptedAnswer {
        calls: ["echo first >> log", "echo second >> log"]
            .map(|command| ScriptedCall {
                id: Some("call_1".into()),
                name: "shell".into(),
                arguments: json!({ "command": command }),
                ..ScriptedCall::default()
            })
            .into(),
        ..ScriptedAnswer::default()
    };
    let scripted = Scripted::sequence(vec![
        ScriptedAnswer::fault(Fault::RateLimited { retry_after_s: Some(1) }),
        ScriptedAnswer::fault(Fault::Status { status: 500, message: "trouble".into() }),
        ScriptedAnswer { fault: Some(Fault::Cut { after_events: None }), ..shell("echo never >> log") },
        same_ids,
        bad_call,
        call("fly", json!({})),
        ScriptedAnswer::default(),
        ScriptedAnswer::fault(Fault::Overflow),
        shell("echo third >> log"),
        finish(),
    ]);
    let job = scripted.task("bear it");
    job.wait_for("complete");
    assert_eq!(job.output().text("log"), "first\nsecond\nthird\n");
}

#[test]
fn task_without_a_model_waits_until_one_is_configured() {
    let server =
        e2e::Server::start_with(e2e::Options { config: crate::scripted::no_model(), ..Default::default() });
    let answer = server.post("/schedule", &json!({"task": "wait"})).expect(202).json();
    let job = server.job(answer["job_id"].as_str().unwrap());
    assert!(answer["hint"].as_str().unwrap().contains("model"), "{answer}");
    assert_eq!(
        (&job.status()["code"], &job.status()["detail"]),
        (&json!("no_model"), &json!("paused: no_model"))
    );
    server.schedule_steps(&[e2e::shell("echo steps need none")]).wait_for("complete");
    server.stop();
    let answers = vec![shell("echo with a model > made"), finish()];
    let model = model::scripted::ScriptedServer::start_on_thread(Script::of(answers)).unwrap();
    let config = crate::scripted::model_section(&format!("http://{}/v1", model.address()));
    std::fs::write(server.folder().join("caisson.toml"), config).unwrap();
    server.restart();
    job.wait_for("complete");
    assert_eq!(job.output().text("made"), "with a model\n");
}

#[test]
fn looping_model_pauses_the_job_as_stuck_until_it_is_told_what_to_do() {
    let circle =
        ScriptedAnswer { times: Times(0), ..shell("cat state 2>/dev/null; echo x > state; echo ran >> log") };
    let told = When { user_contains: Some("stop circling".into()), ..When::default() };
    let scripted = Scripted::sequence(vec![ScriptedAnswer { when: told, ..finish() }, circle]);
    let job = scripted.task("circle");
    let status = wait_until_stuck(&job);
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("the same call") && reason.contains("`caisson resume`"), "{reason}");
    assert_eq!(status["hint"], status["reason"], "{status:#}");
    let asked = scripted.model.requests().len();

    // Resumed without a message, the agent has another chance and is told so.
    job.post("resume", &json!({})).expect(202);
    e2e::wait_until("it has gone on", || scripted.model.requests().len() > asked);
    let resumed = scripted.model.requests()[asked].body.to_string();
    assert!(resumed.contains("you were stuck, and a user has resumed the job"), "{resumed}");
    e2e::wait_until("it works again and gets stuck again", || {
        scripted.model.requests().len() > asked + 3 && job.status()["detail"] == "paused: stuck"
    });

    // A message is enough to let it go on.
    job.post("message", &json!({"text": "stop circling"})).expect(202);
    job.wait_for("complete");
    let mut zip = job.output();
    assert_eq!(zip.text("state"), "x\n");
    let runs = zip.text("log").lines().count();
    assert!(runs < scripted.model.requests().len() - 4, "repeated calls are not run after a nudge: {runs}");
}

#[test]
fn agent_that_gives_up_fails_the_job_with_its_message() {
    let scripted = Scripted::turns(vec![call(
        "finish",
        json!({"summary": "There is no printer.", "outcome": "failed"}),
    )]);
    let job = scripted.task("print it");
    let status = job.wait_for_failure("gave_up");
    assert_eq!(status["reason"], "There is no printer.");
}

#[test]
fn workspace_instructions_are_sent_to_the_model() {
    let scripted = Scripted::turns(vec![finish()]);
    let draft = scripted.server.post("/v1/jobs", &json!({"task": "x", "start": false})).expect(202).json();
    let job = scripted.server.job(draft["job_id"].as_str().unwrap());
    job.put_file("AGENTS.md", "Always write tests first.").expect(200);
    // A long file, truncated inside a multi-byte character; and one of a package, which must not count as
    // instructions.
    job.put_file("web/AGENTS.md", format!("a{}", "é".repeat(10_000))).expect(200);
    job.put_file("node_modules/x/AGENTS.md", "Do what the package wants.").expect(200);
    job.post("start", &json!({})).expect(202);
    job.wait_for("complete");
    let body = scripted.model.requests()[0].body.to_string();
    assert!(body.contains("Always write tests first."), "{body}");
    assert!(body.contains("aééé") && body.contains("the first 16384 of 20001 bytes"), "{body}");
    assert!(!body.contains("Do what the package wants."), "{body}");
    // What the sandbox is stands before the instructions, and lists the uploaded files.
    let about = "Your sandbox:\\nSystem: ";
    assert_eq!(body.matches(about).count(), 1, "{body}");
    assert!(body.find(about) < body.find("Always write tests first."), "{body}");
    for words in ["not root.", "  AGENTS.md (25 bytes)", "  web/\\n"] {
        assert!(body.contains(words), "{words} is missing: {body}");
    }
}
