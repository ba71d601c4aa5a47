//! The scripted tasks. They follow what agents do in real jobs: how many turns, how large outputs are, what is repeated.

use serde_json::{Value, json};

use crate::host::Outputs;
use crate::scripted::Turn;

pub(crate) struct Task {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) turns: Vec<Turn>,
    pub(crate) outputs: Outputs,
}

pub(crate) fn all() -> Vec<Task> {
    vec![write_a_program(), fix_a_bug(), read_a_log(), refactor()]
}

fn turn(text: &str, calls: Vec<(&'static str, Value)>) -> Turn {
    Turn { text: text.to_owned(), calls }
}

fn shell(command: &str) -> (&'static str, Value) {
    ("shell", json!({ "command": command }))
}

fn finish() -> Turn {
    turn("Everything is checked.", vec![("finish", json!({"summary": "It is done and checked."}))])
}

/// A source file of some size, the same for the same name.
fn source(name: &str, functions: usize) -> String {
    (0..functions)
        .map(|number| {
            format!("def {name}_{number}(value):\n    # Scales a value by {number}.\n    return value * {number} + len(\"{name}\")\n\n")
        })
        .collect()
}

/// Few turns, small outputs.
fn write_a_program() -> Task {
    let write = ("write_file", json!({"path": "todo.py", "content": source("todo", 30)}));
    let test = ("write_file", json!({"path": "test_todo.py", "content": source("test", 10)}));
    Task {
        name: "write",
        text: "Write a small todo program in Python with tests.",
        turns: vec![
            turn("I write the program and its tests.", vec![write, test]),
            turn("I run the tests.", vec![shell("python3 -m pytest -q")]),
            turn("I try it.", vec![shell("python3 todo.py add milk"), shell("python3 todo.py list")]),
            finish(),
        ],
        outputs: |command| match command {
            command if command.contains("pytest") => {
                ("..........                 [100%]\n10 passed in 0.04s\n".into(), 0)
            }
            _ => ("1. [ ] milk\n".into(), 0),
        },
    }
}

/// Reads files, fails a few times, edits, tests again.
fn fix_a_bug() -> Task {
    let mut turns = vec![turn("I look around.", vec![shell("ls -R"), shell("git log --oneline | head")])];
    for number in 0..12 {
        let file = format!("src/module_{number}.py");
        turns.push(turn("I read the next module.", vec![shell(&format!("cat {file}"))]));
        turns.push(turn(
            "I change it and run the tests.",
            vec![
                ("write_file", json!({"path": file, "content": source(&format!("fixed_{number}"), 8)})),
                shell(&format!("python3 -m pytest -q -k module_{number}")),
            ],
        ));
    }
    turns.push(finish());
    Task {
        name: "fix",
        text: "The tests of this project fail since the last commit. Find the cause and fix it.",
        turns,
        outputs: |command| match command {
            command if command.starts_with("cat") => (source(&command[command.len().min(8)..], 20), 0),
            command if command.contains("pytest") => {
                let line = |number: usize| format!("E   assert scale({number}) == {}\n", number * 7);
                let text: String = (0..25).map(line).collect();
                (format!("{command}\n{text}1 failed, 24 passed in 0.31s\n"), 1)
            }
            command => (format!("{command}\nsrc\nsrc/module_0.py\nsrc/module_1.py\n"), 0),
        },
    }
}

/// Large outputs, of which little matters.
fn read_a_log() -> Task {
    let mut turns: Vec<Turn> = (0..15)
        .map(|number| {
            turn("I look at the next part.", vec![shell(&format!("grep -n 'part {number}' app.log"))])
        })
        .collect();
    turns.push(finish());
    Task {
        name: "log",
        text: "Find out from app.log why the service stopped last night.",
        turns,
        outputs: |command| {
            let line = |number: usize| {
                format!(
                    "{number}: 2026-06-15T02:{:02}:00Z INFO {command} request {}\n",
                    number % 60,
                    number * 7919
                )
            };
            ((0..400).map(line).collect(), 0)
        },
    }
}

/// Many turns: the prompt is compacted several times in a small window.
fn refactor() -> Task {
    let mut turns = Vec::new();
    for number in 0..120 {
        turns.push(turn(
            &format!("I move function {number}."),
            vec![
                shell(&format!("sed -n '{number},+40p' src/all.py")),
                shell(&format!("make check-{number}")),
            ],
        ));
    }
    turns.push(finish());
    Task {
        name: "refactor",
        text: "Split src/all.py into one module for each function, and keep the tests green.",
        turns,
        outputs: |command| match command {
            command if command.starts_with("make") => (format!("{command}: 240 passed\n"), 0),
            command => (source(&command.replace(|c: char| !c.is_ascii_alphanumeric(), "_"), 10), 0),
        },
    }
}
