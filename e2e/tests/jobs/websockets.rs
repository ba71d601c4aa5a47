//! WebSockets into a sandbox: interactive processes, connections to ports.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use e2e::{Options, Said, Server, Socket, wait_until};
use serde_json::{Value, json};

#[test]
fn exec_stream_delivers_output_per_stream_and_the_exit_code() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let mut socket = sandbox.stream(&json!({"command": "echo out; echo err >&2; exit 7", "cwd": "/tmp"}));
    let call = socket.started();
    let finished = socket.finish();
    assert_eq!((finished.stdout.as_slice(), finished.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    let end = finished.end;
    assert_eq!(
        (&end["type"], &end["status"], &end["exit_code"]),
        (&json!("ended"), &json!("failed"), &json!(7))
    );
    assert!(end["duration_ms"].is_u64(), "{end}");
    let mut events = sandbox.follow();
    let logged = events.until("the end of the call", |event| event.is("call_ended"));
    assert_eq!((logged.call(), &logged.data()["exit_code"]), (format!("{call}.1"), &json!(7)));
    assert_eq!(events.output(&format!("{call}.1"), "stdout"), "out\n");
    let succeeded =
        sandbox.stream(&json!({"argv": ["printf", "%s", "a b"], "environment": {"X": "1"}})).finish();
    assert_eq!((&succeeded.end["status"], succeeded.stdout.as_slice()), (&json!("succeeded"), &b"a b"[..]));
    let slow = sandbox.stream(&json!({"command": "sleep 60", "timeout_s": 0.2})).finish();
    assert_eq!(slow.end["code"], "timeout", "{}", slow.end);
}

#[test]
fn exec_stream_works_in_a_running_job() {
    let server = Server::start();
    let job = server.schedule_steps(&[e2e::shell("echo ready; until [ -e stop ]; do sleep 0.05; done")]);
    job.follow().until("the first output", |event| event.is("call_output"));
    let mut socket = Socket::open(&server, &format!("/v1/jobs/{}/exec/stream", job.id));
    socket.send(&json!({"command": "echo inside; touch stop"}));
    assert_eq!(socket.finish().stdout, b"inside\n");
    job.wait_for("complete");
}

#[test]
fn exec_stream_forwards_stdin_and_its_end() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let given = sandbox.stream(&json!({"command": "cat", "stdin": "given"})).finish();
    assert_eq!(given.stdout, b"given");
    let mut socket = sandbox.stream(&json!({"command": "cat", "keep_stdin_open": true}));
    socket.send_bytes(b"one ");
    socket.until_output("one");
    socket.send_bytes(b"two");
    socket.send(&json!({"type": "stdin_end"}));
    let finished = socket.finish();
    assert_eq!((finished.stdout.as_slice(), &finished.end["exit_code"]), (&b"two"[..], &json!(0)));
    let mut socket = sandbox.stream(&json!({"command": "sha256sum", "keep_stdin_open": true}));
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..20 {
        socket.send_bytes(&piece);
    }
    socket.send(&json!({"type": "stdin_end"}));
    let whole = sandbox.exec("head -c 20M /dev/zero | tr '\\0' x | sha256sum");
    assert_eq!(String::from_utf8_lossy(&socket.finish().stdout), whole["stdout"].as_str().unwrap());
}

#[test]
fn exec_stream_terminal_has_a_size_and_accepts_input() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let terminal = json!({"rows": 30, "columns": 100});
    let environment = json!({"PS1": "next> "});
    let mut socket = sandbox
        .stream(&json!({"argv": ["bash", "--norc"], "terminal": terminal, "environment": environment}));
    socket.send_bytes(b"echo size $(stty size) $TERM; tty\n");
    let shown = socket.until_output("/dev/pts/");
    assert!(shown.contains("size 30 100 xterm-256color"), "{shown}");
    socket.send(&json!({"type": "resize", "rows": 40, "columns": 120}));
    socket.send_bytes(b"echo now $(stty size)\n");
    socket.until_output("now 40 120");
    // Ctrl-C ends the foreground program, not the shell.
    socket.send_bytes(b"sh -c 'echo begin$((1)); exec sleep 600'\n");
    socket.until_output("begin1");
    socket.send_bytes(b"\x03");
    // Does not wait for `^C`: the kernel signals the program before it decides whether to echo, and the shell may
    // have disabled echo by then.
    socket.until_output("next> ");
    socket.send_bytes(b"exit 5\n");
    let finished = socket.finish();
    assert_eq!(finished.end["exit_code"], 5, "{}", String::from_utf8_lossy(&finished.terminal));
    assert!(finished.stdout.is_empty() && finished.stderr.is_empty());
}

