//! Jobs whose history exceeds the model's window: summaries, recall, repository maps, refused prompts, small windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use e2e::Event;
use model::Usage;
use model::scripted::{Fault, Script, ScriptedAnswer, ScriptedEmbeddings, Times, When};
use serde_json::{Value, json};

use crate::scripted::{Scripted, call, finish, finish_plan, shell};

/// An answer for the agent's own requests, not for requests for a summary.
fn agent(answer: ScriptedAnswer) -> ScriptedAnswer {
    ScriptedAnswer { when: When { offers: Some("shell".into()), ..When::default() }, ..answer }
}

/// The answer to every request for a summary.
fn summary(text: &str) -> ScriptedAnswer {
    let when =
        When { user_contains: Some("Its next prompt will hold your summary".into()), ..When::default() };
    ScriptedAnswer { when, times: Times(0), ..ScriptedAnswer::text(text) }
}

/// An answer of about 1,500 tokens with a command that prints about 3,500; no two parts are equal.
fn large_answer(part: usize) -> ScriptedAnswer {
    let thought =
        |line: usize| format!("I think about line {line} of part {part} and find {}. ", line * 7 + part);
    let text: String = (0..80).map(thought).collect();
    let answer = shell(&format!(
        "for i in $(seq 1 250); do echo \"part {part} line $i value $((i * 7919 + {part}))\"; done"
    ));
    agent(ScriptedAnswer { text, ..answer })
}

fn window(context_tokens: u32, answers: Vec<ScriptedAnswer>) -> Script {
    Script { context_tokens, ..Script::of(answers) }
}

fn kinds(view: &Value) -> Vec<&str> {
    view["segments"].as_array().unwrap().iter().map(|segment| segment["kind"].as_str().unwrap()).collect()
}

/// The result of a tool call.
fn result(events: &e2e::Follower<'_>, call: &str) -> String {
    let ended = events.events.iter().find(|event| event.is("call_ended") && event.call() == call);
    let ended = ended.unwrap_or_else(|| panic!("{call} has not ended: {}", events.summary()));
    ended.data()["result"]["text"].as_str().unwrap().to_owned()
}

#[test]
fn long_history_is_summarized_early_and_recallable_even_after_a_kill() {
    let mut answers = vec![
        summary("Did: looked at a part of it [{event}]"),
        agent(call("plan", json!({"items": ["look at the parts"]}))),
        agent(shell("echo the lamp is portOfTheLighthouse_7731; seq 1 40")),
    ];
    answers.extend((1..15).map(large_answer));
    answers.extend([
        agent(shell("echo resting; sleep 4; echo rested")),
        agent(call("history_search", json!({"query": "lighthouse port"}))),
        agent(finish_plan(&["look at the parts"])),
    ]);
    let scripted = Scripted::start(window(32_000, answers), "");
    let job = scripted.task("Look at the parts");
    let mut events = job.follow();
    events.until("the rest", |event| event.is("call_output") && event.call() == "turn-17-1.1");
    let at = format!("context?at={}", events.last_sequence());
    let before = job.get(&at).expect(200).text();
    scripted.server.kill9();
    scripted.server.restart();
    assert_eq!(job.get(&at).expect(200).text(), before, "the same bytes after a restart");
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());

    let view: Value = serde_json::from_str(&before).unwrap();
    assert!(view["epoch"].as_u64().unwrap() >= 1 && kinds(&view).contains(&"summary"), "{:?}", kinds(&view));
    let segments = view["segments"].as_array().unwrap();
    let by_model = segments.iter().find(|segment| segment["author"] == "model");
    let by_model = by_model.unwrap_or_else(|| panic!("no summary of the model: {view:#}"));
    let (covered, cited) = (&by_model["events"], &by_model["cites"][0]);
    assert!(cited["first"].as_u64() >= covered["first"].as_u64(), "{by_model}");
    assert!(cited["last"].as_u64() <= covered["last"].as_u64(), "{by_model}");

    // What is no longer in the prompt is found, together with the events around it.
    let found = result(&events, "turn-18-1.1");
    assert!(found.contains("portOfTheLighthouse_7731") && found.contains("before: [e"), "{found}");

    // Summaries are logged as events, and their cost counts.
    let made: Vec<&e2e::Event> = events.events.iter().filter(|event| event.is("summary_created")).collect();
    assert!(made.iter().any(|event| event.data()["summary"].is_object()), "{}", events.summary());
    let input = |event: &&e2e::Event| {
        let usage = if event.is("summary_created") {
            &event.data()["usage"]
        } else {
            &event.data()["answer"]["usage"]
        };
        ["input", "cached_input", "cache_write"]
            .iter()
            .map(|part| usage[*part].as_u64().unwrap_or(0))
            .sum::<u64>()
    };
    let paid = events.events.iter().filter(|event| event.is("summary_created") || event.is("model_answered"));
    let paid: u64 = paid.map(|event| input(&event)).sum();
    assert_eq!(job.status()["agent"]["spent"]["input_tokens"], paid);

    // No prompt exceeded the budget, and the context view shows each one as it was sent.
    for asked in events.events.iter().filter(|event| event.is("turn_started")) {
        let view = job.get(&format!("context?at={}", asked.sequence)).expect(200).json();
        assert_eq!(view["tokens"], asked.data()["prompt_tokens"], "at e{}", asked.sequence);
        assert!(view["tokens"].as_u64() <= view["budget"].as_u64(), "at e{}", asked.sequence);
    }
}

