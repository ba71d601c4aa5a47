//! Processes: how they start, what they inherit, how they end.
// Clippy does not recognize the helper functions as part of the tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::Duration;

use protocol::{CallStatus, ExecEnd, Follow, NotStartedCause, Program, ProtocolError, TerminalSize};
use support::*;

#[tokio::test]
async fn a_command_runs_with_exactly_its_environment_directory_and_descriptors() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = exec("plain", Program::Arguments(vec!["env".to_owned()]));
    call.environment.insert("COLOUR".to_owned(), "blue".to_owned());
    let (seen, outcome) = run(&client, call).await;
    assert_eq!(outcome.end, ExecEnd::Code(0));
    let mut lines: Vec<_> = seen.text().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["CAISSON_CALL=plain.1", "COLOUR=blue", "PATH=/usr/local/bin:/usr/bin:/bin"]);
    assert_eq!(run_shell(&client, "cwd", "pwd").await.trim(), guest.workspace().to_str().unwrap());
    let mut fds = run_shell(&client, "fds", "ls /proc/$$/fd; true").await;
    fds.retain(|character| !character.is_whitespace());
    assert_eq!(fds, "012");
}

#[tokio::test]
async fn a_command_has_no_privileges_and_leads_its_own_session() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let status = run_shell(
        &client,
        "status",
        "grep -E '^(CapEff|CapPrm|CapInh|CapAmb|SigBlk|NoNewPrivs|Groups):' /proc/self/status; umask; id -u; cat /proc/self/oom_score_adj; \
         read -r stat < /proc/$$/stat; set -- $stat; test $1 = $5 -a $1 = $6 && echo leader; trap",
    )
    .await;
    for line in [
        "CapEff:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "SigBlk:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    assert!(status.contains("\n0022\n") && status.contains("\nleader\n"), "{status}");
    if is_root() {
        assert!(status.contains("\n1000\n") && status.contains("\n500\n"), "{status}");
    }
}

#[tokio::test]
async fn the_exit_code_and_both_streams_come_back() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let (seen, outcome) =
        run(&client, shell("both", "echo out; echo err >&2; printf '\\377\\376'; exit 3")).await;
    assert_eq!(outcome.end, ExecEnd::Code(3));
    assert_eq!((seen.stdout.as_slice(), seen.stderr.as_slice()), (&b"out\n\xff\xfe"[..], &b"err\n"[..]));
    assert_eq!((outcome.output_bytes, outcome.output_lines, outcome.dropped_bytes), (10, 2, 0));
    assert_eq!(seen.sequences, (0..outcome.next_sequence).collect::<Vec<_>>());
    assert!(outcome.disk_free_bytes > 0 && outcome.disk_free_inodes > 0);
}

#[tokio::test]
async fn start_failure_is_explained() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut no_directory = shell("no-directory", "true");
    no_directory.directory = Some("/no/such/place".to_owned());
    let mut too_long = exec("too-long", Program::Arguments(vec!["true".to_owned(), "x".repeat(4 << 20)]));
    too_long.kill_grace_ms = 1;
    let named = |name: &str, program: &str| exec(name, Program::Arguments(vec![program.to_owned()]));
    for (call, cause, wanted) in [
        (
            named("missing", "no-such-program"),
            NotStartedCause::ProgramNotFound,
            "`no-such-program` was not found",
        ),
        (named("directory", "/tmp"), NotStartedCause::ProgramNotExecutable, "not executable"),
        (named("nul", "a\0b"), NotStartedCause::Other, "NUL"),
        (exec("nothing", Program::Arguments(Vec::new())), NotStartedCause::Other, "no program"),
        (no_directory, NotStartedCause::BadDirectory, "the working directory `/no/such/place` was not found"),
        (too_long, NotStartedCause::ArgumentsTooLong, "too long"),
    ] {
        let (seen, outcome) = run(&client, call).await;
        let ExecEnd::NotStarted(why) = &outcome.end else { panic!("started: {outcome:?}") };
        assert!(why.message.contains(wanted), "{why:?}");
        assert_eq!(why.cause, cause);
        assert_eq!(seen.pid, None);
    }
}

#[tokio::test]
async fn the_same_key_never_runs_twice() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    for _ in 0..3 {
        let (seen, outcome) = run(&client, shell("once", "echo line >> log; cat log")).await;
        assert_eq!((seen.text().as_str(), outcome.end), ("line\n", ExecEnd::Code(0)));
    }
    assert_eq!(std::fs::read_to_string(guest.workspace().join("log")).unwrap(), "line\n");
}

