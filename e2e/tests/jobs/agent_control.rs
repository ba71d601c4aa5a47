//! Users control a running agent: messages, pauses, budgets, questions, plans, commands, takeovers.

use e2e::{Event, Follower, Job};
use model::scripted::{ScriptedAnswer, When};
use serde_json::json;

use crate::scripted::{Scripted, call, finish, finish_plan, shell};

#[track_caller]
fn until_paused(events: &mut Follower<'_>, code: &str) -> Event {
    events.until(&format!("paused: {code}"), |event| event.is_state("paused") && event.data()["code"] == code)
}

fn open_request(job: &Job<'_>) -> serde_json::Value {
    let list = job.get("requests").expect(200).json();
    list["requests"][0].clone()
}

#[test]
fn message_reaches_the_agent_at_the_next_turn() {
    let wanted = When { user_contains: Some("make it blue".into()), ..When::default() };
    let scripted = Scripted::sequence(vec![
        shell("echo began; until [ -e go ]; do sleep 0.05; done"),
        shell("echo $(cat go) > colour"),
        finish(),
    ]);
    let job = scripted.task("colour it");
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    job.post("message", &json!({"text": "make it blue"})).expect(202);
    job.put_file("go", "blue").expect(200);
    events.until_end();
    let second = scripted.model.requests()[1].body.to_string();
    assert!(second.contains(&wanted.user_contains.unwrap()), "{second}");
    assert_eq!(job.post("message", &json!({"text": "too late"})).expect(409).json()["code"], "wrong_state");
    assert_eq!(job.post("message", &json!({"text": " "})).expect(422).json()["field"], "text");
}

#[test]
fn job_pauses_between_calls_and_resumes_even_after_a_restart() {
    let scripted = Scripted::turns(vec![
        shell("echo one >> log; echo started; until [ -e go ]; do sleep 0.05; done"),
        shell("echo two >> log"),
        finish(),
    ]);
    let job = scripted.task("wait");
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    job.post("pause", &json!({})).expect(202);
    job.put_file("go", "").expect(200);
    until_paused(&mut events, "user");
    assert_eq!(
        job.exec("cat log").expect(200).json()["stdout"],
        "one\n",
        "the sandbox can be used meanwhile"
    );
    scripted.server.kill9();
    scripted.server.restart();
    assert_eq!(job.status()["detail"], "paused: user");
    job.post("resume", &json!({})).expect(202);
    events.until_end();
    assert_eq!(job.output().text("log"), "one\ntwo\n");
    assert_eq!(job.post("resume", &json!({})).expect(409).json()["code"], "wrong_state");
}

#[test]
fn step_jobs_can_be_paused() {
    let server = e2e::Server::start();
    let waiting = e2e::shell("echo started; until [ -e go ]; do sleep 0.05; done");
    let job = server.schedule_steps(&[waiting, e2e::shell("echo two > two")]);
    let mut events = job.follow();
    events.until("the first step", |event| event.is("call_output"));
    job.post("pause", &json!({})).expect(202);
    job.put_file("go", "").expect(200);
    until_paused(&mut events, "user");
    job.post("resume", &json!({})).expect(202);
    events.until_end();
    assert_eq!(job.output().text("two"), "two\n");
}

#[test]
fn exhausted_budget_pauses_and_a_larger_budget_resumes() {
    let scripted = Scripted::turns(vec![shell("echo one >> log"), shell("echo two >> log"), finish()]);
    let job = scripted.schedule(&json!({"task": "spend", "budget": {"turns": 1}}));
    let mut events = job.follow();
    until_paused(&mut events, "budget");
    let status = job.status();
    assert!(status["reason"].as_str().unwrap().contains("1 of 1 turns"), "{status:#}");
    let refused = job.post("resume", &json!({"budget": {"money_usd": -1}})).expect(422).json();
    assert_eq!(refused["field"], "budget.money_usd");
    job.post("resume", &json!({"budget": {"turns": 10}})).expect(202);
    events.until_end();
    assert_eq!(job.output().text("log"), "one\ntwo\n");
    assert!(
        scripted.model.requests()[1].body.to_string().contains("Left: 9 turns"),
        "the model sees what is left"
    );
}

#[test]
fn question_pauses_the_job_until_a_user_answers() {
    let scripted = Scripted::turns(vec![
        call("ask_user", json!({"question": "Which colour?", "options": ["red", "blue"]})),
        shell("echo done > done"),
        finish(),
    ]);
    let job = scripted.task("ask");
    let mut events = job.follow();
    until_paused(&mut events, "question");
    let request = open_request(&job);
    assert_eq!((&request["kind"], &request["text"]), (&json!("question"), &json!("Which colour?")));
    let path = format!("requests/{}", request["id"].as_str().unwrap());
    assert_eq!(job.post(&path, &json!({"accept": true})).expect(422).json()["field"], "text");
    assert_eq!(
        job.post("requests/request-9", &json!({"text": "x"})).expect(404).json()["code"],
        "request_not_found"
    );
    scripted.server.kill9();
    scripted.server.restart();
    job.post(&path, &json!({"text": "blue"})).expect(202);
    events.until_end();
    assert!(scripted.model.requests()[1].body.to_string().contains("the user answers: blue"));
    assert_eq!(job.get("requests").expect(200).json()["requests"], json!([]));
}

