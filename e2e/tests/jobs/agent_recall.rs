//! Nothing that an agent has seen is lost: large outputs of every kind are found and read again, byte by byte.

use std::fmt::Write as _;

use model::scripted::{Script, ScriptedAnswer};
use serde_json::{Value, json};

use crate::mcp;
use crate::scripted::{Scripted, call, finish};

/// An answer that runs a command and waits for it to end, however slow the machine is.
fn run(command: &str) -> ScriptedAnswer {
    call("shell", json!({ "command": command, "wait_s": 200 }))
}

/// An answer that calls `history_read` for an event.
fn read(call_id: &str, more: &Value) -> ScriptedAnswer {
    let mut input = json!({ "event": call_id });
    for (key, value) in more.as_object().into_iter().flatten() {
        input[key] = value.clone();
    }
    call("history_read", input)
}

/// A result of `history_read` without the line that says how to continue.
fn text_of(answer: &str) -> &str {
    match answer.rsplit_once("\n[") {
        Some((text, note)) if note.contains("go on with from_line") => text,
        _ => answer,
    }
}

#[test]
fn huge_long_line_and_binary_outputs_can_be_recalled() {
    // Ten megabytes, with a text to find in the middle.
    let huge = "seq -f 'row %.0f of an output that is far too large for any prompt' 1 75000; \
                echo needleOfTheMiddle_4711; seq -f 'row %.0f of an output that is far too large for any prompt' 75001 170000";
    let mut rows = String::new();
    for row in 1..=170_000 {
        let _ = writeln!(rows, "row {row} of an output that is far too large for any prompt");
        if row == 75_000 {
            rows += "needleOfTheMiddle_4711\n";
        }
    }
    assert!(rows.len() > 10_000_000);
    // One line of more than 100 kB.
    let numbers = (1..=20_000).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    // Bytes that are not UTF-8 between valid lines.
    let odd = "seq -f 'line %.0f' 1 4500; printf 'bad \\377\\376 bytes\\n'; seq -f 'line %.0f' 4502 9001";
    let odd_line = |line: usize| match line {
        4501 => "bad \u{fffd}\u{fffd} bytes\n".to_owned(),
        line => format!("line {line}\n"),
    };
    let odd_lines = |from: usize, to: usize| (from..=to).map(odd_line).collect::<String>();
    // A result of an MCP server: one line of more than 50 KiB.
    let argument = "abcdefghij".repeat(6_000);
    let answered = format!("good {{\"text\": \"{argument}\"}}");

    let mut answers = vec![
        run(huge),
        run("seq -s, 1 20000"),
        run(odd),
        call("aid__good", json!({ "text": argument })),
        read("turn-1-1", &json!({"from_line": 1, "to_line": 300})),
        read("turn-1-1", &json!({"from_line": 74990, "to_line": 75010})),
        read("turn-1-1", &json!({"from_line": 169_900})),
        read("turn-2-1", &json!({})),
        read("turn-2-1", &json!({"from_byte": 40_000})),
        read("turn-2-1", &json!({"from_byte": 80_000})),
        read("turn-4-1", &json!({"from_line": 2})),
        read("turn-4-1", &json!({"from_line": 2, "from_byte": 30_000})),
        call("history_search", json!({"query": "needleOfTheMiddle_4711"})),
    ];
    let starts = [1, 1501, 3001, 4501, 6001, 7501];
    answers.extend(starts.map(|line| read("turn-3-1", &json!({"from_line": line, "to_line": line + 1499}))));
    answers.extend([read("turn-3-1", &json!({"from_line": 9001})), finish()]);
    let script = Script { context_tokens: 200_000, ..Script::of(answers) };
    let scripted = Scripted::start(script, "[context]\nsummaries = \"extract\"\n");
    let job = scripted.schedule(&json!({"task": "Look at much", "mcp": {"aid": mcp::server("plain")}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(job.status()["status"], "complete", "{}", events.summary());
    let result = |turn: usize| mcp::result(&events, &format!("turn-{turn}-1"));

    // The last line of a command's output: its exit code and its duration.
    let end_of = |text: &str| {
        let end = text[text.rfind('[').unwrap()..].to_owned();
        assert!(end.starts_with("[exit code 0, ") && end.ends_with(" s]"), "{end}");
        end
    };
    // The previews state the size of the whole output.
    let end = end_of(&result(7));
    let all = rows.len() + end.len();
    let preview = result(1);
    assert!(preview.contains(&format!(" of 170002 ({all} bytes in all)")), "{}", &preview[..200]);
    assert!(preview.contains("giving event `turn-1-1` and the lines"), "no way to read on");
    assert!(preview.starts_with("row 1 of an") && preview.ends_with(&format!("prompt\n{end}")));
    assert!(result(3).contains(" of 9002 ("), "{}", result(3));
    assert!(result(4).contains("lines 2-2 of 2 ("), "{}", result(4));

    let row_lines = |from: usize, to: usize| {
        rows.split_inclusive('\n').skip(from - 1).take(to + 1 - from).collect::<String>()
    };
    assert!(result(5) == row_lines(1, 300), "{}", result(5));
    assert!(result(6) == row_lines(74_990, 75_010), "{}", result(6));
    assert!(result(7) == row_lines(169_900, 170_001) + &end, "{}", result(7));

    let parts = [result(8), result(9), result(10)];
    let line = format!("{numbers}\n{}", end_of(&parts[2]));
    assert!(text_of(&parts[0]).len() >= 40_000 && text_of(&parts[1]).len() >= 40_000, "{}", parts[0]);
    assert!(line.starts_with(text_of(&parts[0])) && line[40_000..].starts_with(text_of(&parts[1])));
    assert!(parts[2] == line[80_000..], "{}", parts[2]);

    for (at, start) in starts.into_iter().enumerate() {
        assert!(result(14 + at) == odd_lines(start, start + 1499), "{}", result(14 + at));
    }
    assert_eq!(result(20), format!("line 9001\n{}", end_of(&result(20))));

    let (first, second) = (result(11), result(12));
    assert!(text_of(&first).len() >= 30_000 && answered.starts_with(text_of(&first)), "{first}");
    assert!(second == answered[30_000..], "{second}");

    // The first hit is the output itself, by the line in its middle, not the call that searched for it.
    let found = result(13);
    let event = |turn: usize| {
        let id = format!("turn-{turn}-1.1");
        let ended = events.events.iter().find(|event| event.is("call_ended") && event.call() == id);
        format!("[e{}]", ended.unwrap().sequence)
    };
    assert!(found.starts_with(&event(1)) || found.contains(&format!("\n{} ", event(1))), "{found}");
    assert!(found.contains("75001: needleOfTheMiddle_4711"), "{found}");
    assert!(!found.contains("history_search("), "{found}");
}
