//! Every tool of a step job, and how results are handled.

use e2e::{Follower, Server, shell};
use serde_json::{Value, json};

/// Runs steps to the end of the job.
fn run<'a>(server: &'a Server, steps: &[Value]) -> (Value, Follower<'a>) {
    let job = server.schedule_steps(steps);
    let mut events = job.follow();
    events.until_end();
    (job.status(), events)
}

/// The `call_ended` data of a call.
fn end_of<'a>(events: &'a Follower<'_>, call: &str) -> &'a Value {
    let mut ends = events.events.iter().filter(|event| event.is("call_ended") && event.call() == call);
    ends.next().unwrap_or_else(|| panic!("{call} has not ended: {}", events.summary())).data()
}

#[test]
fn shell_runs_bash_as_an_unprivileged_user() {
    let server = Server::start();
    let (status, events) =
        run(&server, &[shell("echo $0; id -u; [[ a == a ]] && echo bash; echo error >&2")]);
    assert_eq!(status["status"], "complete");
    let output = events.output("step-1.1", "stdout");
    assert!(output.contains("\n1000\n") && output.ends_with("bash\n"), "{output}");
    assert_eq!(events.output("step-1.1", "stderr"), "error\n");
}

#[test]
fn programs_run_in_a_utf8_locale() {
    let server = Server::start();
    let (_, events) =
        run(&server, &[shell("word=größe; echo ${#word}; grep -c '^.....$' <<<$word; locale charmap")]);
    assert_eq!(events.output("step-1.1", "stdout"), "5\n1\nUTF-8\n");
}

#[test]
fn python_runs_in_a_fresh_process_and_the_result_says_so() {
    let server = Server::start();
    let (status, events) = run(
        &server,
        &[
            json!({"tool": "python", "code": "x = 6 * 7\nprint(x)"}),
            json!({"tool": "python", "code": "print('x' in globals())"}),
        ],
    );
    assert_eq!(status["status"], "complete");
    assert_eq!(events.output("step-1.1", "stdout"), "42\n");
    assert_eq!(events.output("step-2.1", "stdout"), "False\n");
    assert!(status["steps"][0]["note"].as_str().unwrap().contains("fresh process"), "{status}");
}

#[test]
fn a_python_exception_fails_the_step_with_its_traceback() {
    let server = Server::start();
    let (status, events) =
        run(&server, &[json!({"tool": "python", "code": "raise ValueError('a clear word')"})]);
    assert_eq!(status["status"], "failed");
    assert!(events.output("step-1.1", "stderr").contains("ValueError: a clear word"));
}

#[test]
fn files_are_written_read_edited_moved_listed_and_deleted() {
    let server = Server::start();
    let (status, events) = run(
        &server,
        &[
            json!({"tool": "write_file", "path": "deep/down/file.txt", "content": "one two three", "mode": "640"}),
            json!({"tool": "read_file", "path": "/workspace/deep/down/file.txt"}),
            json!({"tool": "edit_file", "path": "/app/deep/down/file.txt", "old": "two", "new": "2"}),
            json!({"tool": "move_file", "from": "deep/down/file.txt", "to": "up.txt"}),
            shell("stat -c %a up.txt; cat up.txt"),
            json!({"tool": "list_files", "depth": 3}),
            json!({"tool": "delete_file", "path": "deep", "recursive": true}),
            json!({"tool": "delete_file", "path": "up.txt"}),
            shell("ls -A"),
        ],
    );
    assert_eq!(status["status"], "complete", "{}", events.summary());
    assert_eq!(end_of(&events, "step-2.1")["result"]["content"], "one two three");
    assert_eq!(events.output("step-5.1", "stdout"), "640\none 2 three");
    let listing = end_of(&events, "step-6.1")["result"].to_string();
    assert!(listing.contains("up.txt") && listing.contains("deep/down"), "{listing}");
    assert_eq!(events.output("step-9.1", "stdout"), "");
}

#[test]
fn edit_is_refused_unless_its_text_occurs_exactly_once() {
    let server = Server::start();
    let write = json!({"tool": "write_file", "path": "f", "content": "ab ab"});
    for (old, code) in [("ab", "text_not_unique"), ("xy", "text_not_found")] {
        let (status, events) =
            run(&server, &[write.clone(), json!({"tool": "edit_file", "path": "f", "old": old, "new": "z"})]);
        assert_eq!(status["code"], "step_failed", "{status}");
        let end = end_of(&events, "step-2.1");
        assert_eq!(end["code"], code, "{end}");
        assert!(end["reason"].as_str().is_some_and(|reason| reason.contains('f')), "{end}");
    }
}

#[test]
fn file_tools_report_what_is_wrong() {
    let server = Server::start();
    let write = json!({"tool": "write_file", "path": "d/f", "content": "x"});
    let cases = [
        (json!({"tool": "read_file", "path": "absent"}), "file_not_found"),
        (json!({"tool": "read_file", "path": "d"}), "is_directory"),
        (json!({"tool": "delete_file", "path": "d"}), "directory_not_empty"),
        (json!({"tool": "move_file", "from": "d/f", "to": "d/f"}), "file_exists"),
        (json!({"tool": "list_files", "path": "d/f"}), "not_directory"),
    ];
    for (step, code) in cases {
        let (status, events) = run(&server, &[write.clone(), step.clone()]);
        assert_eq!(status["status"], "failed", "{step}");
        assert_eq!(end_of(&events, "step-2.1")["code"], code, "{step}: {}", events.summary());
    }
}

