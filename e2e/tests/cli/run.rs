//! `caisson run`, with and without a server.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use e2e::Server;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cli_command::{command, finish, run_cli_with_input, typed};

const HELLO: &str = r#"[{"tool": "shell", "command": "echo hello | tee hello.txt"}]"#;

#[test]
fn local_run_returns_the_result_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "--here", "--steps", "-", "--out", "result"];
    let outcome = finish(command(folder.path(), &words), HELLO).expect(0);
    assert!(outcome.stdout.contains("[1/1] shell echo hello") && outcome.stdout.contains("\n  hello\n"));
    assert!(outcome.stdout.ends_with("complete\n"), "{}", outcome.stdout);
    assert_eq!(std::fs::read_to_string(folder.path().join("result/hello.txt")).unwrap(), "hello\n");
    let left: Vec<_> = std::fs::read_dir(folder.path().join("data/once")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn leftovers_of_a_killed_run_are_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let steps = folder.path().join("wait.json");
    std::fs::write(&steps, r#"[{"tool": "shell", "command": "echo started; sleep 600"}]"#).unwrap();
    let mut waiting = command(folder.path(), &["run", "--here", "--json", "--steps", "wait.json"]);
    let mut child = waiting.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("call_output")), "the step never printed");
    child.kill().unwrap();
    child.wait().unwrap();
    let once = folder.path().join("data/once");
    assert_eq!(std::fs::read_dir(&once).unwrap().count(), 1);
    finish(command(folder.path(), &["run", "--here", "--steps", "-", "--out", "result"]), HELLO).expect(0);
    assert_eq!(std::fs::read_dir(&once).unwrap().count(), 0);
}

#[test]
fn run_exit_code_reflects_the_job_outcome() {
    let server = Server::start();
    run_cli_with_input(&server, &["run", "--steps", "-", "--out", "good"], HELLO).expect(0);
    let failing = r#"[{"tool": "shell", "command": "echo other > hello.txt; exit 4"}]"#;
    let failed = run_cli_with_input(&server, &["run", "--steps", "-", "--out", "good"], failing).expect(1);
    assert!(failed.stdout.contains("failed: step 1: exit code 4"), "{}", failed.stdout);
    assert!(failed.stderr.contains("replaced good/hello.txt"), "{}", failed.stderr);
    let hello = std::fs::read_to_string(server.folder().join("good/hello.txt")).unwrap();
    assert_eq!(hello, "other\n", "the workspace of a failed job is downloaded too");
}

#[test]
fn run_exits_with_code_3_when_cancelled() {
    let server = Server::start();
    let steps = r#"[{"tool": "shell", "command": "sleep 600"}]"#;
    let detached = run_cli_with_input(&server, &["run", "--detach", "--steps", "-"], steps).expect(0);
    let id = detached.stdout.trim();
    typed(&server, &["cancel", id]).expect(0);
    typed(&server, &["logs", "-f", id]).expect(3);
    typed(&server, &["status", id]).expect(3);
}

#[test]
fn run_prints_events_as_json_lines() {
    let server = Server::start();
    let words = ["run", "--json", "--steps", "-", "--name", "first", "--label", "a=b", "--memory", "256m"];
    let lines = run_cli_with_input(&server, &words, HELLO).expect(0).lines();
    assert_eq!(lines[0]["kind"], "job_created");
    assert_eq!(lines[0]["data"]["spec"]["name"], "first");
    assert_eq!(lines[0]["data"]["spec"]["labels"], json!({"a": "b"}));
    assert!(lines.iter().any(|line| line["kind"] == "artifact_stored"));
}

#[test]
fn run_uploads_files_and_folders() {
    let server = Server::start();
    let folder = server.folder();
    std::fs::create_dir_all(folder.join("src/deep")).unwrap();
    std::fs::write(folder.join("src/deep/a.txt"), "deep").unwrap();
    std::fs::write(folder.join("notes and more.txt"), "notes").unwrap();
    let steps = r#"[{"tool": "shell", "command": "cat src/deep/a.txt 'notes and more.txt'"}]"#;
    let words = ["run", "--steps", "-", "--file", "src", "--file", "notes and more.txt", "--out", "result"];
    let outcome = run_cli_with_input(&server, &words, steps).expect(0);
    assert!(outcome.stdout.contains("deepnotes"), "{}", outcome.stdout);
}