#[test]
fn a_process_can_be_signalled_and_killed() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let mut socket = sandbox.stream(
        &json!({"command": "trap 'echo usr1; exit 9' USR1; echo ready; while :; do sleep 0.05; done"}),
    );
    socket.until_output("ready");
    socket.send(&json!({"type": "signal", "signal": 10}));
    let finished = socket.finish();
    assert_eq!((finished.stdout.as_slice(), &finished.end["exit_code"]), (&b"usr1\n"[..], &json!(9)));
    let mut socket = sandbox.stream(&json!({"command": "trap '' TERM; sleep 600 & echo ready; sleep 600"}));
    socket.until_output("ready");
    socket.send(&json!({"type": "kill"}));
    assert_eq!(socket.finish().end["status"], "failed");
    // A zombie counts as dead: its parent may reap it a moment later.
    let found = sandbox.exec("pgrep -r R,S,D -x sleep");
    assert_eq!((&found["exit_code"], &found["stdout"]), (&json!(1), &json!("")), "{found}");
}

#[test]
fn process_that_does_not_read_stdin_can_be_killed() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let mut socket = sandbox.stream(&json!({"command": "echo ready; sleep 600", "keep_stdin_open": true}));
    socket.until_output("ready");
    socket.send_bytes(&vec![b'x'; 1 << 20]);
    // Many messages, as when a client sends typed or piped input.
    for _ in 0..64 {
        socket.send_bytes(&vec![b'x'; 16 << 10]);
    }
    socket.send(&json!({"type": "kill"}));
    assert_eq!(socket.finish().end["status"], "failed");
}

#[test]
fn process_without_a_terminal_outlives_its_client() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let mut socket = sandbox.stream(
        &json!({"command": "echo ready; until [ -e go ]; do sleep 0.05; done; echo late; touch done"}),
    );
    socket.until_output("ready");
    drop(socket);
    let mut socket = sandbox.stream(&json!({
        "command": "trap 'touch hung_up; exit 1' HUP; echo ready; while :; do sleep 0.05; done",
        "terminal": {"rows": 24, "columns": 80},
    }));
    socket.until_output("ready");
    drop(socket);
    wait_until("the terminal was hung up", || sandbox.get("files/hung_up").status == 200);
    sandbox.put_file("go", "").expect(200);
    let mut events = sandbox.follow();
    // One event may contain all output of a short interval.
    let is_late = |text: &str| text.ends_with("late\n");
    events.until("late output", |event| {
        event.is("call_output") && event.data()["text"].as_str().is_some_and(is_late)
    });
    wait_until("the process has ended", || sandbox.get("files/done").status == 200);
}

#[test]
fn slow_reader_gets_a_gap_and_does_not_block_others() {
    const WHOLE: u64 = 200 << 20;
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let mut socket = sandbox.stream(&json!({"command": format!("head -c {WHOLE} /dev/zero; touch done")}));
    socket.started();
    // Reads nothing until the process has ended.
    wait_until("the process has ended", || sandbox.get("files/done").status == 200);
    let finished = socket.finish();
    assert!(finished.gap > 0, "no gap in {} bytes", finished.stdout.len());
    assert_eq!(finished.stdout.len() as u64 + finished.gap, WHOLE);
    assert_eq!(finished.end["exit_code"], 0);
}

#[test]
fn backpressure_makes_a_command_wait_for_its_reader() {
    const WHOLE: u64 = 100 << 20;
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let command = format!("head -c {WHOLE} /dev/zero; touch done");
    let mut socket = sandbox.stream(&json!({"command": command, "backpressure": true}));
    socket.started();
    // The sandbox serves others while the process is blocked.
    assert_eq!(sandbox.exec("echo there")["stdout"], "there\n");
    let finished = socket.finish();
    assert_eq!((finished.stdout.len() as u64, finished.gap), (WHOLE, 0));
    assert_eq!(finished.end["exit_code"], 0);
    // The process does not wait for a client that has left.
    let mut socket =
        sandbox.stream(&json!({"command": "yes | head -c 200000000; touch left", "backpressure": true}));
    socket.started();
    drop(socket);
    wait_until("the process has ended", || sandbox.get("files/left").status == 200);
}

/// The output is still being logged while the server checks repeatedly whether the client is there.
#[test]
fn exit_code_is_reported_although_logging_lags_behind() {
    let config = "[http]\nidle_timeout_s = 1\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    let sandbox = server.create_sandbox(&json!({}));
    let finished = sandbox.stream(&json!({"command": "seq 2000000", "backpressure": true})).finish();
    assert_eq!(
        (&finished.end["type"], &finished.end["exit_code"]),
        (&json!("ended"), &json!(0)),
        "{}",
        finished.end
    );
    assert!(finished.stdout.ends_with(b"\n1999999\n2000000\n"));
}

