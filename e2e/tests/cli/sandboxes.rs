//! Live shells and commands in sandboxes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Options, Server, binary};
use rustix::process::{Pid, Signal, kill_process};

use crate::cli_command::{command, finish, run_cli_with_input, typed};

#[test]
fn cli_creates_uses_and_ends_a_bare_sandbox() {
    let server = Server::start();
    let made = typed(&server, &["sandboxes", "create", "--name", "mine", "--memory", "256m"]).expect(0);
    let id = made.stdout.trim().to_owned();
    let end = &id[28..];
    assert!(typed(&server, &["sandboxes"]).expect(0).stdout.contains(end));

    let ran = typed(&server, &["exec", end, "echo out; echo err >&2; exit 3"]).expect(3);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(typed(&server, &["exec", end, "--", "printf", "%s|", "a", "b c"]).expect(0).stdout, "a|b c|");
    assert_eq!(
        run_cli_with_input(&server, &["exec", "-i", end, "wc -c"], "hello").expect(0).stdout.trim(),
        "5"
    );
    typed(&server, &["exec", "mine", "echo by name > made.txt"]).expect(0);
    typed(&server, &["cp", "mine:made.txt", "made.txt"]).expect(0);
    assert_eq!(std::fs::read_to_string(server.folder().join("made.txt")).unwrap(), "by name\n");
    let reply = typed(&server, &["exec", "--json", end, "echo hi; exit 2"]).expect(2).json();
    assert_eq!(reply["stdout"], "hi\n");
    let counted =
        run_cli_with_input(&server, &["exec", "--json", "-i", end, "wc -c"], "hello").expect(0).json();
    assert_eq!(counted["stdout"].as_str().unwrap().trim(), "5");

    typed(&server, &["sandboxes", "extend", end, "--ttl", "100"]).expect(0);
    let extended = typed(&server, &["extend", end, "30m", "--json"]).expect(0).json();
    assert_eq!(extended["ttl_s"], 1800.0);
    typed(&server, &["sandboxes", "rm", end]).expect(0);
    assert_eq!(typed(&server, &["sandboxes"]).expect(0).stdout, "no sandboxes\n");
    server.assert_nothing_left();
}

#[test]
fn cp_copies_folders_in_both_directions() {
    let server = Server::start();
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let folder = server.folder();
    std::fs::create_dir_all(folder.join("tree/deep")).unwrap();
    std::fs::write(folder.join("tree/a b.txt"), "a").unwrap();
    std::fs::write(folder.join("tree/deep/b.bin"), [0, 159, 146, 150]).unwrap();
    assert_eq!(typed(&server, &["cp", "tree", &format!("{id}:")]).expect(0).stdout, "2 files\n");
    typed(&server, &["cp", "tree/a b.txt", &format!("{id}:other/name.txt")]).expect(0);
    assert_eq!(typed(&server, &["exec", &id, "cat 'tree/a b.txt' other/name.txt"]).expect(0).stdout, "aa");
    typed(&server, &["cp", &format!("{id}:/workspace/tree"), "back"]).expect(0);
    assert_eq!(std::fs::read(folder.join("back/deep/b.bin")).unwrap(), [0, 159, 146, 150]);
    typed(&server, &["cp", &format!("{id}:nope"), "."]).expect_message(2, &["nope"]);
    server.sandbox(&id).end().expect(204);
}