#[test]
fn rule_based_condensing_replaces_summaries_if_configured() {
    let mut answers: Vec<ScriptedAnswer> = (1..15).map(large_answer).collect();
    answers.push(agent(finish()));
    let scripted = Scripted::start(window(32_000, answers), "[context]\nsummaries = \"extract\"\n");
    let job = scripted.task("Look at the parts");
    job.wait_for("complete");
    let view = job.get("context").expect(200).json();
    let segments = view["segments"].as_array().unwrap();
    assert!(segments.iter().any(|segment| segment["author"] == "extract"), "{:?}", kinds(&view));
    assert_eq!(scripted.model.remaining(), 0);
}

#[test]
fn refused_prompts_and_higher_token_counts_shrink_the_prompt() {
    let counted = |answer: ScriptedAnswer, input| ScriptedAnswer {
        usage: Some(Usage { input, output: 10, ..Usage::default() }),
        ..answer
    };
    let scripted = Scripted::start(
        window(
            64_000,
            vec![
                large_answer(1),
                large_answer(2),
                ScriptedAnswer::fault(Fault::Overflow),
                large_answer(3),
                // Reports half as many tokens again as our own count.
                counted(large_answer(4), 30_000),
                agent(finish()),
            ],
        ),
        "",
    );
    let job = scripted.task("Look at the parts");
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let view = |at: u64| job.get(&format!("context?at={at}")).expect(200).json();
    let changes = |kind: &'static str| {
        let is_one = move |event: &&Event| event.is("context_changed") && event.data()["kind"] == kind;
        events.events.iter().filter(is_one).map(|event| (view(event.sequence - 1), view(event.sequence)))
    };
    let budget = |view: &Value| view["budget"].as_u64().unwrap();
    let (before, after) = changes("tighten").next().expect("a tightened prompt");
    assert!(budget(&after) < budget(&before) && after["epoch"] == 1, "{before} {after}");
    // The scripted model's own counts correct ours a little, too.
    let is_strong = |after: &Value| after["factor"].as_f64().unwrap() > 1.2;
    let (before, after) = changes("correction").find(|(_, after)| is_strong(after)).expect("a correction");
    assert!(budget(&after) < budget(&before), "{before} {after}");
}

#[test]
fn repository_map_is_in_the_first_prompt() {
    let scripted = Scripted::turns(vec![finish()]);
    let body = json!({"task": "Make the engine faster", "start": false});
    let answer = scripted.server.post("/v1/jobs", &body).expect(202).json();
    let job = scripted.server.job(answer["job_id"].as_str().unwrap());
    job.put_file(
        "src/engine.rs",
        "pub struct Engine;\nimpl Engine {\n    pub fn start_engine(&self) {}\n}\n",
    )
    .expect(200);
    job.put_file("src/user.py", "def use_it():\n    start_engine()\n").expect(200);
    job.put_file("node_modules/x/index.js", "function hidden_one() {}\n").expect(200);
    job.post("start", &json!({})).expect(202);
    job.wait_for("complete");
    let sent = scripted.model.requests()[0].body.to_string();
    assert!(sent.contains("2 files with code") && sent.contains("pub fn start_engine(&self)"), "{sent}");
    assert!(!sent.contains("hidden_one"), "{sent}");
    let view = job.get("context").expect(200).json();
    let map = view["segments"]
        .as_array()
        .unwrap()
        .iter()
        .find(|part| part["text"].to_string().contains("files with code"));
    assert!(map.is_some(), "{view:#}");
}

#[test]
fn small_context_window_gets_fewer_tools_and_a_small_system_prompt() {
    let scripted = Scripted::start(
        window(8_192, vec![agent(shell("seq 1 2000")), agent(shell("seq 1 2000")), agent(finish())]),
        "",
    );
    let job = scripted.task(&format!("Count. {}", "This is a long task. ".repeat(400)));
    job.wait_for("complete");
    let tools = scripted.model.requests()[0].body["tools"].as_array().unwrap().len();
    assert!((5..15).contains(&tools), "{tools} tools");
    let view = job.get("context").expect(200).json();
    let fixed = ["system", "tools", "task", "pin", "notes", "map", "plan"];
    let segments = view["segments"].as_array().unwrap().iter();
    let fixed: u64 = segments
        .filter(|segment| fixed.contains(&segment["kind"].as_str().unwrap()))
        .map(|segment| segment["tokens"].as_u64().unwrap())
        .sum();
    let budget = view["budget"].as_u64().unwrap();
    assert!(fixed * 10 <= budget * 4, "{fixed} of {budget}");
    assert!(view["tokens"].as_u64().unwrap() <= budget);
}