#[test]
fn an_interrupt_without_a_terminal_leaves_the_job_running() {
    let server = Server::start();
    let steps = server.folder().join("wait.json");
    std::fs::write(&steps, r#"[{"tool": "shell", "command": "sleep 600"}]"#).unwrap();
    let mut waiting = command(server.folder(), &["run", "--steps", "wait.json"]);
    waiting.env("CAISSON_URL", server.url("")).stdin(Stdio::null());
    let mut child = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("[1/1]")), "the step never started");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("keeps running") && said.contains("caisson cancel"), "{said}");
    let running = typed(&server, &["jobs", "--state", "running", "--json"]).expect(0).json();
    let id = running["jobs"][0]["job_id"].as_str().unwrap().to_owned();
    typed(&server, &["cancel", &id]).expect(0);
    typed(&server, &["logs", "-f", &id]).expect(3);
}

#[test]
fn local_run_is_cancelled_by_a_stop_signal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let folder = tempfile::tempdir().unwrap();
        let steps = r#"[{"tool": "shell", "command": "sleep 600"}]"#;
        std::fs::write(folder.path().join("wait.json"), steps).unwrap();
        let mut waiting =
            command(folder.path(), &["run", "--here", "--steps", "wait.json", "--out", "result"]);
        let mut child = waiting.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("[1/1]")), "the step never started");
        kill_process(Pid::from_child(&child), signal).unwrap();
        // The pipe must be drained so that the process does not block.
        lines.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), Some(3), "{signal:?}");
        assert_eq!(std::fs::read_dir(folder.path().join("data/once")).unwrap().count(), 0);
    }
}

#[test]
fn second_interrupt_aborts_a_local_run_and_names_the_loss() {
    let folder = tempfile::tempdir().unwrap();
    // Never ends by itself, and its output takes long to collect: the first interrupt starts much work.
    let steps =
        r#"[{"tool": "shell", "command": "yes | head -c 300M > large; printf 'fu%s\\n' ll; sleep 600"}]"#;
    std::fs::write(folder.path().join("wait.json"), steps).unwrap();
    let mut waiting = command(folder.path(), &["run", "--here", "--steps", "wait.json", "--out", "result"]);
    let mut child =
        waiting.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("full")), "the file was never written");
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(said.any(|line| line.contains("cancelling")), "it was not cancelled");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = said.collect();
    assert_eq!(child.wait().unwrap().code(), Some(3), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("nothing is kept")), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("keeps running")), "{rest:?}");
    assert_eq!(std::fs::read_dir(folder.path().join("data/once")).unwrap().count(), 0);
}