#[test]
fn cp_preserves_links_empty_folders_and_permissions() {
    let server = Server::start();
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let folder = server.folder();
    std::fs::create_dir_all(folder.join("tree/empty/deeper")).unwrap();
    std::fs::write(folder.join("tree/tool"), "#!/bin/sh\necho from the tool\n").unwrap();
    std::fs::set_permissions(folder.join("tree/tool"), std::fs::Permissions::from_mode(0o750)).unwrap();
    symlink("tool", folder.join("tree/near")).unwrap();
    symlink("/usr/bin/env", folder.join("tree/far")).unwrap();
    symlink("tree", folder.join("named")).unwrap();
    assert_eq!(typed(&server, &["cp", "named", &format!("{id}:")]).expect(0).stdout, "3 files\n");
    let look = "cd named && ./near && readlink near far && ls -d empty/deeper && ./far echo reached";
    let seen = typed(&server, &["exec", &id, look]).expect(0).stdout;
    assert_eq!(seen, "from the tool\ntool\n/usr/bin/env\nempty/deeper\nreached\n");
    // Into a folder that does not exist yet, into one that does, and over existing files.
    for place in ["back", "back/named", "back/named"] {
        assert_eq!(typed(&server, &["cp", &format!("{id}:named"), "back"]).expect(0).stdout, "3 files\n");
        let back = folder.join(place);
        assert_eq!(std::fs::read_link(back.join("near")).unwrap().to_str(), Some("tool"));
        assert_eq!(std::fs::read_link(back.join("far")).unwrap().to_str(), Some("/usr/bin/env"));
        assert!(back.join("empty/deeper").is_dir());
        assert_eq!(back.join("tool").metadata().unwrap().permissions().mode() & 0o777, 0o750);
    }
    // A local link is replaced, not written through.
    let mine = folder.join("mine");
    std::fs::write(&mine, "mine").unwrap();
    typed(&server, &["exec", &id, "rm named/far && echo theirs > named/far"]).expect(0);
    let far = folder.join("back/named/far");
    std::fs::remove_file(&far).unwrap();
    symlink(&mine, &far).unwrap();
    typed(&server, &["cp", &format!("{id}:named"), "back"]).expect(0);
    assert_eq!(std::fs::read_to_string(&far).unwrap(), "theirs\n");
    assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
    typed(&server, &["cp", "one", "two"]).expect_message(2, &["ID:PATH"]);
}

#[test]
fn cp_stays_in_the_workspace_and_reports_skipped_files() {
    let server = Server::start();
    let make = || typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let (mine, other) = (make(), make());
    std::fs::write(server.folder().join("file"), "mine").unwrap();
    let elsewhere = format!("{mine}:../../{other}/files/evil");
    typed(&server, &["cp", "file", &elsewhere]).expect_message(2, &["`..`"]);
    typed(&server, &["cp", &format!("{mine}:../stats"), "stats"]).expect_message(2, &["`..`"]);
    assert!(!server.folder().join("stats").exists());
    assert_eq!(typed(&server, &["exec", &other, "ls"]).expect(0).stdout, "");
    // A file name that is not UTF-8 cannot be requested.
    typed(&server, &["exec", &mine, "mkdir d; echo a > d/a; echo b > d/$'b\\xff'; echo z > d/z"]).expect(0);
    typed(&server, &["cp", &format!("{mine}:d"), "back"])
        .expect_message(2, &["skipped", "2 files copied, 1 skipped"]);
    for (name, content) in [("a", "a\n"), ("z", "z\n")] {
        assert_eq!(std::fs::read_to_string(server.folder().join("back").join(name)).unwrap(), content);
    }
}

#[test]
fn cancelling_or_pausing_a_bare_sandbox_is_refused() {
    let server = Server::start();
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    for action in ["cancel", "pause", "resume", "extend", "takeover"] {
        let body =
            if action == "extend" { serde_json::json!({"seconds": 60}) } else { serde_json::json!({}) };
        let answer = server.post(&format!("/v1/jobs/{id}/{action}"), &body).expect(404).json();
        assert_eq!(answer["code"], "job_not_found", "{action}: {answer}");
    }
    typed(&server, &["cancel", &id]).expect_message(2, &[&id]);
    typed(&server, &["exec", &id, "true"]).expect(0);
}