#[test]
fn job_completes_with_a_4000_token_window() {
    let mut answers: Vec<ScriptedAnswer> = (1..8).map(large_answer).collect();
    answers.push(agent(call("history_read", json!({"event": "turn-1-1", "from_line": 249, "to_line": 250}))));
    answers.push(agent(finish()));
    let scripted = Scripted::start(window(4_096, answers), "[context]\nsummaries = \"extract\"\n");
    let job = scripted.task("Look at the parts");
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let requests = scripted.model.requests();
    let first = &requests[0].body;
    let names_of = |request: &model::scripted::Recorded| -> Vec<String> {
        let tools = request.body["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["function"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let names = names_of(&requests[0]);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // Offered once a prompt leaves something out, after all others.
    assert!(!names.contains(&"history_read"), "{names:?}");
    assert_eq!(names_of(requests.last().unwrap()).last().map(String::as_str), Some("history_read"));
    for name in ["shell", "finish", "read_file", "write_file", "edit_file"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    // The system prompt only mentions tools that the agent has.
    let system = first["messages"][0]["content"].to_string();
    for name in ["plan", "process", "notes", "history_search", "python"] {
        assert!(names.contains(&name) || !system.contains(&format!("`{name}`")), "{name}: {system}");
    }
    let read = result(&events, "turn-8-1.1");
    assert!(read.contains(&format!("part 1 line 250 value {}", 250 * 7919 + 1)), "{read}");
    for asked in events.events.iter().filter(|event| event.is("turn_started")) {
        let view = job.get(&format!("context?at={}", asked.sequence)).expect(200).json();
        assert_eq!(view["tokens"], asked.data()["prompt_tokens"], "at e{}", asked.sequence);
        assert!(view["tokens"].as_u64() <= view["budget"].as_u64(), "at e{}", asked.sequence);
        assert!(view["budget"].as_u64().unwrap() <= 3_072, "{}", view["budget"]);
    }
    let view = job.get("context").expect(200).json();
    assert!(view["epoch"].as_u64().unwrap() > 0, "{view:#}");
}

#[test]
fn giant_file_is_read_as_outline_then_parts_then_lines() {
    let make = "for i in $(seq 1 60000); do echo \"def part_$i():\"; echo \"    return $i  # padding padding padding padding padding padding padding padding\"; done > big.py; wc -c < big.py";
    let scripted = Scripted::turns(vec![
        shell(make),
        call("read_file", json!({"path": "big.py"})),
        call("read_file", json!({"path": "big.py", "from_line": 90001, "to_line": 90400, "outline": true})),
        call("read_file", json!({"path": "big.py", "from_line": 110001, "to_line": 110001})),
        finish(),
    ]);
    let job = scripted.task("Read it");
    let mut events = job.follow();
    events.until_end();
    let whole = result(&events, "turn-2-1.1");
    assert!(whole.contains("120000 lines") && whole.len() < 16_000, "{whole}");
    let part = result(&events, "turn-3-1.1");
    assert!(part.contains("90001: def part_45001()"), "{part}");
    assert!(result(&events, "turn-4-1.1").contains("110001  def part_55001():"));
}

// Embeddings that place texts about fruit near each other.
fn vectors_of(texts: &[&str]) -> Vec<Vec<f32>> {
    let is_about =
        |text: &str, words: [&str; 2]| f32::from(u8::from(words.iter().any(|word| text.contains(word))));
    texts
        .iter()
        .map(|text| vec![is_about(text, ["banana", "yellow"]), is_about(text, ["lorry", "wheels"]), 0.1])
        .collect()
}

#[test]
fn history_search_uses_embeddings_and_falls_back_to_keywords() {
    let (asked, is_broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, broken) = (Arc::clone(&asked), Arc::clone(&is_broken));
    let embeddings = ScriptedEmbeddings::start(move |texts| {
        counted.fetch_add(1, Ordering::SeqCst);
        (!broken.load(Ordering::SeqCst)).then(|| vectors_of(texts))
    });
    let config = format!("[context]\nembeddings = \"{}\"\n", embeddings.unwrap().name());
    let script = Script::of(vec![
        shell("echo a banana lies on the table"),
        shell("echo a lorry stands in the yard"),
        call("history_search", json!({"query": "yellow thing"})),
        shell("echo now; until [ -e go ]; do sleep 0.05; done"),
        call("history_search", json!({"query": "lorry"})),
        finish(),
    ]);
    let scripted = Scripted::start(script, &config);
    let job = scripted.task("Look around");
    let mut events = job.follow();
    events.until("the second command", |event| event.is("call_output") && event.call() == "turn-4-1.1");
    is_broken.store(true, Ordering::SeqCst);
    job.put_file("go", "").expect(200);
    events.until_end();
    let found = result(&events, "turn-3-1.1");
    assert!(found.contains("a banana lies on the table"), "{found}");
    assert!(asked.load(Ordering::SeqCst) >= 2);
    let found = result(&events, "turn-5-1.1");
    assert!(found.starts_with("[by words alone") && found.contains("a lorry stands in the yard"), "{found}");
    assert_eq!(job.status()["status"], "complete");
}