#[tokio::test]
async fn status_distinguishes_unknown_running_and_ended() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    assert_eq!(client.call_status(key("status")).await.unwrap(), CallStatus::Unknown);
    let mut call = shell("status", "echo here; read line; exit 4");
    call.keep_stdin_open = true;
    let mut follower = client.exec(call, Follow::Live).await.unwrap();
    wait_for_output(&mut follower, &mut Seen::default(), "here").await;
    assert_eq!(client.call_status(key("status")).await.unwrap(), CallStatus::Running { next_sequence: 1 });
    assert_eq!(client.stats().await.unwrap().running_calls, 1);
    client.input(key("status")).await.unwrap().finish().await.unwrap();
    finish(&mut follower).await;
    let CallStatus::Ended(outcome) = client.call_status(key("status")).await.unwrap() else {
        panic!("not ended")
    };
    assert_eq!(outcome.end, ExecEnd::Code(4));
}

#[tokio::test]
async fn stdin_can_be_preset_streamed_and_closed() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut given = shell("given", "cat");
    given.stdin = Some("x".repeat(1 << 20));
    assert_eq!(run(&client, given).await.0.stdout.len(), 1 << 20);
    assert_eq!(run_shell(&client, "empty", "cat").await, "");

    let mut typed = shell("typed", "read one; echo got $one; cat");
    typed.keep_stdin_open = true;
    let mut follower = client.exec(typed, Follow::Live).await.unwrap();
    let mut seen = Seen::default();
    let mut input = client.input(key("typed")).await.unwrap();
    input.write(b"first\n").await.unwrap();
    wait_for_output(&mut follower, &mut seen, "got first").await;
    input.write(b"second\n").await.unwrap();
    input.finish().await.unwrap();
    finish_into(&mut follower, &mut seen).await;
    assert_eq!(seen.text(), "got first\nsecond\n");
    let late = client.input(key("typed")).await.unwrap().finish().await.unwrap_err();
    assert!(matches!(late, ProtocolError::Refused(_)), "{late:?}");
}

#[tokio::test]
async fn unread_stdin_does_not_delay_the_end_of_a_call() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = shell("deaf", "exec 0<&-; echo done");
    call.stdin = Some("x".repeat(4 << 20));
    assert_eq!(run(&client, call).await.0.text(), "done\n");
}

#[tokio::test]
async fn a_timeout_ends_a_call() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = exec("slow", Program::Arguments(vec!["sleep".to_owned(), "1000".to_owned()]));
    call.timeout_ms = Some(100);
    assert_eq!(run(&client, call).await.1.end, ExecEnd::TimedOut);
}

#[tokio::test]
async fn a_kill_ends_processes_that_ignore_sigterm_and_those_with_their_own_session() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = shell(
        "stubborn",
        "trap '' TERM; setsid bash -c \"trap '' TERM; echo \\$\\$ > detached; sleep 1000\" & \
         while ! test -s detached; do sleep 0.01; done; echo up; sleep 1000; sleep 1000",
    );
    call.kill_grace_ms = 100;
    let mut follower = client.exec(call, Follow::Live).await.unwrap();
    wait_for_output(&mut follower, &mut Seen::default(), "up").await;
    client.kill(key("stubborn")).await.unwrap();
    assert_eq!(finish(&mut follower).await.1.end, ExecEnd::Killed);
    let detached = std::fs::read_to_string(guest.workspace().join("detached")).unwrap();
    let detached = detached.trim();
    let state = state_and_parent(detached).map(|(state, _)| state);
    assert!(matches!(state, None | Some('Z' | 'X')), "{detached} still lives: {state:?}");
    wait_until_collected(detached).await;
}

/// Starts a daemon that ignores SIGTERM, then prints `main`, when the guest has adopted the daemon.
const STUBBORN_DAEMON: &str =
    "(setsid sh -c 'trap \"\" TERM; echo daemon $$; exec sleep 1000' &); echo main; exec sleep 1000";

#[tokio::test]
async fn a_kill_ends_double_forked_daemons() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = shell("parent", STUBBORN_DAEMON);
    call.kill_grace_ms = 100;
    let mut follower = client.exec(call, Follow::Live).await.unwrap();
    let mut seen = Seen::default();
    wait_for_output(&mut follower, &mut seen, "main").await;
    wait_for_output(&mut follower, &mut seen, "daemon").await;
    let text = seen.text();
    let daemon = text.lines().find_map(|line| line.strip_prefix("daemon ")).unwrap();
    assert_eq!(state_and_parent(daemon).unwrap().1, guest.pid());
    client.kill(key("parent")).await.unwrap();
    assert_eq!(finish(&mut follower).await.1.end, ExecEnd::Killed);
    let state = state_and_parent(daemon).map(|(state, _)| state);
    assert!(matches!(state, None | Some('Z' | 'X')), "{daemon} still lives: {state:?}");
}

