//! Shells and commands in sandboxes, live.

use e2e::{Server, binary};

use crate::typed::{finish, typed, typed_with};

#[test]
fn a_bare_sandbox_is_made_used_and_ended() {
    let server = Server::start();
    let made = typed(&server, &["sandboxes", "create", "--name", "mine", "--memory", "256m"]).expect(0);
    let id = made.stdout.trim().to_owned();
    let end = &id[28..];
    assert!(typed(&server, &["sandboxes"]).expect(0).stdout.contains(end));

    let ran = typed(&server, &["exec", end, "echo out; echo err >&2; exit 3"]).expect(3);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(typed(&server, &["exec", end, "--", "printf", "%s|", "a", "b c"]).expect(0).stdout, "a|b c|");
    assert_eq!(typed_with(&server, &["exec", "-i", end, "wc -c"], "hello").expect(0).stdout.trim(), "5");
    let reply = typed(&server, &["exec", "--json", end, "echo hi; exit 2"]).expect(2).json();
    assert_eq!(reply["stdout"], "hi\n");

    typed(&server, &["sandboxes", "extend", end, "--ttl", "100"]).expect(0);
    typed(&server, &["sandboxes", "rm", end]).expect(0);
    assert_eq!(typed(&server, &["sandboxes"]).expect(0).stdout, "no sandboxes\n");
    server.assert_nothing_left();
}

#[test]
fn folders_are_copied_there_and_back() {
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
    typed(&server, &["cp", "one", "two"]).expect_message(2, &["ID:PATH"]);
}

#[test]
fn a_shell_reads_commands_and_passes_its_exit_code_on() {
    let server = Server::start();
    let ran = typed_with(&server, &["shell"], "whoami\nexit 5\n").expect(5);
    assert_eq!(ran.stdout, "agent\n");
    assert_eq!(typed(&server, &["sandboxes"]).expect(0).stdout, "no sandboxes\n");
}

#[test]
fn one_looks_around_in_a_job_that_runs() {
    let server = Server::start();
    let job = server.schedule_steps(&[e2e::shell("echo here > place.txt; sleep 600")]);
    job.follow().until("the step", |event| event.is("call_started"));
    e2e::wait_until("the file is there", || job.get_file("place.txt").status == 200);
    assert_eq!(typed_with(&server, &["attach", &job.id[20..]], "cat place.txt\n").expect(0).stdout, "here\n");
    typed(&server, &["cancel", &job.id]).expect(0);
}

#[test]
fn a_shell_on_a_terminal_has_its_size_and_its_keys() {
    let server = Server::start();
    // `script` gives the command a terminal; what is typed comes from its input.
    let line = format!("stty rows 31 cols 97; {} shell", binary().display());
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("CAISSON_URL", server.url("")).env("TERM", "xterm").current_dir(server.folder());
    let ran = finish(script, "stty size; echo $TERM; exit 7\n").expect(7);
    assert!(ran.stdout.contains("31 97") && ran.stdout.contains("xterm"), "{}", ran.stdout);
}