#[test]
fn failing_step_ends_the_job_and_the_workspace_is_still_collected() {
    let server = Server::start();
    let job = server.schedule_steps(&[
        shell("echo kept > kept.txt"),
        shell("echo oops >&2; exit 7"),
        shell("echo > never"),
    ]);
    let status = job.wait_for_failure("step_failed");
    assert!(status["reason"].as_str().unwrap().contains('7'), "{status}");
    let states: Vec<&Value> =
        status["steps"].as_array().unwrap().iter().map(|step| &step["status"]).collect();
    assert_eq!(states, ["succeeded", "failed", "pending"]);
    assert_eq!(status["steps"][1]["exit_code"], 7);
    let mut zip = job.output();
    assert_eq!(zip.text("kept.txt"), "kept\n");
    assert!(!zip.has("never"));
    server.assert_nothing_left();
}

#[test]
fn continue_on_error_lets_the_job_complete() {
    let server = Server::start();
    let (status, events) = run(
        &server,
        &[json!({"tool": "shell", "command": "exit 1", "continue_on_error": true}), shell("echo on")],
    );
    assert_eq!(status["status"], "complete", "{status}");
    assert_eq!(status["steps"][0]["status"], "failed");
    assert_eq!(events.output("step-2.1", "stdout"), "on\n");
}

#[test]
fn retry_repeats_a_step_the_given_number_of_times() {
    let server = Server::start();
    let third_time = "echo x >> tries; [ $(wc -l < tries) -ge 3 ]";
    let (status, events) = run(&server, &[json!({"tool": "shell", "command": third_time, "retry": 5})]);
    assert_eq!(status["status"], "complete", "{status}");
    assert_eq!(status["steps"][0]["attempts"], 3);
    assert_eq!(events.count(|event| event.is("call_started")), 3);
    let (status, _) = run(&server, &[json!({"tool": "shell", "command": "false", "retry": 2})]);
    assert_eq!(status["steps"][0]["attempts"], 3, "{status}");
    assert_eq!(status["status"], "failed");
}

#[test]
fn expect_defines_the_success_of_a_step() {
    let server = Server::start();
    let step = |command: &str, expect: Value| json!({"tool": "shell", "command": command, "expect": expect});
    let cases = [
        (step("exit 3", json!({"exit_code": 3})), "complete"),
        (step("true", json!({"exit_code": 3})), "failed"),
        (step("echo a needle here", json!({"stdout_contains": "needle"})), "complete"),
        (step("echo hay >&1; echo needle >&2", json!({"stdout_contains": "needle"})), "failed"),
        (step("echo needle; exit 2", json!({"stdout_contains": "needle"})), "failed"),
    ];
    for (step, expected) in cases {
        let (status, _) = run(&server, std::slice::from_ref(&step));
        assert_eq!(status["status"], expected, "{step}");
    }
}

#[test]
fn expected_text_is_found_across_output_chunks() {
    let server = Server::start();
    let command = "printf nee; sleep 0.3; printf dle";
    let (status, _) = run(
        &server,
        &[json!({"tool": "shell", "command": command, "expect": {"stdout_contains": "needle"}})],
    );
    assert_eq!(status["status"], "complete");
}

#[test]
fn timed_out_step_is_killed_with_all_its_children() {
    let server = Server::start();
    let job = server.schedule_steps(&[json!({
        "tool": "shell", "command": "(trap '' TERM; sleep 600) & sleep 600", "timeout_s": 0.5, "continue_on_error": true
    }), shell("ps -e -o args= | grep -c '[s]leep 600' || true")]);
    let mut events = job.follow();
    events.until_end();
    let end = end_of(&events, "step-1.1");
    assert_eq!((&end["status"], &end["code"]), (&json!("failed"), &json!("timeout")), "{end}");
    assert_eq!(events.output("step-2.1", "stdout"), "0\n", "children of the step have outlived it");
    job.wait_for("complete");
}

#[test]
fn environment_variables_of_the_job_reach_every_step() {
    let server = Server::start();
    let job = server.schedule(&json!({"steps": [
        shell("echo $COLOUR"), {"tool": "python", "code": "import os; print(os.environ['COLOUR'])"}
    ], "environment": {"COLOUR": "deep blue"}}));
    let mut events = job.follow();
    events.until_end();
    assert_eq!(events.output("step-1.1", "stdout"), "deep blue\n");
    assert_eq!(events.output("step-2.1", "stdout"), "deep blue\n");
}

#[test]
fn host_environment_does_not_reach_a_step() {
    let server = Server::prepare(e2e::Options::default());
    let mut command = server.command();
    let log = std::fs::File::create(server.folder().join("other.log")).unwrap();
    let mut child = command
        .env("CANARY_OF_THE_HOST", "tweet")
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    e2e::wait_until("the server is ready", || {
        server.request(reqwest::Method::GET, "/readyz").send().is_ok_and(|answer| answer.status() == 200)
    });
    let job = server.schedule_steps(&[shell("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")]);
    let mut events = job.follow();
    events.until_end();
    let output = events.output("step-1.1", "");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(output.contains("PATH=") && !output.contains("CANARY"), "{output}");
}