#[tokio::test]
async fn a_timeout_ends_double_forked_daemons() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = shell("slow", STUBBORN_DAEMON);
    // Identifies the processes of this test, however far the call has come at the timeout.
    let variable = format!("TEST_WORKSPACE={}", guest.workspace().display());
    call.environment.insert("TEST_WORKSPACE".to_owned(), guest.workspace().display().to_string());
    call.timeout_ms = Some(500);
    call.kill_grace_ms = 100;
    assert_eq!(run(&client, call).await.1.end, ExecEnd::TimedOut);
    let has_variable = |environment: &Vec<u8>| {
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|process| std::fs::read(process.path().join("environ")).ok());
    assert_eq!(environments.filter(has_variable).count(), 0);
}

#[tokio::test]
async fn daemon_survives_the_normal_end_of_its_call_and_kills_of_other_calls() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let daemon = run_shell(&client, "parent", "(setsid sleep 1000 & echo $!)").await;
    let daemon = daemon.trim();
    let mut follower = client.exec(shell("other", "echo up; sleep 1000"), Follow::Live).await.unwrap();
    wait_for_output(&mut follower, &mut Seen::default(), "up").await;
    client.kill(key("other")).await.unwrap();
    client.kill(key("parent")).await.unwrap();
    let (state, parent) = state_and_parent(daemon).unwrap();
    assert!(!matches!(state, 'Z' | 'X') && parent == guest.pid(), "{daemon}: {state} below {parent}");
    run_shell(&client, "end", &format!("kill {daemon}")).await;
}

#[tokio::test]
async fn kill_ends_a_call_and_answers_when_it_has_ended() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut follower = client.exec(shell("victim", "echo up; sleep 1000"), Follow::Live).await.unwrap();
    wait_for_output(&mut follower, &mut Seen::default(), "up").await;
    client.kill(key("victim")).await.unwrap();
    let CallStatus::Ended(outcome) = client.call_status(key("victim")).await.unwrap() else {
        panic!("not ended")
    };
    assert_eq!(outcome.end, ExecEnd::Killed);
    assert_eq!(finish(&mut follower).await.1.end, ExecEnd::Killed);
    client.kill(key("victim")).await.unwrap();
}

#[tokio::test]
async fn signals_reach_the_group_and_wrong_ones_are_refused() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let call = shell("signals", "trap 'echo usr1; exit 7' USR1; echo up; while true; do sleep 0.05; done");
    let mut follower = client.exec(call, Follow::Live).await.unwrap();
    let mut seen = Seen::default();
    wait_for_output(&mut follower, &mut seen, "up").await;
    assert!(client.signal(key("signals"), 999).await.is_err());
    assert!(client.signal(key("unknown"), 10).await.is_err());
    client.signal(key("signals"), libc::SIGUSR1).await.unwrap();
    assert_eq!(finish_into(&mut follower, &mut seen).await.end, ExecEnd::Code(7));
    let (_, outcome) = run(&client, shell("self", "kill -9 $$")).await;
    assert_eq!(outcome.end, ExecEnd::Signal(9));
}

#[tokio::test]
async fn background_process_neither_delays_the_call_nor_ends_with_it() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    // The background process continues to print to the call's output after the end of the call.
    let command = "(while ! test -e stop; do echo noise; sleep 0.01; done; echo alive > after) & echo main";
    let (seen, outcome) = run(&client, shell("leaver", command)).await;
    assert_eq!(outcome.end, ExecEnd::Code(0));
    assert!(seen.text().contains("main"));
    assert_eq!(
        run_shell(&client, "stop", "touch stop; while ! test -s after; do sleep 0.01; done; cat after").await,
        "alive\n"
    );
}

#[tokio::test]
async fn endless_background_output_does_not_delay_the_call() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let (_, outcome) = run(&client, shell("flood", "yes & echo $! > pid; sleep 0.1")).await;
    assert_eq!(outcome.end, ExecEnd::Code(0));
    run_shell(&client, "end", "kill $(cat pid)").await;
}