#[test]
fn concurrent_local_runs_do_not_interfere() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let folder = folder.path();
            scope.spawn(move || {
                for turn in 0..2 {
                    let out = format!("result-{number}-{turn}");
                    let words = ["run", "--here", "--steps", "-", "--out", &out];
                    finish(command(folder, &words), HELLO).expect(0);
                }
            });
        }
    });
    let left: Vec<_> = std::fs::read_dir(folder.path().join("data/once")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn run_json_output_names_the_result_path() {
    let server = Server::start();
    let lines = run_cli_with_input(&server, &["run", "--json", "--steps", "-", "--out", "there"], HELLO)
        .expect(0)
        .lines();
    let last = lines.last().unwrap();
    assert_eq!((&last["kind"], &last["data"]["path"]), (&json!("result"), &json!("there")), "{last}");
    assert!(last["data"]["bytes"].as_u64() > Some(0), "{last}");
    assert!(server.folder().join("there/hello.txt").is_file());
    let id = last["data"]["job_id"].as_str().unwrap();
    assert!(!server.folder().join(format!("there/caisson-{id}.zip")).exists(), "the zip was left");
}

#[test]
fn unwritable_output_path_is_reported_before_the_run() {
    let server = Server::start();
    std::fs::write(server.folder().join("taken"), "").unwrap();
    for (place, told) in [("taken", "taken"), ("/proc/nowhere", "/proc;")] {
        run_cli_with_input(&server, &["run", "--steps", "-", "--out", place], HELLO)
            .expect_message(2, &[told, "--out"]);
    }
    assert_eq!(typed(&server, &["jobs", "--json"]).expect(0).json()["jobs"], json!([]));
}

#[test]
fn interrupt_during_upload_leaves_no_draft() {
    let server = Server::start();
    let steps = r#"[{"tool": "shell", "command": "true"}]"#;
    std::fs::write(server.folder().join("steps.json"), steps).unwrap();
    // Sending this file takes much longer than polling for the draft.
    std::fs::File::create(server.folder().join("large")).unwrap().set_len(1 << 36).unwrap();
    let words = ["run", "--steps", "steps.json", "--file", "large", "--disk", "128g"];
    let mut sending = command(server.folder(), &words);
    sending.env("CAISSON_URL", server.url("")).stdin(Stdio::null()).stderr(Stdio::piped());
    let child = sending.spawn().unwrap();
    let in_state = |state: &str| {
        let jobs = server.get(&format!("/v1/jobs?state={state}")).expect(200).json();
        jobs["jobs"].as_array().unwrap().len()
    };
    e2e::wait_until("the draft is there", || in_state("draft") == 1);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("cancelled before it started"), "{said}");
    e2e::wait_until("the draft is cancelled", || in_state("cancelled") == 1 && in_state("draft") == 0);
}

#[test]
fn run_json_output_reports_a_task_waiting_for_a_model() {
    let server = Server::start();
    let waiting = typed(&server, &["run", "--json", "Write a poem"]).expect(2);
    let lines = waiting.lines();
    assert_eq!((lines.len(), &lines[0]["kind"]), (1, &json!("waiting")), "{lines:?}");
    let id = lines[0]["data"]["job_id"].as_str().unwrap();
    assert_eq!(server.job(id).status()["code"], "no_model");
    let folder = tempfile::tempdir().unwrap();
    let alone = finish(command(folder.path(), &["run", "--here", "Write a poem"]), "").expect(2);
    assert!(alone.stderr.contains("nothing is kept"), "{}", alone.stderr);
}

#[test]
fn closed_stdout_ends_log_without_waiting_for_the_job() {
    let server = Server::start();
    let steps = r#"[{"tool": "shell", "command": "echo one; sleep 600"}]"#;
    let detached = run_cli_with_input(&server, &["run", "--detach", "--steps", "-"], steps).expect(0);
    let id = detached.stdout.trim();
    let mut following = command(server.folder(), &["logs", "-f", id]);
    following.env("CAISSON_URL", server.url("")).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = following.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().is_ok());
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    typed(&server, &["cancel", id]).expect(0);
}

#[test]
fn invalid_run_arguments_are_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |words: &[&str], input: &str, said: &[&str]| {
        finish(command(folder.path(), words), input).expect_message(2, said);
    };
    fails(&["run"], "", &["caisson run --steps FILE"]);
    fails(&["run", "--steps", "missing.json"], "", &["missing.json"]);
    fails(&["run", "--steps", "-"], "3", &["list of steps"]);
    fails(&["run", "--steps", "-", "--memory", "much"], HELLO, &["--memory", "512m"]);
    fails(&["run", "--steps", "-", "--cpus", "nan"], HELLO, &["--cpus", "not a number"]);
    fails(&["run", "--steps", "-", "--file", "absent"], HELLO, &["absent"]);
    fails(
        &["run", "--steps", "-", "--url", "http://127.0.0.1:9"],
        HELLO,
        &["127.0.0.1:9", "caisson serve", "--url"],
    );
    let unknown = r#"[{"tool": "fly"}]"#;
    fails(&["run", "--here", "--steps", "-"], unknown, &["not accepted", "fly", "shell"]);
}