#[test]
fn unanswered_question_expires_at_its_deadline() {
    let scripted =
        Scripted::turns(vec![call("ask_user", json!({"question": "?", "wait_minutes": 0.01})), finish()]);
    let job = scripted.task("ask");
    job.wait_for("complete");
    assert!(scripted.model.requests()[1].body.to_string().contains("your own judgement"));
}

#[test]
fn plan_is_accepted_with_the_users_edits() {
    let scripted = Scripted::turns(vec![
        call("plan", json!({"items": ["my way"]})),
        shell("echo changed > changed"),
        finish_plan(&["your way"]),
    ]);
    let job = scripted.schedule(&json!({"task": "plan", "approve_plan": true}));
    let mut events = job.follow();
    until_paused(&mut events, "approval");
    let request = open_request(&job);
    assert_eq!((&request["kind"], &request["plan"]["items"][0]["text"]), (&json!("plan"), &json!("my way")));
    job.post("requests/request-1", &json!({"plan": {"items": [{"text": "your way"}]}})).expect(202);
    events.until_end();
    assert_eq!(job.status()["agent"]["plan"]["items"][0]["text"], "your way");
    assert!(scripted.model.requests()[1].body.to_string().contains("the user has edited the plan"));
}

#[test]
fn command_rules_ask_for_approval_or_deny() {
    let rules = json!({"rules": [
        {"prefix": ["touch"], "decision": "ask", "examples": ["touch x"]},
        {"prefix": ["rm"], "decision": "deny"}
    ]});
    let scripted =
        Scripted::turns(vec![shell("rm -f x"), shell("touch allowed"), shell("touch refused"), finish()]);
    let job = scripted.schedule(&json!({"task": "rules", "approval": "ask", "commands": rules}));
    let mut events = job.follow();
    until_paused(&mut events, "approval");
    assert_eq!(open_request(&job)["command"], "touch allowed");
    job.post("requests/request-1", &json!({"accept": true})).expect(202);
    until_paused(&mut events, "approval");
    job.post("requests/request-2", &json!({"accept": false, "text": "no"})).expect(202);
    events.until_end();
    let zip = job.output();
    assert!(zip.names().contains(&"allowed".to_owned()) && !zip.names().contains(&"refused".to_owned()));
    assert!(scripted.model.requests()[1].body.to_string().contains("not allowed"));
}

#[test]
fn agent_is_informed_of_changes_after_a_takeover() {
    let scripted = Scripted::turns(vec![
        shell("echo old > kept; echo started; until [ -e go ]; do sleep 0.05; done"),
        shell("cat made > seen"),
        finish(),
    ]);
    let job = scripted.task("share");
    let mut events = job.follow();
    events.until("the first command", |event| event.is("call_output"));
    let token = job.post("takeover", &json!({"by": "Ada"})).expect(202).json()["token"].clone();
    let token = token.as_str().unwrap().to_owned();
    job.put_file_as("go", "", &token).expect(200);
    until_paused(&mut events, "takeover");
    let second = job.post("takeover", &json!({"by": "Bob"})).expect(409).json();
    assert_eq!(second["code"], "taken_over");
    assert!(second["detail"].as_str().unwrap().contains("Ada has taken over"), "{second}");
    let ada = |verb: &str, body: &serde_json::Value| {
        let request = scripted.server.request(reqwest::Method::POST, &format!("/v1/jobs/{}/{verb}", job.id));
        scripted.server.send(request.header("X-Caisson-Takeover", &token).json(body))
    };
    ada("exec", &json!({"command": "echo by hand > made"})).expect(200);
    let other = job.post("handback", &json!({})).expect(409).json();
    assert_eq!(other["code"], "taken_over", "only the holder hands back: {other}");
    ada("handback", &json!({})).expect(202);
    events.until_end();
    assert_eq!(job.output().text("seen"), "by hand\n");
    let body = scripted.model.requests()[1].body.to_string();
    assert!(body.contains("echo by hand > made") && body.contains("made made"), "{body}");
    assert!(!body.contains("changed kept"), "{body}");
}

#[test]
fn cancel_stops_a_running_command_and_a_slow_model_at_once() {
    let scripted = Scripted::turns(vec![shell("echo started; sleep 600"), finish()]);
    let job = scripted.task("cancel me");
    let mut events = job.follow();
    events.until("the command", |event| event.is("call_output"));
    job.cancel().expect(202);
    events.until_end();
    assert_eq!(job.status()["status"], "cancelled");
    let ended = events.events.iter().find(|event| event.is("call_ended")).unwrap();
    assert_eq!(ended.data()["code"], "cancelled", "{}", events.summary());
    let slow = Scripted::turns(vec![ScriptedAnswer { delay_ms: 600_000, ..finish() }]);
    let job = slow.task("cancel me too");
    let mut events = job.follow();
    events.until("the turn", |event| event.is("turn_started"));
    job.cancel().expect(202);
    events.until_end();
    assert_eq!(job.status()["status"], "cancelled");
    slow.server.assert_nothing_left();
}