/// The output is far larger than the buffer for slow readers.
#[test]
fn exec_applies_backpressure_when_the_reader_is_slow() {
    let config = "[http]\nidle_timeout_s = 5\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let exec = |line: &str| {
        let mut exec = command(server.folder(), &["exec", &id, line]);
        exec.env("CAISSON_URL", server.url("")).stdin(Stdio::null());
        exec.stdout(Stdio::piped()).stderr(Stdio::piped());
        exec.spawn().unwrap()
    };
    let child = exec("seq 4000000 > numbers; cat numbers");
    // A reader that pauses, such as `less`, must not be taken for gone.
    std::thread::sleep(Duration::from_secs(12));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines =
        output.stdout.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line).into_owned());
    let expected = (1..=4_000_000).map(|number| number.to_string()).chain([String::new()]);
    assert!(lines.eq(expected), "{} bytes that are not what was printed", output.stdout.len());
    // A reader that has seen enough may close the pipe without an error.
    let mut child = exec("yes");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "y");
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141), "{}", String::from_utf8_lossy(&output.stderr));
    // As in a local shell, the command ends when its reader is gone.
    let gone = r#"for name in /proc/[0-9]*/comm; do [ "$(cat $name)" != yes ] || exit 1; done"#;
    e2e::wait_until("the command has ended", || typed(&server, &["exec", &id, gone]).code == 0);
}

#[test]
fn a_shell_reads_commands_and_passes_its_exit_code_on() {
    let server = Server::start();
    let ran = run_cli_with_input(&server, &["shell"], "whoami\nexit 5\n").expect(5);
    assert_eq!(ran.stdout, "agent\n");
    assert_eq!(typed(&server, &["sandboxes"]).expect(0).stdout, "no sandboxes\n");
}

#[test]
fn local_shell_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let ran =
        finish(command(folder.path(), &["shell", "--here"]), "pwd; echo $((6 * 7)) >&2\nexit 5\n").expect(5);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("/workspace\n", "42\n"));
    let left: Vec<_> = std::fs::read_dir(folder.path().join("data/once")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Starts a shell and sends it a signal after it has answered.
#[track_caller]
fn end_shell(mut shell: Command, signal: Signal, code: i32) {
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"echo begun\n").unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "begun");
    kill_process(Pid::from_child(&child), signal).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(code));
    drop(input);
}

#[test]
fn local_shell_leaves_nothing_behind_after_a_signal() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let folder = tempfile::tempdir().unwrap();
        end_shell(command(folder.path(), &["shell", "--here"]), signal, code);
        let left: Vec<_> = std::fs::read_dir(folder.path().join("data/once")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn remote_shell_ends_its_sandbox_after_a_signal() {
    let server = Server::start();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut shell = command(server.folder(), &["shell"]);
        shell.env("CAISSON_URL", server.url(""));
        end_shell(shell, signal, code);
        assert_eq!(typed(&server, &["sandboxes", "list"]).expect(0).stdout, "no sandboxes\n");
    }
}

#[test]
fn partial_success_before_an_error_is_reported() {
    let server = Server::start();
    let make = || typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let (first, second) = (make(), make());
    let nobody = "01930d5e-7b1a-7c3e-9f00-3a5b1c2d4e6f";
    let listed = typed(&server, &["sandboxes", "list", "--json"]).expect(0).json();
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 2);
    let refused = typed(&server, &["rm", &first]).expect(2);
    assert!(refused.stderr.contains(&format!("caisson sandboxes rm {first}")), "{}", refused.stderr);
    let ended = typed(&server, &["sandboxes", "rm", &first, nobody, &second, "--json"]).expect(2);
    assert_eq!(ended.json(), serde_json::json!({"removed": [first]}));
    typed(&server, &["sandboxes", "rm", &second]).expect(0);

    let job = server.schedule_steps(&[e2e::shell("sleep 600")]);
    let other = server.schedule_steps(&[e2e::shell("sleep 600")]);
    let asked = typed(&server, &["cancel", &job.id, &other.id, "--json"]).expect(0).json();
    assert_eq!(asked["jobs"].as_array().unwrap().len(), 2, "{asked}");
    for job in [&job, &other] {
        job.wait_for("cancelled");
    }
    let removed = typed(&server, &["rm", &job.id, nobody, &other.id, "--json"]).expect(2);
    assert_eq!(removed.json(), serde_json::json!({"removed": [job.id]}));
    typed(&server, &["rm", &other.id]).expect(0);
}