#[test]
fn exec_errors_are_reported_on_the_websocket() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    for (request, field) in [
        (json!({}), "command"),
        (json!({"command": "a", "argv": ["a"]}), "command"),
        (json!({"command": "a", "colour": 1}), "colour"),
        (json!({"command": "a", "terminal": {"rows": "many", "columns": 1}}), "terminal.rows"),
        (json!({"command": "a", "timeout_s": -1}), "timeout_s"),
        (
            json!({"command": "a", "backpressure": true, "terminal": {"rows": 9, "columns": 9}}),
            "backpressure",
        ),
    ] {
        let end = sandbox.stream(&request).finish().end;
        assert_eq!((&end["type"], &end["code"]), (&json!("problem"), &json!("invalid_field")), "{end}");
        assert_eq!((&end["field"], &end["status"]), (&json!(field), &json!(422)), "{end}");
    }
    let mut socket = Socket::open(&server, &sandbox.path("exec/stream"));
    socket.send_bytes(b"{}");
    assert_eq!(socket.finish().end["code"], "malformed_json");
    let mut socket = sandbox.stream(&json!({"command": "sleep 600"}));
    socket.started();
    socket.send(&json!({"type": "fly"}));
    assert_eq!(socket.finish().end["type"], "problem");
    let mut socket = sandbox.stream(&json!({"command": "sleep 600"}));
    socket.started();
    socket.send(&json!({"type": "signal", "signal": 999}));
    assert_eq!(socket.finish().end["field"], "signal");
    sandbox.end().expect(204);
    assert_eq!(sandbox.stream(&json!({"command": "true"})).finish().end["code"], "wrong_state");
}

#[test]
fn oversized_websocket_message_closes_the_connection_with_a_reason() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let assert_refused = |mut socket: Socket| {
        // Sending fails if the server closes the connection before it has read everything.
        socket.try_send_bytes(&vec![0; 3 << 20]);
        let (code, reason) = socket.until_closed();
        assert_eq!((code, reason.contains("at most 1 MiB")), (1009, true), "{reason}");
    };
    assert_refused(Socket::open(&server, &sandbox.path("exec/stream")));
    let mut running = sandbox.stream(&json!({"command": "cat | wc -c > count", "keep_stdin_open": true}));
    running.started();
    assert_refused(running);
    assert_refused(Socket::open(&server, &sandbox.path("terminal")));
    let serve = "import socket\ns = socket.create_server(('127.0.0.1', 8123))\nprint('listens', flush=True)\ns.accept()[0].recv(1)";
    let mut listener = sandbox.stream(&json!({"argv": ["python3", "-c", serve]}));
    listener.until_output("listens");
    assert_refused(Socket::open(&server, &sandbox.path("ports/8123")));
    assert_eq!(sandbox.exec("echo still works")["stdout"], "still works\n");
}

#[test]
fn page_of_another_site_cannot_open_a_websocket() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    for path in [sandbox.path("exec/stream"), sandbox.path("ports/8000")] {
        for origin in ["https://evil.example", "http://localhost:1", "null"] {
            let refused = Socket::try_open(&server, &path, &[("Origin", origin)]).err().unwrap();
            assert_eq!(refused.0, 403, "{origin}: {}", refused.1);
            assert!(refused.1.contains("origin_not_allowed"), "{}", refused.1);
        }
        let refused = Socket::try_open(&server, &path, &[("Host", "evil.example")]).err().unwrap();
        assert_eq!(refused.0, 421, "{}", refused.1);
    }
    let own = format!("http://127.0.0.1:{}", server.port);
    assert!(Socket::try_open(&server, &sandbox.path("exec/stream"), &[("Origin", &own)]).is_ok());
    sandbox.get("exec/stream").expect_problem(426, "websocket_required");
}

