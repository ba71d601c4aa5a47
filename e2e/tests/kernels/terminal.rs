//! Persistent terminals: they can be closed and reopened, also across a restart of the server.

use e2e::{Said, Sandbox, Server, Socket};
use serde_json::json;

use crate::server;

fn open(server: &Server, sandbox: &Sandbox<'_>, query: &str) -> (Socket, String) {
    let mut socket = Socket::open(server, &sandbox.path(&format!("terminal{query}")));
    match socket.hear() {
        Said::Text(text) if text["type"] == "session" => {
            let session = text["session"].as_str().unwrap().to_owned();
            (socket, session)
        }
        other => panic!("no session: {other:?}"),
    }
}

/// Reads until a text appears on the terminal.
fn until(socket: &mut Socket, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        match socket.hear() {
            Said::Bytes(bytes) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            Said::Text(_) => {}
            Said::Closed(code) => panic!("closed ({code:?}) before `{wanted}`: {seen}"),
        }
    }
    seen
}

#[test]
fn terminal_session_survives_browser_and_server_restarts() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "host"}));
    let (mut socket, session) = open(&server, &sandbox, "?rows=30&columns=100");
    socket.send_bytes(b"stty size; kept=here; echo mark-$((20+3))\n");
    let seen = until(&mut socket, "mark-23");
    assert!(seen.contains("30 100"), "{seen}");
    socket.send(&json!({"type": "resize", "rows": 40, "columns": 120}));
    socket.send_bytes(b"stty size; echo size-$((1+1))\n");
    assert!(until(&mut socket, "size-2").contains("40 120"));
    drop(socket);
    server.kill9();
    server.restart();
    let (mut socket, again) = open(&server, &sandbox, &format!("?session={session}"));
    assert_eq!(again, session);
    until(&mut socket, "mark-23");
    socket.send_bytes(b"echo it is $kept; exit 3\n");
    until(&mut socket, "it is here");
    loop {
        match socket.hear() {
            Said::Text(text) if text["type"] == "ended" => {
                assert_eq!(text["exit_code"], 3, "{text}");
                break;
            }
            Said::Closed(code) => panic!("closed ({code:?}) without an end"),
            _ => {}
        }
    }
}

#[test]
fn unknown_terminal_session_is_refused() {
    let server = server();
    let sandbox = server.create_sandbox(&json!({"image": "host"}));
    for session in ["nothing", "..%2Fx"] {
        let mut socket = Socket::open(&server, &sandbox.path(&format!("terminal?session={session}")));
        let Said::Text(text) = socket.hear() else { panic!("no text") };
        assert_eq!((&text["type"], &text["field"]), (&json!("problem"), &json!("session")), "{text}");
    }
}
