//! Outputs that are too large for a prompt: stored as a whole, shown by head and tail, found by search and read
//! again.

use model::{Answer, Dialect, Opaque, Part, Reasoning};
use serde_json::{Value, json};

use super::test_host::{TestHost, calls};
use crate::{AgentEvent, AgentSettings, RecordKind};

/// Runs these calls, one per turn, and returns their results.
async fn run(host: &TestHost, list: &[(&str, Value)]) -> Vec<String> {
    let mut answers: Vec<_> = list.iter().map(|call| Ok(calls(std::slice::from_ref(call)))).collect();
    answers.push(Ok(calls(&[("finish", json!({"summary": "done"}))])));
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    agent.run(host).await.unwrap();
    host.results()
}

#[tokio::test]
async fn oversized_tool_output_is_stored_and_readable_to_the_last_byte() {
    let host = TestHost::with_task("x");
    let printed: String = (1..=9_001).map(|line| format!("line {line}\n")).collect();
    host.program("many", &[(&printed, 0)]);
    let long: String = (1..=200).map(|line| format!("{line}:{}\n", "y".repeat(1_500))).collect();
    host.files.lock().unwrap().insert("long.txt".into(), long);
    let one_line: String = (1..=20_000).map(|number| format!("{number},")).collect();
    host.program("one", &[(&one_line, 0)]);
    let results = run(
        &host,
        &[
            ("shell", json!({"command": "many"})),
            ("read_file", json!({"path": "long.txt", "from_line": 1, "to_line": 200})),
            ("shell", json!({"command": "one"})),
            ("history_read", json!({"event": "turn-1-1", "from_line": 4000, "to_line": 4002})),
            ("history_read", json!({"event": "turn-1-1", "from_line": 9001})),
            ("history_read", json!({"event": "turn-2-1", "from_line": 90, "to_line": 91})),
            ("history_read", json!({"event": "turn-3-1"})),
            ("history_read", json!({"event": "turn-3-1", "from_line": 1, "from_byte": 100_000})),
            ("history_read", json!({"event": "turn-9-9"})),
            ("history_read", json!({"event": "turn-1-1"})),
        ],
    )
    .await;
    assert!(
        results[0].contains("of 9002 (") && results[0].contains("giving event `turn-1-1`"),
        "{}",
        results[0]
    );
    assert_eq!(results[3], "line 4000\nline 4001\nline 4002\n");
    assert_eq!(results[4], "line 9001\n[exit code 0, 0.0 s]");
    let line = |number: usize| format!("{number:>5}  {number}:{}\n", "y".repeat(1_500));
    assert_eq!(results[5], line(90) + &line(91));
    let (first, note) = results[6].split_once("\n[bytes ").unwrap();
    assert!(one_line.starts_with(first) && note.contains("go on with from_line 1 and from_byte"), "{note}");
    assert_eq!(results[7], format!("{}\n[exit code 0, 0.0 s]", &one_line[100_000..]));
    assert!(results[8].contains("there is no event `turn-9-9`"), "{}", results[8]);
    // The output of `history_read` itself is never cut.
    assert!(
        results[9].starts_with("line 1\n") && results[9].contains(" of 9002; go on with"),
        "{}",
        results[9]
    );
    // The counts in the log are those of the whole output.
    let log = host.log.lock().unwrap();
    let whole = log.iter().find_map(|logged| match &logged.event {
        AgentEvent::CallEnded { end, .. } => end.whole.clone(),
        _ => None,
    });
    assert_eq!(whole.map(|whole| whole.bytes), Some((printed.len() + "[exit code 0, 0.0 s]".len()) as u64));
}

#[tokio::test]
async fn a_search_does_not_find_earlier_searches() {
    let host = TestHost::with_task("find the lamp");
    host.program("look", &[("the lamp is in the cellar\n", 0)]);
    let results = run(
        &host,
        &[
            ("shell", json!({"command": "look"})),
            ("history_search", json!({"query": "cellar lamp"})),
            ("history_read", json!({"event": "turn-1-1"})),
            ("history_search", json!({"query": "cellar lamp"})),
        ],
    )
    .await;
    assert!(results[3].contains("result: the lamp is in the cellar"), "{}", results[3]);
    assert_eq!(results[3].matches("cellar").count(), 1, "{}", results[3]);
    assert_eq!(results[1], results[3]);
}

#[tokio::test]
async fn a_search_without_an_index_returns_five_hits() {
    let host = TestHost::with_task("x");
    let command = |number: usize| ("shell", json!({"command": format!("echo cellar {number}")}));
    let mut list: Vec<_> = (0..8).map(command).collect();
    list.push(("history_search", json!({"query": "cellar"})));
    let results = run(&host, &list).await;
    assert_eq!(results[8].lines().count(), 5, "{}", results[8]);
}

#[tokio::test]
async fn reasoning_is_searchable_and_readable() {
    let host = TestHost::with_task("x");
    let thought = Reasoning {
        text: "the cause must be the clock".into(),
        opaque: Opaque { dialect: Dialect::OpenAi, data: json!({}) },
    };
    let mut first: Answer = calls(&[("shell", json!({"command": "look"}))]);
    first.parts.insert(0, Part::Reasoning(thought));
    let answers = vec![
        Ok(first),
        Ok(calls(&[("history_search", json!({"query": "cause clock"}))])),
        Ok(calls(&[("finish", json!({"summary": "done"}))])),
    ];
    let (mut agent, _) = host.agent(AgentSettings::default(), answers);
    agent.run(&host).await.unwrap();
    let records = agent.conversation().records();
    let answer = records.iter().find(|record| record.kind == RecordKind::Answer).unwrap();
    assert!(answer.text.starts_with("[thought] the cause must be the clock\n"), "{}", answer.text);
    assert!(host.results()[1].contains("the cause must be the clock"), "{}", host.results()[1]);
}