#[test]
fn server_in_a_sandbox_is_reached_through_its_port() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    assert_eq!(sandbox.get("ports").expect(200).json(), json!({"ports": []}));
    let refused = Socket::try_open(&server, &sandbox.path("ports/8123"), &[]).err().unwrap();
    assert_eq!(refused.0, 502, "{}", refused.1);
    assert!(refused.1.contains("port_unreachable"), "{}", refused.1);
    sandbox.get("ports/70000").expect_problem(400, "invalid_path");
    sandbox.put_file("page.txt", "served from inside").expect(200);
    let mut http = sandbox.stream(&json!({"command": "exec python3 -m http.server 8123 --bind 127.0.0.1"}));
    let listens = json!({"ports": [{"port": 8123}]});
    wait_until("the server listens", || sandbox.get("ports").expect(200).json() == listens);
    let mut socket = Socket::open(&server, &sandbox.path("ports/8123"));
    socket.send_bytes(b"GET /page.txt HTTP/1.0\r\n");
    socket.send_bytes(b"\r\n");
    let mut answer = Vec::new();
    loop {
        match socket.hear() {
            Said::Bytes(bytes) => answer.extend_from_slice(&bytes),
            Said::Closed(code) => break assert_eq!(code, Some(1000)),
            Said::Text(text) => panic!("{text}"),
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("served from inside"), "{answer}");
    let mut socket = Socket::open(&server, &sandbox.path("ports/8123"));
    socket.send(&json!("text"));
    assert_eq!(socket.hear(), Said::Closed(Some(1003)));
    http.send(&json!({"type": "kill"}));
    http.finish();
    sandbox.end().expect(204);
    server.assert_nothing_left();
}

#[test]
fn quiet_websocket_does_not_count_as_an_idle_connection() {
    let config = "[http]\nheader_timeout_s = 1\nrequest_timeout_s = 1\nidle_timeout_s = 1\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    let sandbox = server.create_sandbox(&json!({}));
    let finished = sandbox.stream(&json!({"command": "sleep 3.5; echo awake"})).finish();
    assert_eq!(finished.stdout, b"awake\n");
}

#[test]
fn unresponsive_websocket_client_is_disconnected() {
    let config = "[http]\nidle_timeout_s = 1\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    let sandbox = server.create_sandbox(&json!({}));
    let terminal = json!({"rows": 24, "columns": 80});
    let mut silent = sandbox.stream(&json!({"command": "exec sleep 600", "terminal": terminal}));
    let call = silent.started();
    // The client reads nothing from here on, so it answers no ping; its connection stays open.
    let mut events = sandbox.follow();
    let ended = events.until("the end of the silent client's process", |event| {
        event.is("call_ended") && event.call() == format!("{call}.1")
    });
    assert_eq!(ended.data()["status"], "failed", "{ended:?}");
    drop(silent);
}

#[test]
fn websockets_count_towards_the_connection_limit() {
    const LIMIT: usize = 4;
    let config = format!("[http]\nmax_connections = {LIMIT}\n");
    let server = Server::start_with(Options { config, ..Options::default() });
    let sandbox = server.create_sandbox(&json!({}));
    // The number of open sockets now, and its maximum.
    let (open, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..2 * LIMIT {
            let (sender, sandbox, open, most) = (sender.clone(), &sandbox, &open, &most);
            scope.spawn(move || {
                let mut socket = sandbox.stream(&json!({"command": "cat", "keep_stdin_open": true}));
                socket.started();
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sender.send(socket).unwrap();
            });
        }
        drop(sender);
        let mut sockets: Vec<Socket> = receiver.iter().take(LIMIT).collect();
        for socket in &mut sockets {
            socket.send_bytes(b"still here");
            socket.until_output("still here");
        }
        // Closing a socket makes room for another one.
        while let Some(mut socket) = sockets.pop() {
            open.fetch_sub(1, Ordering::SeqCst);
            socket.send(&json!({"type": "kill"}));
            socket.finish();
            drop(socket);
            sockets.extend(receiver.recv().ok());
        }
    });
    assert_eq!(most.into_inner(), LIMIT, "sockets at once");
    assert_eq!(sandbox.exec("echo room again")["stdout"], "room again\n");
}

#[test]
fn stopping_server_closes_websockets_and_keeps_processes() {
    let server = Server::start();
    let sandbox = server.create_sandbox(&json!({}));
    let request = json!({"command": "echo $$ > pid; echo ready; exec sleep 600"});
    let mut plain = sandbox.stream(&request);
    let mut terminal: Value = request;
    terminal["terminal"] = json!({"rows": 24, "columns": 80});
    terminal["command"] = json!("echo $$ > terminal_pid; echo ready; exec sleep 600");
    let mut terminal = sandbox.stream(&terminal);
    plain.until_output("ready");
    terminal.until_output("ready");
    server.stop();
    assert_eq!(plain.hear(), Said::Closed(Some(1001)));
    assert_eq!(terminal.hear(), Said::Closed(Some(1001)));
    server.restart();
    let reply = sandbox.exec("kill -0 $(cat pid) && kill -0 $(cat terminal_pid) && echo both alive");
    assert_eq!(reply["stdout"], "both alive\n", "{reply}");
    sandbox.end().expect(204);
    server.assert_nothing_left();
}
