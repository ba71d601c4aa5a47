//! Runs both modes of the benchmark on small samples: recorded trajectories, and questions with known evidence.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;

/// Writes a trajectory in which each port occurs once.
fn write_trajectory(folder: &Path) {
    let mut lines = vec![json!({"role": "system", "content": "You are an agent."})];
    lines.push(json!({"role": "user", "content": "Find out which ports are used."}));
    for number in 0..60 {
        let function =
            json!({"name": "bash", "arguments": format!("{{\"command\": \"cat service{number}.conf\"}}")});
        let call = json!([{"id": format!("call-{number}"), "type": "function", "function": function}]);
        lines.push(json!({"role": "assistant", "content": "I look.", "tool_calls": call}));
        let text = format!("listen 0.0.0.0\nport_of_service_{number} = {}\n", 9000 + number * 7);
        lines.push(json!({"role": "tool", "tool_call_id": format!("call-{number}"), "content": text}));
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(folder.join("one.jsonl"), text).unwrap();
}

fn run(arguments: &[&std::ffi::OsStr]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_caisson-bench-context")).args(arguments).output().unwrap()
}

#[test]
fn a_folder_of_trajectories_gives_the_table_with_targets_and_baselines() {
    let folder = tempfile::tempdir().unwrap();
    write_trajectory(folder.path());
    let output = run(&["--trajectories".as_ref(), folder.path().as_ref()]);
    let text = String::from_utf8_lossy(&output.stdout);
    for part in [
        "budget overruns",
        "view build, warm",
        "recall@5",
        "raw history",
        "observation masking",
        "summarise half",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn questions_with_evidence_give_recall_at_five_depths() {
    let folder = tempfile::tempdir().unwrap();
    write_trajectory(folder.path());
    let questions = folder.path().join("questions.txt");
    // Messages are counted from 1: the system prompt, the task, then two for each service.
    let line = |number: u64, evidence: serde_json::Value| json!({"query": format!("port_of_service_{number}"), "evidence": [evidence]});
    let (one, other) = (line(7, json!(7 * 2 + 4)), line(31, json!(format!("e{}", 31 * 2 + 4))));
    std::fs::write(&questions, format!("{one}\n{other}\n")).unwrap();
    let output =
        run(&["--trajectories".as_ref(), folder.path().as_ref(), "--questions".as_ref(), questions.as_ref()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for depth in [1, 5, 10, 20, 50] {
        assert!(text.contains(&format!("recall@{depth}: 1.0000")), "{text}");
    }
}