#[tokio::test]
async fn a_terminal_has_a_size_takes_input_and_belongs_to_the_agent() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let mut call = shell(
        "terminal",
        "tty; stat -c %u $(tty); stty size; trap 'stty size; exit 5' WINCH; echo ready; while true; do sleep 0.05; done",
    );
    call.terminal = Some(TerminalSize { rows: 24, columns: 80 });
    call.keep_stdin_open = true;
    let mut follower = client.exec(call, Follow::Live).await.unwrap();
    let mut seen = Seen::default();
    wait_for_output(&mut follower, &mut seen, "ready").await;
    client.resize(key("terminal"), TerminalSize { rows: 50, columns: 132 }).await.unwrap();
    assert_eq!(finish_into(&mut follower, &mut seen).await.end, ExecEnd::Code(5));
    let text = String::from_utf8_lossy(&seen.terminal).into_owned();
    assert!(text.contains("/dev/pts/") && text.contains("24 80") && text.contains("50 132"), "{text}");
    if is_root() {
        assert!(text.contains("\r\n1000\r\n"), "{text}");
    }
    assert!(client.resize(key("terminal"), TerminalSize { rows: 1, columns: 1 }).await.is_err());
}

#[tokio::test]
async fn a_terminal_can_be_typed_into_and_its_last_output_is_not_lost() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    for round in 0..5 {
        let name = format!("typing-{round}");
        let mut call = shell(&name, "read -r word; echo \"<$word>\"; seq 500; echo last");
        call.terminal = Some(TerminalSize { rows: 24, columns: 80 });
        call.keep_stdin_open = true;
        let mut follower = client.exec(call, Follow::Live).await.unwrap();
        let mut input = client.input(key(&name)).await.unwrap();
        input.write(b"hello\n").await.unwrap();
        let (seen, outcome) = finish(&mut follower).await;
        assert_eq!(outcome.end, ExecEnd::Code(0));
        let text = String::from_utf8_lossy(&seen.terminal).into_owned();
        assert!(text.contains("<hello>") && text.ends_with("last\r\n"), "{text}");
    }
}

#[tokio::test]
async fn orphans_are_reaped() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let command = "for i in 1 2 3 4 5; do (setsid sleep 1000 & echo $!); done";
    let printed = run_shell(&client, "orphans", command).await;
    let orphans: Vec<&str> = printed.lines().collect();
    assert_eq!(orphans.len(), 5, "{printed}");
    for orphan in &orphans {
        let parent = state_and_parent(orphan).map(|(_, parent)| parent);
        assert_eq!(parent, Some(guest.pid()), "{orphan}");
    }
    run_shell(&client, "end", &format!("kill {}", orphans.join(" "))).await;
    for orphan in orphans {
        wait_until_collected(orphan).await;
    }
}

#[tokio::test]
async fn a_process_cannot_touch_the_guest_or_its_journal() {
    assert!(is_root(), "run this test as root: it needs two users");
    let guest = TestGuest::start();
    let client = guest.client().await;
    let pid = guest.pid();
    let command = format!(
        "ls {state} && echo OPEN; kill -9 {pid} && echo OPEN; kill -STOP {pid} && echo OPEN; cat /proc/{pid}/environ && echo OPEN; \
         ls /proc/{pid}/fd/ && echo OPEN; echo > {socket} && echo OPEN; true",
        state = guest.state().display(),
        socket = guest.socket().display(),
    );
    assert_eq!(run_shell(&client, "attack", &command).await, "");
    client.ping().await.unwrap();
}

#[tokio::test]
async fn malformed_keys_are_refused() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    for name in ["", "../x", "a/b", "a b", &"x".repeat(65)] {
        let refused = client.call_status(key(name)).await.unwrap_err();
        assert!(matches!(refused, ProtocolError::Refused(_)), "{name}: {refused:?}");
        let refused =
            client.exec(shell(name, "true"), Follow::Capped).await.unwrap().next().await.unwrap_err();
        assert!(matches!(refused, ProtocolError::Refused(_)), "{name}: {refused:?}");
    }
}

#[tokio::test]
async fn many_calls_run_at_once() {
    let guest = TestGuest::start();
    let client = guest.client().await;
    let calls = (0..60).map(|number| {
        let client = client.clone();
        tokio::spawn(
            async move { run_shell(&client, &format!("many-{number}"), &format!("echo {number}")).await },
        )
    });
    for (number, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        let text = tokio::time::timeout(Duration::from_secs(60), call).await.unwrap().unwrap();
        assert_eq!(text, format!("{number}\n"));
    }
}