#[test]
fn command_that_does_not_read_stdin_can_be_interrupted() {
    let server = Server::start();
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let mut exec = command(
        server.folder(),
        &["exec", "-i", &id, "trap '' INT; echo ready; sleep 600 & wait; sleep 600"],
    );
    exec.env("CAISSON_URL", server.url("")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = exec.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    // More than all buffers on the way hold, so that the client blocks in a write.
    let typing = std::thread::spawn(move || {
        let piece = vec![b'x'; 1 << 20];
        while input.write_all(&piece).is_ok() {}
    });
    let pid = Pid::from_child(&child);
    let started = Instant::now();
    let code = loop {
        let _ = kill_process(pid, Signal::INT);
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        assert!(started.elapsed() < Duration::from_secs(120), "it cannot be interrupted");
        std::thread::yield_now();
    };
    // SIGKILL if the client could still send it, otherwise the client just gives up.
    assert!(matches!(code, Some(130 | 137 | 125 | 255)), "{code:?}");
    typing.join().unwrap();
    server.sandbox(&id).end().expect(204);
}

#[test]
fn shell_with_keep_leaves_its_sandbox_running() {
    let server = Server::start();
    let ran =
        run_cli_with_input(&server, &["shell", "--keep", "--image", "host"], "echo kept > file\n").expect(0);
    let id = ran.stderr.split('`').find_map(|word| word.strip_prefix("caisson attach ")).unwrap().to_owned();
    assert_eq!(run_cli_with_input(&server, &["attach", &id], "cat file\n").expect(0).stdout, "kept\n");
    typed(&server, &["shell", "--image", "nope"]).expect_message(125, &["nope", "host"]);
    typed(&server, &["sandboxes", "rm", &id]).expect(0);
}

#[test]
fn command_run_from_a_terminal_gets_a_terminal() {
    let server = Server::start();
    let id = typed(&server, &["sandboxes", "create"]).expect(0).stdout.trim().to_owned();
    let line =
        format!("stty rows 31 cols 97; {} exec -t {id} 'test -t 0 && stty size; exit 4'", binary().display());
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("CAISSON_URL", server.url("")).env("TERM", "xterm").current_dir(server.folder());
    let ran = finish(script, "").expect(4);
    assert!(ran.stdout.contains("31 97"), "{}", ran.stdout);
}

#[test]
fn attach_opens_a_shell_in_a_running_job() {
    let server = Server::start();
    let job = server.schedule_steps(&[e2e::shell("echo here > place.txt; sleep 600")]);
    job.follow().until("the step", |event| event.is("call_started"));
    e2e::wait_until("the file is there", || job.get_file("place.txt").status == 200);
    assert_eq!(
        run_cli_with_input(&server, &["attach", &job.id[20..]], "cat place.txt\n").expect(0).stdout,
        "here\n"
    );
    typed(&server, &["cancel", &job.id]).expect(0);
}

#[test]
fn shell_passes_on_terminal_size_and_keys() {
    let server = Server::start();
    // `script` gives the command a terminal; its input is what a user would type.
    let line = format!("stty rows 31 cols 97; {} shell", binary().display());
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("CAISSON_URL", server.url("")).env("TERM", "xterm").current_dir(server.folder());
    let ran = finish(script, "stty size; echo $TERM; exit 7\n").expect(7);
    assert!(ran.stdout.contains("31 97") && ran.stdout.contains("xterm"), "{}", ran.stdout);
}
